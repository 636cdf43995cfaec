"""Rows that begin anywhere in memory are taken from where the vector begins in which their first element lies."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from framefuse.codegen.triton.blocks import Blocks
from framefuse.codegen.triton.builder import Builder
from framefuse.codegen.triton.indices import Indices
from framefuse.codegen.triton.row_reads import VECTOR, is_odd
from framefuse.ir.loops import Accumulator, Kernel, Let, Load, Loop, Store
from framefuse.ir.loops.walk import statements, values_of
from framefuse.ir.numbers import Expr, Symbol

# Accumulators that count on where the turns of a loop begin.
PLACED = frozenset(("squares",))


@dataclass(frozen=True, slots=True)
class Row:
    """A row that begins at ``begin`` in memory, ``shift`` elements behind ``first``, where a vector begins, and ends at
    ``stop``, counted from there.
    """

    begin: Expr
    axis: Symbol
    size: int
    first: str
    shift: str
    stop: str

    @classmethod
    def begun(cls, b: Builder, indices: Indices, loop: Loop, begin: Expr) -> Row:
        """Writes where it begins, in front of the loop."""
        size, where = elements(loop), indices.index(begin).text
        first = b.named(f"{where} // {size} * {size}", "first")
        shift = b.named(f"({where} - {first}).to(tl.int32)", "shift")
        stop = b.named(f"{indices.index(loop.extent).text} + {shift}", "stop")
        return cls(begin, loop.axis, size, first, shift, stop)

    def turn(self, b: Builder, start: str, block: str, along: str) -> Turn:
        """Writes what a turn from ``start`` on, ``along`` the row, has of it."""
        where = b.named(f"{self.first} + {along}", "k0")
        some = b.named(f"{along} < ({self.stop} + {self.size - 1}) // {self.size} * {self.size}", "some")
        full = b.named(f"({start} >= {self.shift}) & ({start} + {block} <= {self.stop})", "full")
        return Turn(self, where, some, full)


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn of a loop over a row: ``where`` its elements lie, which vectors have ``some`` of the row (what lies around
    it is loaded, and not looked at), and whether the row is all of the turn, in ``full``.
    """

    row: Row
    where: str
    some: str
    full: str

    def holds(self, index: Expr) -> bool:
        return index - self.row.axis.expr == self.row.begin


def odd_rows(kernel: Kernel, blocks: Blocks, hints: Mapping[Symbol, int]) -> dict[int, Expr]:
    """By the identities of loops in turns: where their rows begin, if most of what they move lies there by elements of
    2 bytes or less, and the recorded rows do not begin where vectors do.
    """
    if blocks.form != "rows" or blocks.rank != 1 or blocks.held:
        return {}
    every = list(statements(kernel.body))
    if any(isinstance(s, Accumulator) and (s.running or s.op in PLACED) for s in every):
        return {}
    rows = {}
    for loop in every:
        if isinstance(loop, Loop) and id(loop) in blocks.loops and not blocks.loops[id(loop)].whole:
            begin = _begin(loop)
            if begin is not None and is_odd(begin, hints):
                rows[id(loop)] = begin
    return rows


def elements(loop: Loop) -> int:
    """The elements of a vector of the narrowest values that a loop moves."""
    return VECTOR // min(size for size, _ in _moved(loop))


def _begin(loop: Loop) -> Expr | None:
    named = (s for s in statements(loop.body) if isinstance(s, (Let, Loop)))
    inside = {s.axis if isinstance(s, Loop) else Symbol(s.name) for s in named}
    begins = Counter[Expr]()
    for size, index in _moved(loop):
        step = index.coefficient(loop.axis)
        rest = index - loop.axis.expr
        if size <= 2 and step is not None and step.constant == 1 and not rest.symbols & inside:
            begins[rest] += 1
    return max(begins, key=lambda begin: begins[begin]) if begins else None


def _moved(loop: Loop) -> list[tuple[int, Expr]]:
    """The sizes and places of the elements that a loop loads and stores."""
    loads = [(v.dtype.size, v.index) for v in values_of(loop.body) if isinstance(v, Load)]
    return loads + [(s.value.dtype.size, s.index) for s in statements(loop.body) if isinstance(s, Store)]
