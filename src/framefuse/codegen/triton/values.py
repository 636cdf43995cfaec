"""Turns the values of a loop nest into names of tiles, with the loads and masks that they need."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from framefuse.codegen.triton.bounds import bounds
from framefuse.codegen.triton.builder import TYPES, Builder, Tile
from framefuse.codegen.triton.casts import cast
from framefuse.codegen.triton.indices import Indices
from framefuse.codegen.triton.pointwise import apply
from framefuse.codegen.unsupported import Unsupported
from framefuse.ir.dtypes import BOOL, FLOAT32, FLOAT64, INT64, DType
from framefuse.ir.loops import Accumulator, Apply, Const, Index, Kernel, Load, Local, Scalar, Value
from framefuse.ir.loops.walk import statements
from framefuse.ir.numbers import Expr, Symbol


class Values:
    """The tiles that are known here. ``masks`` are the points of each dimension that exist (none where all do)."""

    def __init__(self, b: Builder, kernel: Kernel, integer: str, rank: int, shape: tuple[int, ...]) -> None:
        self.b, self.integer, self.rank, self.shape, self.exact = b, integer, rank, shape, kernel.exact
        self.sides = [f"BLOCK{place}" for place in range(rank)]  # what the sizes of a tile are called
        written = (buffer.dtype for buffer in kernel.buffers if buffer.written)
        self.near = all(self.shortens(dtype) for dtype in written)
        self.indices = Indices(b, kernel)
        self.masks: dict[int, Tile] = {}
        self.locals: dict[str, Tile] = {}
        self.positions: set[str] = set()  # locals that are index expressions, known as symbols
        self.buffers: dict[str, str] = {}
        self.aliases = {buffer.name: buffer.aliases for buffer in kernel.buffers if buffer.aliases}
        self.versions: dict[str, int] = {}
        self.dirty: set[str] = set()  # stored to since the last barrier
        self.shares = rank == 2 or any(isinstance(s, Accumulator) for s in statements(kernel.body))

    # ---- values

    def value(self, value: Value, wanted: str = "w0") -> Tile:
        """The tile of a value; a new one is called ``wanted``."""
        return self._value(value, {}, wanted)

    def _value(self, value: Value, done: dict[int, Tile], wanted: str = "w0") -> Tile:
        found = done.get(id(value))
        if found is None:
            found = done[id(value)] = self._compute(value, done, wanted)
        return found

    def _compute(self, value: Value, done: dict[int, Tile], wanted: str) -> Tile:
        match value:
            case Const(constant, dtype):
                return Tile(literal(constant), dtype, constant=constant)
            case Scalar(symbol, dtype, real):
                number = self.indices.symbols[symbol]
                source = FLOAT64 if real else INT64
                wide = number.text if real else f"{number.text}.to(tl.int64)"
                return self._named(cast(wide, source, dtype), dtype, frozenset(), wanted)
            case Index(index, dtype):
                return self.position(index, dtype, wanted)
            case Local(name, dtype):
                return self.position(Symbol(name).expr, dtype) if name in self.positions else self.locals[name]
            case Load(buffer, index, dtype, mask):
                condition = None if mask is None else self._value(mask, done)
                return self.load(buffer, index, dtype, condition, wanted)
            case Apply("cast", (Apply("div", (_, _)) as quotient,), dtype) if self.shortens(dtype):
                return self._quotient(quotient, dtype, done, wanted)
            case Apply(op, args, dtype):
                tiles = [self._value(arg, done) for arg in args]
                axes = frozenset[int]().union(*(tile.axes for tile in tiles))
                tile = self._named(apply(op, tiles, dtype, self.near), dtype, axes, wanted)
                return replace(tile, bounds=bounds(op, tiles)) if dtype.is_float else tile
        raise Unsupported(f"the value {value!r}")

    def shortens(self, dtype: DType) -> bool:
        """Whether a value that becomes one of ``dtype`` may differ from eager's in its last digits before that."""
        return dtype.is_float and dtype.size == 2 and not self.exact

    def _quotient(self, quotient: Apply, dtype: DType, done: dict[int, Tile], wanted: str) -> Tile:
        """A quotient rounded to 16 bits: many values by one divisor are multiplied by its reciprocal."""
        x, y = (self._value(arg, done) for arg in quotient.args)
        text = apply("div", (x, y), quotient.dtype)
        if quotient.dtype is FLOAT32 and y.constant is None and y.axes < x.axes and id(quotient) not in done:
            scale = self.b.named(f"device.scale_of({y.text})", "scale")
            text = f"{x.typed} * {self.b.named(f'device.inverse({y.text}, {scale})', 'inverse')} * {scale}"
        tile = self._named(text, quotient.dtype, x.axes | y.axes, "w0")
        return self._named(cast(tile.text, quotient.dtype, dtype), dtype, tile.axes, wanted)

    def position(self, index: Expr, dtype: DType, wanted: str = "w0") -> Tile:
        """An index expression as a value."""
        found = self.indices.index(index)
        if found.constant is not None:
            return Tile(found.text, dtype, constant=found.constant)
        if dtype.kind == "bool" or dtype.is_float:
            raise Unsupported(f"an index as {dtype.name}")
        return self._named(f"{found.text}.to({TYPES[dtype.name]})", dtype, found.axes, wanted)

    def _named(self, text: str, dtype: DType, axes: frozenset[int], wanted: str) -> Tile:
        return Tile(text if text.isidentifier() else self.b.named(text, wanted), dtype, axes)

    def converted(self, tile: Tile, dtype: DType) -> Tile:
        """The tile in another dtype."""
        if tile.dtype is dtype:
            return tile
        text = cast(f"({tile.typed})" if tile.constant is not None else tile.text, tile.dtype, dtype)
        return self._named(text, dtype, tile.axes, "w0")

    def as_index(self, name: str, tile: Tile) -> None:
        """Lets an integer value stand in index expressions."""
        self.indices.symbols[Symbol(name)] = Tile(tile.typed, INT64, tile.axes)

    # ---- masks

    def mask(self, axes: Iterable[int], *more: Tile) -> Tile:
        """What holds where all points of these dimensions exist and ``more`` is true; an empty text for always."""
        parts = [*(self.masks[axis] for axis in sorted(axes) if axis in self.masks), *more]
        texts = list(dict.fromkeys(part.text for part in parts))
        text = "".join(texts) if len(texts) < 2 else self.b.named(" & ".join(texts), "mask")
        return Tile(text, BOOL, frozenset[int]().union(*(part.axes for part in parts)))

    def full(self, text: str, axes: frozenset[int]) -> str:
        """The expression of a constant of ``text`` and type in all elements along these dimensions."""
        return f"tl.full({self.tile_shape(axes)}, {text})"

    def tile_shape(self, axes: frozenset[int]) -> str:
        """The shape of a tile that differs along these dimensions."""
        if not axes:
            return "()"
        sizes = [self.sides[place] if place in axes else "1" for place in range(self.rank)]
        return f"({', '.join(sizes)}{',' if self.rank == 1 else ''})"

    # ---- memory

    def _version(self, buffer: str) -> str:
        return f" #{self.versions.get(buffer, 0)}"

    def forget(self, buffer: str) -> None:
        """Forgets what was loaded from a buffer and from the one that it shares memory with."""
        for name in self.buffers:
            if name == buffer or self.aliases.get(name) == buffer or self.aliases.get(buffer) == name:
                self.versions[name] = self.versions.get(name, 0) + 1

    def pointer(self, buffer: str, where: Tile, axes: frozenset[int]) -> str:
        """The addresses, in a tile that differs along ``axes`` even if the positions do not."""
        if buffer not in self.buffers:
            raise Unsupported(f"the private row {buffer}")
        text = f"{self.buffers[buffer]} + {where.text}" if where.text != "0" else self.buffers[buffer]
        if axes - where.axes:
            text += f" + tl.full({self.tile_shape(axes)}, 0, {self.integer})"
        return text

    def load(self, buffer: str, index: Expr, dtype: DType, condition: Tile | None, wanted: str = "w0") -> Tile:
        """The elements at ``index``: zero where ``condition`` does not hold or the point does not exist."""
        where = self.indices.index(index)
        more = [] if condition is None else [Tile(condition.typed, BOOL, condition.axes)]
        mask = self.mask(where.axes, *more)
        axes = where.axes | mask.axes
        text = _load(self.pointer(buffer, where, axes), mask.text)
        known = self.b.known(text, self._version(buffer))
        if known is None:
            self.settle({buffer})
        return Tile(known or self.b.named(text, wanted, self._version(buffer)), dtype, axes)

    def settle(self, buffers: set[str]) -> None:
        """Waits, before loads from these buffers, for what other threads of the program stored there."""
        if buffers & self.dirty:
            self._barrier()

    def _barrier(self) -> None:
        """What any thread of the program has loaded or stored before is done before what comes after."""
        self.b.line("tl.debug_barrier()")
        self.dirty.clear()

    def store(self, buffer: str, index: Expr, value: Tile) -> None:
        """Writes the points that exist; what is loaded from there later is the value itself."""
        where = self.indices.index(index)
        axes = where.axes | value.axes
        if axes != where.axes:
            raise Unsupported(f"a store of many values to one element of {buffer}")
        mask = self.mask(axes)
        axes |= mask.axes
        pointer = self.pointer(buffer, where, axes)
        if self.shares and (buffer in self.aliases or buffer in self.aliases.values()):
            # Other threads may still have to load what is overwritten here.
            self._barrier()
        self.b.line(f"tl.store({pointer}, {value.typed}{f', {mask.text}' if mask.text else ''})")
        self.forget(buffer)
        self.dirty.add(buffer)
        if value.constant is None and value.axes == axes:
            self.b.remember(_load(pointer, mask.text), self._version(buffer), value.text)

    def add(
        self, buffer: str, index: Expr, value: Tile, conditions: Sequence[Tile], points: frozenset[int]
    ) -> None:
        """Adds the value of each point of the dimensions ``points`` that exists, also where several meet."""
        where = self.indices.index(index)
        mask = self.mask(points, *(Tile(each.typed, BOOL, each.axes) for each in conditions)).text
        pointer = self.pointer(buffer, where, points)
        self.b.line(f'tl.atomic_add({pointer}, {value.typed}{f", {mask}" if mask else ""}, sem="relaxed")')
        self.forget(buffer)


def _load(pointer: str, mask: str) -> str:
    return f"tl.load({pointer}, {mask}, other=0)" if mask else f"tl.load({pointer})"


def literal(constant: bool | int | float) -> str:
    """A constant as Triton reads it."""
    if isinstance(constant, float) and not math.isfinite(constant):
        return f'float("{constant!r}")'
    return repr(constant)
