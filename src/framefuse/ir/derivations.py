"""What a graph computes from parameters and buffers alone, as the targets of calls that a plan keeps results for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from framefuse.ir.facts import Source
from framefuse.ir.graph import Graph

# Training writes to the statistics of a module by a call that no version counts, and counts in another buffer.
STATISTICS, COUNTER = ("running_mean", "running_var"), "num_batches_tracked"


def counter_beside(statistic: Source) -> Source:
    """The place of the counter that is written to with a statistic."""
    return Source("item", statistic.base, COUNTER)


@dataclass(frozen=True, slots=True, eq=False)
class Derived:
    """The results of ``graph`` for the parents, which are its inputs: a plan computes them again when one moved, or the
    counter beside one of the inputs that are ``witnesses``, which have their numbers of the trace.
    """

    graph: Graph
    witnesses: tuple[int, ...] = ()

    @property
    def __name__(self) -> str:
        return "derived"


Window: TypeAlias = tuple[tuple[int, int], tuple[int, int], tuple[int, int]]  # padding, step, dilation


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A convolution of a picture, or a product of rows where there is no ``window``, and the parents of its weight,
    which the first result of ``graph`` is; with ``biased`` the second is its bias. The weight, transposed in a product,
    is packed as the CPU's library wants it for operands of these ``sizes``, once for as long as no parent moves.
    """

    graph: Graph
    window: Window | None
    sizes: tuple[int, ...]
    biased: bool
    witnesses: tuple[int, ...] = ()

    @property
    def __name__(self) -> str:
        return "packed_product" if self.window is None else "packed_convolution"
