"""Writes loads and stores: one element, a row of neighbours, or elements anywhere, masked where lanes are off."""

from __future__ import annotations

from dataclasses import dataclass

from framefuse.codegen.llvm.builder import BITS, Builder, Reg, type_text
from framefuse.codegen.llvm.casts import HELD
from framefuse.errors import CompilerBug
from framefuse.ir.dtypes import DType

# Elements in memory; 16-bit floats are moved as their bits.
STORED = {**HELD, "bool": "i8"}
SHORT = {"i8": "i8", "i16": "i16", "i32": "i32", "i64": "i64", "i128": "i128", "float": "f32", "double": "f64"}


@dataclass(eq=False, slots=True)
class Area:
    """A buffer or scratch row: its address, the loop depth where that is known, and that of the last store to it."""

    dtype: DType
    base: Reg
    level: int
    stored_level: int = 0
    alias: str | None = None


class Memory:
    """The areas of one kernel by name."""

    def __init__(self) -> None:
        self.areas: dict[str, Area] = {}
        self.zero: Reg | None = None

    def stored_level(self, name: str) -> int:
        """The depth of the loop outside of which a load from the buffer would not see the last store."""
        return self.areas[name].stored_level

    def level(self, name: str) -> int:
        return self.areas[name].level

    def stored(self, name: str, level: int) -> None:
        """Notes a store to the buffer (and to the one it shares memory with) at this depth."""
        for other, area in self.areas.items():
            if name in (other, area.alias) or self.areas[name].alias == other:
                area.stored_level = level

    def pointer(self, b: Builder, name: str, index: Reg, base: Reg | None = None) -> Reg:
        area = self.areas[name]
        return b.address(STORED[area.dtype.name], base or area.base, index)

    def _loaded(self, b: Builder, dtype: DType, value: Reg) -> Reg:
        return b.compare("ne", value, b.like(0, value)) if dtype.kind == "bool" else value

    def read_one(self, b: Builder, name: str, pointer: Reg, mask: Reg | None) -> Reg:
        """One element; where ``mask`` (a scalar i1) is false, zero, read from a place of its own."""
        dtype = self.areas[name].dtype
        elem = STORED[dtype.name]
        if mask is not None:
            if self.zero is None:
                raise CompilerBug("a masked scalar load needs the zero word of the entry block")
            pointer = b.select(mask, pointer, self.zero)
        return self._loaded(b, dtype, b.op(elem, 0, f"load {elem}, {pointer}, align {dtype.size}"))

    def write_one(self, b: Builder, name: str, pointer: Reg, value: Reg) -> None:
        dtype = self.areas[name].dtype
        if dtype.kind == "bool":
            value = b.convert("zext", value, "i8")
        b.line(f"store {value}, {pointer}, align {dtype.size}")

    def read(self, b: Builder, name: str, row: bool, pointer: Reg, lanes: int, mask: Reg | None) -> Reg:
        """A vector from neighbours at a scalar pointer (``row``) or from a vector of pointers; lanes off are zero."""
        dtype = self.areas[name].dtype
        elem = STORED[dtype.name]
        shape = type_text(elem, lanes)
        zero = b.const(0, elem, lanes)
        if row and mask is None:
            value = b.op(elem, lanes, f"load {shape}, {pointer}, align {dtype.size}")
        elif row:
            value = _intrinsic(b, f"llvm.masked.load.v{lanes}{SHORT[elem]}.p0", dtype, [pointer], [mask, zero], zero)
        else:
            every = b.const(True, "i1", lanes)
            if mask is not None and dtype.size < 4:
                # No machine gathers small elements: with a mask there would be a branch a lane. A lane that is off
                # reads element 0, which exists if any lane is on.
                assert self.zero is not None
                pointer = b.select(mask, pointer, b.splat(self.zero, lanes))
                mask = None
            name = f"llvm.masked.gather.v{lanes}{SHORT[elem]}.v{lanes}p0"
            value = _intrinsic(b, name, dtype, [pointer], [mask or every, zero], zero)
        return self._loaded(b, dtype, value)

    def read_steps(self, b: Builder, name: str, first: Reg, step: int, lanes: int, mask: Reg | None) -> Reg:
        """A vector of elements that lie ``step`` apart, at most as many as lanes, or backwards: the rows that hold
        them, and nothing behind the last, shuffled.
        """
        elem = STORED[self.areas[name].dtype.name]
        if step < 0:
            back = range(lanes - 1, -1, -1)
            last = b.address(elem, first, b.const(step * (lanes - 1), "i64"))
            on = None if mask is None else b.shuffle(mask, mask, back)
            row = self.read_steps(b, name, last, -step, lanes, on)
            return b.shuffle(row, row, back)
        if step == 1:
            return self.read(b, name, True, first, lanes, mask)
        # Row k begins at k * lanes, but for the last, which ends where the last element lies.
        begins = [*(k * lanes for k in range(step - 1)), (step - 1) * (lanes - 1)]
        owners = [min(step * lane // lanes, step - 1) for lane in range(lanes)]
        found: Reg | None = None
        for k, begin in enumerate(begins):
            on = None
            if mask is not None:
                held = {step * lane - begin: lane for lane, own in enumerate(owners) if own == k}
                on = b.shuffle(mask, b.const(False, "i1", lanes), [held.get(place, lanes) for place in range(lanes)])
            row = self.read(b, name, True, b.address(elem, first, b.const(begin, "i64")), lanes, on)
            if found is not None:
                order = [step * lane if k == 1 else lane for lane in range(lanes)]  # what was found before
                for lane, own in enumerate(owners):
                    if own >= k:
                        order[lane] = lanes + step * lane - begin if own == k else 0
                row = b.shuffle(found, row, order)
            found = row
        assert found is not None
        return found

    def write_first(self, b: Builder, name: str, pointer: Reg, value: Reg, count: Reg) -> None:
        """Stores the first ``count`` lanes of ``value``, at most all: so many at once as each power of two in it."""
        if self.areas[name].dtype.kind == "bool":
            value = b.convert("zext", value, "i8")
        left, at, lanes = value, pointer, value.lanes
        self._first(b, count, value, pointer, [])
        while lanes > 1:
            lanes //= 2
            low, high = b.half_of(left, upper=False), b.half_of(left, upper=True)
            behind = b.address(value.elem, at, b.const(lanes, "i64"))
            left, at = self._first(b, count, low, at, [(low, high), (at, behind)])

    def _first(self, b: Builder, count: Reg, part: Reg, pointer: Reg, moved: list[tuple[Reg, Reg]]) -> list[Reg]:
        """Stores ``part`` if its lanes are a power of two in ``count``, and then gives the second of each pair."""
        is_on = b.compare("ne", b.bit_and(count, b.const(part.lanes or 1, "i64")), b.const(0, "i64"))

        def stored() -> list[Reg]:
            b.line(f"store {part}, {pointer}, align {BITS[part.elem] // 8}")
            return [after for _, after in moved]

        return b.guarded(is_on, [before for before, _ in moved], stored)

    def write(self, b: Builder, name: str, row: bool, pointer: Reg, value: Reg, mask: Reg | None) -> None:
        """Stores the lanes of ``value`` that are on."""
        dtype = self.areas[name].dtype
        if dtype.kind == "bool":
            value = b.convert("zext", value, "i8")
        if row and mask is None:
            b.line(f"store {value}, {pointer}, align {dtype.size}")
            return
        lanes = value.lanes
        symbol = f"llvm.masked.store.v{lanes}{SHORT[value.elem]}.p0"
        if not row:
            symbol = f"llvm.masked.scatter.v{lanes}{SHORT[value.elem]}.v{lanes}p0"
        on = b.const(True, "i1", lanes) if mask is None else mask
        _intrinsic(b, symbol, dtype, [value, pointer], [on], None)


def _intrinsic(
    b: Builder, symbol: str, dtype: DType, first: list[Reg], rest: list[Reg | None], result: Reg | None
) -> Reg:
    """Calls a masked memory intrinsic, whose pointer operand (the last of ``first``) carries the alignment."""
    others = [reg for reg in rest if reg is not None]
    back = result.type if result else "void"
    b.declarations[symbol] = f"declare {back} @{symbol}({', '.join(reg.type for reg in (*first, *others))})"
    pointer = f"{first[-1].type} align {dtype.size} {first[-1].name}"
    operands = ", ".join([*map(str, first[:-1]), pointer, *map(str, others)])
    if result is None:
        b.line(f"call void @{symbol}({operands})")
        return first[0]
    return b.op(result.elem, result.lanes, f"call {back} @{symbol}({operands})")
