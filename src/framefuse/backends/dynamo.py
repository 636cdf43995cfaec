"""The entry point by which torch.compile(backend="framefuse") hands its graphs to framefuse's fusion and code
generation.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch.fx

from framefuse.api import compile
from framefuse.ir.values import Function, Value


def framefuse_backend(
    gm: torch.fx.GraphModule,
    example_inputs: list[Value],
    *,
    mode: str | None = None,
    options: Mapping[str, object] | None = None,
) -> Function:
    """The compiled form of a graph that torch.compile captured; sizes stay free as its own guards decide them.

    ``mode`` and ``options`` are those of torch.compile, with the meaning that they have for :func:`framefuse.compile`.
    Raises UserError for one that framefuse does not know.
    """
    _ = gm.code  # torch makes the Python function of a graph when its text is first asked for
    compiled: Function = compile(gm.forward, mode=mode, options=options)
    return compiled
