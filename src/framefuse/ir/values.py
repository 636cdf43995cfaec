"""Names what belongs to the program that runs: its objects may be anything, and are looked at before they are used.

Nothing of framefuse's own has one of these types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch.fx

Value: TypeAlias = Any  # an object of the program; in a recording, or a tracked number in its place
Function: TypeAlias = Callable[..., Value]  # what the program calls
Arguments: TypeAlias = tuple[Value, ...]
Keywords: TypeAlias = dict[str, Value]
# Another backend: takes a captured graph and the values of a call, and gives what runs it.
FxBackend: TypeAlias = Callable[[torch.fx.GraphModule, list[Value]], Function]
