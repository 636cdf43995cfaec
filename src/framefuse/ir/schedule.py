"""The order of work for a graph: buffers with a place, kernel calls, matrix products and library calls, still in
expressions.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from framefuse.ir.dtypes import DType
from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.graph import Graph, Node
from framefuse.ir.numbers import Expr, Real, Symbol
from framefuse.ir.source import Line

if TYPE_CHECKING:
    from framefuse.ir.loops import Kernel
    from framefuse.ir.passes import Step


@dataclass(frozen=True, slots=True)
class Memory:
    """A buffer: ``place`` as in :data:`framefuse.ir.plan.PLACES`, ``strides`` in elements.

    ``input`` for place input; ``offset`` is the byte offset in the arena for place arena and the element offset for
    place view, whose ``base`` is another buffer's number.
    """

    place: str
    dtype: DType
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    device: str = "cpu"
    input: int = -1
    base: int = -1
    offset: Expr | None = None


@dataclass(frozen=True, slots=True)
class RunKernel:
    """``kernel`` with ``buffers`` (numbers of Memory, in the kernel's order) and ``numbers`` (values of the kernel's
    Number parameters, in order).

    ``extent`` is the length of the parallel axis and ``work`` the estimated nanoseconds on one thread, both in this
    graph's symbols. All buffers lie on ``device``.
    """

    kernel: Kernel
    buffers: tuple[int, ...]
    numbers: tuple[Expr | Real, ...]
    extent: Expr
    work: Expr
    parallel: bool
    device: str = "cpu"

    @property
    def sizes(self) -> dict[Symbol, Expr]:
        """The values, in the graph's symbols, of the numbers of the kernel that are integers."""
        pairs = zip(self.kernel.numbers, self.numbers, strict=True)
        return {number.symbol: value for number, value in pairs if isinstance(value, Expr)}


@dataclass(frozen=True, slots=True)
class RunMatmul:
    """``out[b, m, n] = sum_k a[b, m, k] * c[b, k, n]``; see :class:`framefuse.ir.plan.MatmulStep`. Strides in
    elements, (batch, row, column). ``line`` is the user's line that asked for it.
    """

    out: int
    a: int
    c: int
    sizes: tuple[Expr, Expr, Expr, Expr]  # batch, m, n, k
    a_strides: tuple[Expr, Expr, Expr]
    c_strides: tuple[Expr, Expr, Expr]
    out_strides: tuple[Expr, Expr, Expr]
    line: Line | None = None


@dataclass(frozen=True, slots=True)
class Positions:
    """The operand of a call that holds positions in ``dimension`` of what it writes; with ``wraps`` negative ones count
    from the end.
    """

    operand: int
    dimension: int
    wraps: bool


@dataclass(frozen=True, slots=True)
class RunCall:
    """The library call of ``node``: operands are buffers in the order of ``node.inputs``; ``outs`` pairs a path into
    the result with a buffer. ``over`` are the new contents of inputs that the call writes in their memory.
    With ``checks`` it may do so once only: whether these are places there is looked at first.
    """

    node: Node
    operands: tuple[int, ...]
    outs: tuple[tuple[tuple[int, ...], int], ...]
    binds: tuple[tuple[int, int, Symbol], ...]
    normal: tuple[int, ...]
    inside: bool
    over: tuple[int, ...] = ()
    checks: Positions | None = None


@dataclass(frozen=True, slots=True)
class Allocate:
    """A fresh tensor for buffer ``memory``."""

    memory: int


@dataclass(frozen=True, slots=True)
class Release:
    """The buffers have no reader left."""

    memories: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Commit:
    """From here on kernels write ``inputs`` in place, (buffer, version bumps) each: nothing that follows can fail."""

    inputs: tuple[tuple[int, int], ...]


Item = RunKernel | RunMatmul | RunCall | Allocate | Release | Commit


@dataclass(frozen=True, slots=True)
class Offer:
    """Two ways to compute a product and what is done with it: the library's ``call`` with the ``kernel`` behind it (and
    kernels ``before`` it that make its operands), or one kernel ``fused``. ``product`` names the offer. Of offers that
    have one of the groups ``covers`` in common, or one call, only one may be taken. Without ``kernel`` the call does it
    all.
    """

    product: tuple[int, bool]
    call: RunCall
    kernel: RunKernel | None
    fused: RunKernel
    covers: frozenset[int] = frozenset()
    before: tuple[RunKernel, ...] = ()


@dataclass(frozen=True, slots=True)
class Schedule:
    """Everything fuse decided. ``outputs[i]`` is the buffer of graph.outputs[i] (place fresh, call or input);
    ``arena`` is the size in bytes of the arena on the CPU, ``arenas`` gives those of other devices.

    ``writes`` are (buffer of a graph input, buffer with its new contents, version bumps), done with ``copy_`` after
    all items; those that a Commit among the items names are done by kernels. ``notes`` say why a kernel leaves a buffer
    in memory, (buffer, why) each, and ``steps`` what each pass of fuse did. ``largest`` are symbols that sizes, offsets
    in the arena and its size are over, in order: each is the largest of some expressions, or what the only one says.
    ``offers`` are what else could be done.
    """

    graph: Graph
    memories: tuple[Memory, ...]
    items: tuple[Item, ...]
    outputs: tuple[int, ...]
    arena: Expr
    writes: tuple[tuple[int, int, int], ...] = ()
    notes: tuple[tuple[int, str], ...] = ()
    largest: tuple[tuple[Symbol, tuple[Expr, ...]], ...] = ()
    arenas: tuple[tuple[str, Expr], ...] = ()
    offers: tuple[Offer, ...] = ()
    steps: tuple[Step, ...] = ()

    @property
    def witnesses(self) -> tuple[int, ...]:
        """The numbers of the inputs with a counter that calls look at, to know whether what they keep is right."""
        targets = (item.node.attr("target") for item in self.items if isinstance(item, RunCall))
        return tuple(dict.fromkeys(number for target in targets for number in getattr(target, "witnesses", ())))

    def with_steps(self, steps: tuple[Step, ...]) -> Schedule:
        """The schedule with the steps that made it."""
        return replace(self, steps=steps)
