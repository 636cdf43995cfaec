"""The passes over a loop nest, in their order."""

from __future__ import annotations

from collections.abc import Callable

from framefuse.codegen.optimise.nest import Optimised
from framefuse.codegen.optimise.share import share
from framefuse.codegen.optimise.unused import without_unused
from framefuse.ir.loops import Kernel

# Behind ``share`` a pass must keep the value objects, whose numbers it made.
PASSES: tuple[tuple[str, Callable[[Optimised], Optimised]], ...] = (
    ("share", share),
    ("unused", without_unused),
)


def optimised(kernel: Kernel) -> Optimised:
    """The kernel as an emitter takes it, made once."""
    nest: Optimised | None = kernel.known.get("optimised")
    if nest is None:
        nest = Optimised(kernel)
        for _, run in PASSES:
            nest = run(nest)
        kernel.known["optimised"] = nest
    return nest
