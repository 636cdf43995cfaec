"""Copies a part of an operand into a scratch tile with rows and columns changed, in blocks that registers hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from framefuse.codegen.llvm.builder import Builder, Reg, type_text
from framefuse.codegen.llvm.memory import STORED, Memory
from framefuse.codegen.llvm.values import Values
from framefuse.ir.loops import Load, Loop, LoopKind, Store
from framefuse.ir.numbers import Expr

LANE = 16  # bytes of what the shuffles of every machine work in


@dataclass(frozen=True, slots=True)
class Transposed:
    """A serial loop over ``columns`` around a vector loop over ``rows`` that are neighbours in the memory of ``load``,
    whose elements ``store`` puts into the rows of a tile.
    """

    columns: Loop
    rows: Loop
    load: Load
    store: Store

    @property
    def sides(self) -> tuple[int, ...]:
        """The rows and columns of a block, and those of a smaller one."""
        return (4,) if self.load.dtype.size == 8 else (8, 4)


def transposed_copy(statement: Loop, scratch: set[str]) -> Transposed | None:
    """What the loop copies, if that is all it does."""
    inner = statement.body[0] if len(statement.body) == 1 else None
    if statement.kind is not LoopKind.SERIAL or not isinstance(inner, Loop) or inner.kind is not LoopKind.VECTOR:
        return None
    store = inner.body[0] if len(inner.body) == 1 else None
    if not isinstance(store, Store) or store.buffer not in scratch or not isinstance(store.value, Load):
        return None
    load = store.value
    width = store.index.coefficient(inner.axis)
    stride = load.index.coefficient(statement.axis)
    if load.mask is not None or load.dtype.size not in (1, 2, 4, 8) or stride is None or inner.axis in stride.symbols:
        return None
    if not (_is_one(load.index.coefficient(inner.axis)) and _is_one(store.index.coefficient(statement.axis))):
        return None
    if width is None or {statement.axis, inner.axis} & width.symbols:
        return None
    return Transposed(statement, inner, load, store)


def _is_one(value: Expr | None) -> bool:
    return value is not None and value.constant == 1


def write_blocks(b: Builder, memory: Memory, values: Values, copy: Transposed, elements: Callable[[], None]) -> None:
    """The copy, which ``elements`` writes where there are fewer rows or columns than a block has. Blocks that would
    reach beyond the last row or column begin earlier.
    """
    axes = (copy.columns.axis, copy.rows.axis)
    bases = []
    for name, index in ((copy.load.buffer, copy.load.index), (copy.store.buffer, copy.store.index)):
        fixed = index.without(axes[0]).without(axes[1])
        bases.append(memory.pointer(b, name, values.get(values.index(fixed))))
    steps = [copy.load.index.coefficient(axes[0]), copy.store.index.coefficient(axes[1])]
    stride, width = (values.get(values.index(step)) for step in steps if step is not None)
    columns, rows = (values.get(values.index(loop.extent)) for loop in (copy.columns, copy.rows))
    least, left = b.intrinsic("smin", rows, columns), b.const(True, "i1")
    elem, align = STORED[copy.load.dtype.name], copy.load.dtype.size

    def blocks(side: int) -> list[Reg]:
        last_column, last_row = (b.sub(extent, b.const(side, "i64")) for extent in (columns, rows))

        def along(column: Reg, carried: list[Reg]) -> list[Reg]:
            first_column = b.intrinsic("smin", column, last_column)
            starts = [b.address(elem, bases[0], b.mul(first_column, stride))]
            for _ in range(side - 1):
                starts.append(b.address(elem, starts[-1], stride))

            def block(row: Reg, carried: list[Reg]) -> list[Reg]:
                first_row = b.intrinsic("smin", row, last_row)
                pointers = [b.address(elem, start, first_row) for start in starts]
                found = [b.op(elem, side, f"load {type_text(elem, side)}, {p}, align {align}") for p in pointers]
                place = b.address(elem, bases[1], b.add(b.mul(first_row, width), first_column))
                for value in transposed_block(b, found, LANE // align):
                    b.line(f"store {value}, {place}, align {align}")
                    place = b.address(elem, place, width)
                return carried

            b.counted(b.const(0, "i64"), rows, side, [], block)
            return carried

        b.counted(b.const(0, "i64"), columns, side, [], along)
        return []

    def single() -> list[Reg]:
        elements()
        return []

    for side in copy.sides:
        enough = b.compare("sge", least, b.const(side, "i64"))
        b.guarded(b.bit_and(left, enough), [], partial(blocks, side))
        left = b.bit_not(enough)
    b.guarded(left, [], single)


def transposed_block(b: Builder, rows: list[Reg], lane: int) -> list[Reg]:
    """The columns of as many rows as each has elements, by shuffles inside of lanes and then of whole ones."""
    side = len(rows)
    lane = min(lane, side)
    low = [k // 2 + k % 2 * side for k in range(lane)]
    places = [start + place for start in range(0, side, lane) for place in low]
    parts = []
    for first in range(0, side, lane):
        part = rows[first : first + lane]
        for _ in range(lane.bit_length() - 1):
            pairs = list(zip(part[: lane // 2], part[lane // 2 :], strict=True))
            part = [b.shuffle(x, y, [place + half for place in places]) for x, y in pairs for half in (0, lane // 2)]
        parts.append(part)
    if len(parts) == 1:
        return parts[0]
    both = [[*range(half, half + lane), *range(side + half, side + half + lane)] for half in (0, lane)]
    return [b.shuffle(one, two, order) for order in both for one, two in zip(*parts, strict=True)]
