"""The entry point by which torch.compile(backend="framefuse") hands its graphs to framefuse's fusion and code
generation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch.fx

from framefuse.api import compile


def framefuse_backend(gm: torch.fx.GraphModule, example_inputs: list[Any]) -> Callable[..., Any]:
    """The compiled twin of a graph that torch.compile captured; sizes stay free as its own guards decide them."""
    _ = gm.code  # torch makes the Python function of a graph when its text is first asked for
    return compile(gm.forward)
