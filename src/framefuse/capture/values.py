"""Names what belongs to the program that runs: its objects may be anything, and are looked at before they are used.

Nothing of framefuse's own has one of these types.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

Value: TypeAlias = Any  # an object of the program, or a tracked number in its place
Function: TypeAlias = Callable[..., Value]  # what the program calls
Arguments: TypeAlias = tuple[Value, ...]
Keywords: TypeAlias = dict[str, Value]
Memo: TypeAlias = dict[int, tuple[Value, Value]]  # by id: the object, kept alive, and what stands for it
