"""Turns the values of a loop nest into names of tiles, with the loads and masks that they need."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from framefuse.codegen.optimise import Optimised
from framefuse.codegen.triton.bounds import bounds
from framefuse.codegen.triton.builder import TYPES, Builder, Tile
from framefuse.codegen.triton.casts import cast
from framefuse.codegen.triton.indices import Indices
from framefuse.codegen.triton.odd_rows import Turn
from framefuse.codegen.triton.pointwise import apply
from framefuse.codegen.triton.side_by_side import NONE, Run, put_together, taken_apart
from framefuse.codegen.triton.window_places import Windows
from framefuse.codegen.unsupported import Unsupported
from framefuse.ir.dtypes import BOOL, FLOAT32, FLOAT64, INT64, DType
from framefuse.ir.loops import Accumulator, Apply, Const, Index, Load, Local, Scalar, Store, Value
from framefuse.ir.loops.walk import statements
from framefuse.ir.numbers import Expr, Symbol

PLAIN = (0.0, math.inf, -math.inf)  # what floats of all widths hold


class Values:
    """The tiles that are known here. ``masks`` are the points of each dimension that exist (none where all do)."""

    def __init__(self, b: Builder, nest: Optimised, integer: str, rank: int, shape: tuple[int, ...]) -> None:
        kernel = nest.kernel
        self.numbers: Mapping[int, int] = nest.numbers
        self.b, self.integer, self.rank, self.shape, self.exact = b, integer, rank, shape, kernel.exact
        self.sides = [f"BLOCK{place}" for place in range(rank)]  # what the sizes of a tile are called
        written = (buffer.dtype for buffer in kernel.buffers if buffer.written)
        self.near = all(self.shortens(dtype) for dtype in written)
        self.indices = Indices(b, kernel)
        self.masks: dict[int, Tile] = {}
        self.ends: dict[int, Tile] = {}  # where the points of a dimension that has a mask end
        self.windows: Windows = {}
        self.runs = NONE
        self.loaded: dict[tuple[str, Expr], list[str]] = {}  # neighbours that were loaded, by the first of them
        self.locals: dict[str, Tile] = {}
        self.clamped: frozenset[str] = frozenset()  # locals that positions take as narrow integers
        self.positions: set[str] = set()  # locals that are index expressions, known as symbols
        self.buffers: dict[str, str] = {}
        self.aliases = {buffer.name: buffer.aliases for buffer in kernel.buffers if buffer.aliases}
        self.policies: dict[str, str] = {}  # the cache policy of a buffer where it is read or written here
        self.turn: Turn | None = None  # of a row that begins anywhere
        self.stored: dict[tuple[str, Expr], Tile] = {}  # what was stored where, until something else may be there
        self.dirty: set[str] = set()  # stored to since the last barrier
        self.shares = rank == 2 or any(isinstance(s, Accumulator) for s in statements(kernel.body))

    # ---- values

    def value(self, value: Value, wanted: str = "w0") -> Tile:
        """The tile of a value; a new one is called ``wanted``."""
        if isinstance(value, Const):
            return Tile(literal(value.value), value.dtype, constant=value.value)
        if isinstance(value, Local):
            known = value.name in self.positions
            return self.position(Symbol(value.name).expr, value.dtype) if known else self.locals[value.name]
        key = self, self.numbers[id(value)]
        return self.b.known(key) or self.b.remember(key, COMPUTED[type(value)](self, value, wanted))

    def _scalar(self, value: Scalar, wanted: str) -> Tile:
        number = self.indices.symbols[value.symbol]
        source = FLOAT64 if value.real else INT64
        wide = number.text if value.real else f"{number.text}.to(tl.int64)"
        return self._named(cast(wide, source, value.dtype), value.dtype, frozenset(), wanted)

    def _position(self, value: Index, wanted: str) -> Tile:
        return self.position(value.index, value.dtype, wanted)

    def _load(self, value: Load, wanted: str) -> Tile:
        condition = None if value.mask is None else self.value(value.mask)
        return self.load(value.buffer, value.index, value.dtype, condition, wanted)

    def _operation(self, value: Apply, wanted: str) -> Tile:
        match value:
            case Apply("cast", (Apply("div", (_, _)) as quotient,), dtype) if self.shortens(dtype):
                return self._quotient(quotient, dtype, wanted)
            case Apply("ge", (Index(falls), Const(0))):
                below = self._below(falls, wanted)
                if below is not None:
                    return below
            case Apply("where", (test, inside, Const() as fill)):
                bordered = self._bordered(test, inside, fill, wanted)
                if bordered is not None:
                    return bordered
        tiles = [self.value(arg) for arg in value.args]
        axes = frozenset[int]().union(*(tile.axes for tile in tiles))
        if value.op == "div" and not self.near and self._is_shared(*tiles):
            scale, inverse = self._inverse(tiles[1])
            opposite = self.b.once(("opposite", tiles[1].text), f"{tiles[1].text} * (0.0 - {scale})", "opposite")
            text = f"device.shared_quotient({tiles[0].typed}, {scale}, {opposite}, {inverse})"
            return self._named(text, value.dtype, axes, wanted)
        tile = self._named(apply(value.op, tiles, value.dtype, self.near), value.dtype, axes, wanted)
        return replace(tile, bounds=bounds(value.op, tiles)) if value.dtype.is_float else tile

    def _below(self, falls: Expr, wanted: str) -> Tile | None:
        """``falls >= 0`` of what falls along the tile, by what rises: so Triton sees which neighbours are on one side,
        and loads them as vectors.
        """
        rises = falls.taken_off()
        end, rising = self.indices.index(falls + rises + 1), self.indices.index(rises)
        if end.axes or not rising.axes:
            return None
        return self._named(f"{rising.text} < {end.text}", BOOL, rising.axes, wanted)

    def _bordered(self, test: Value, inside: Value, fill: Const, wanted: str) -> Tile | None:
        """What is loaded where the test holds and ``fill`` elsewhere, by the load itself: a border of a picture."""
        wide = inside.dtype
        if isinstance(inside, Apply) and inside.op == "cast" and wide.is_float and fill.value in PLAIN:
            (inside,) = inside.args
        if not isinstance(inside, Load) or inside.mask is None or not self._is_same(inside.mask, test):
            return None
        if inside.dtype is BOOL or (inside.dtype is not wide and not inside.dtype.is_float):
            return None
        given = self.value(test), wanted if inside.dtype is wide else "w0", literal(fill.value)
        return self.converted(self.load(inside.buffer, inside.index, inside.dtype, *given), wide)

    def _is_same(self, one: Value, other: Value) -> bool:
        """Whether two values are one, as the test of a border is that of what is loaded inside of it."""
        if isinstance(one, Local) and isinstance(other, Local):
            return one.name == other.name
        return id(one) in self.numbers and self.numbers[id(one)] == self.numbers.get(id(other))

    def shortens(self, dtype: DType) -> bool:
        """Whether a value that becomes one of ``dtype`` may differ from eager's in its last digits before that."""
        return dtype.is_float and dtype.size == 2 and not self.exact

    def _quotient(self, quotient: Apply, dtype: DType, wanted: str) -> Tile:
        """A quotient rounded to 16 bits: many values by one divisor are multiplied by its reciprocal."""
        x, y = (self.value(arg) for arg in quotient.args)
        tile = self.b.known((self, self.numbers[id(quotient)]))
        if tile is None:
            text = apply("div", (x, y), quotient.dtype)
            if self._is_shared(x, y):
                scale, inverse = self._inverse(y)
                text = f"{x.typed} * {inverse} * {scale}"
            tile = self._named(text, quotient.dtype, x.axes | y.axes, "w0")
        return self._named(cast(tile.text, quotient.dtype, dtype), dtype, tile.axes, wanted)

    def _is_shared(self, x: Tile, y: Tile) -> bool:
        """Whether many float32 are divided by one."""
        return y.dtype is FLOAT32 and y.constant is None and y.axes < x.axes

    def _inverse(self, y: Tile) -> tuple[str, str]:
        """A power of two that makes a divisor a normal number, and the reciprocal of that."""
        scale = self.b.once(("scale", y.text), f"device.scale_of({y.text})", "scale")
        return scale, self.b.once(("inverse", y.text), f"device.inverse({y.text}, {scale})", "inverse")

    def position(self, index: Expr, dtype: DType, wanted: str = "w0") -> Tile:
        """An index expression as a value."""
        place = self.indices.index(index)
        if place.constant is not None:
            return Tile(place.text, dtype, constant=place.constant)
        if dtype.kind == "bool" or dtype.is_float:
            raise Unsupported(f"an index as {dtype.name}")
        name = self.b.once((dtype.name, place.text), f"{place.text}.to({TYPES[dtype.name]})", wanted)
        return Tile(name, dtype, place.axes)

    def _named(self, text: str, dtype: DType, axes: frozenset[int], wanted: str) -> Tile:
        return Tile(text if text.isidentifier() else self.b.named(text, wanted), dtype, axes)

    def converted(self, tile: Tile, dtype: DType) -> Tile:
        """The tile in another dtype."""
        if tile.dtype is dtype:
            return tile
        text = cast(f"({tile.typed})" if tile.constant is not None else tile.text, tile.dtype, dtype)
        return Tile(self.b.once((dtype.name, tile.text), text, "w0"), dtype, tile.axes)

    def as_index(self, name: str, tile: Tile) -> None:
        """Lets an integer value stand in index expressions."""
        text = tile.typed
        if name in self.clamped:
            text = self.b.once(("position", text), f"{text}.to({self.integer})", "k0")
        self.indices.symbols[Symbol(name)] = Tile(text, INT64, tile.axes)

    # ---- masks

    def mask(self, axes: Iterable[int], *more: Tile) -> Tile:
        """What holds where all points of these dimensions exist and ``more`` is true; an empty text for always."""
        parts = [*(self.masks[axis] for axis in sorted(axes) if axis in self.masks), *more]
        texts = list(dict.fromkeys(part.text for part in parts))
        text = "".join(texts) if len(texts) < 2 else self.b.once(tuple(texts), " & ".join(texts), "mask")
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

    def forget(self, buffer: str) -> None:
        """Forgets what was stored to a buffer and to the one that it shares memory with."""
        names = {buffer, self.aliases.get(buffer)}
        for place in [place for place in self.stored if place[0] in names or self.aliases.get(place[0]) == buffer]:
            del self.stored[place]

    def pointer(self, buffer: str, where: Tile, axes: frozenset[int]) -> str:
        """The addresses, in a tile that differs along ``axes`` even if the positions do not."""
        if buffer not in self.buffers:
            raise Unsupported(f"the private row {buffer}")
        text = f"{self.buffers[buffer]} + {where.text}" if where.text != "0" else self.buffers[buffer]
        if axes - where.axes:
            text += f" + tl.full({self.tile_shape(axes)}, 0, {self.integer})"
        return text

    def load(
        self, buffer: str, index: Expr, dtype: DType, condition: Tile | None, wanted: str = "w0", other: str = "0"
    ) -> Tile:
        """The elements at ``index``: ``other`` where ``condition`` does not hold or the point does not exist."""
        if condition is None and (buffer, index) in self.stored:
            return self.stored[buffer, index]
        run = self.runs.loads.get((buffer, index)) if condition is None else None
        if run is not None:
            return Tile(self._neighbours(buffer, run)[run.number(index)], dtype, self._run_axes(run))
        where = self._where(buffer, index)
        more = [] if condition is None else [Tile(condition.typed, BOOL, condition.axes)]
        mask = self.mask(where.axes, *more)
        axes = where.axes | mask.axes
        if self.turn is not None and condition is None and self.turn.holds(index):
            where, mask = replace(where, text=self.turn.where), replace(mask, text=self.turn.some)
        pointer = self.pointer(buffer, where, axes)
        text = f"tl.load({pointer}, {mask.text}, other={other}" if mask.text else f"tl.load({pointer}"
        text += self._policy(buffer)
        self.settle({buffer})
        return Tile(self.b.named(text, wanted), dtype, axes)

    def _where(self, buffer: str, index: Expr) -> Tile:
        """The place of a load; in a window as a place and a distance from it, to be added to the address in turn."""
        moving, fixed = self.windows.get((buffer, index), (index, None))
        where = self.indices.index(moving)
        if fixed is None or fixed.constant == 0:
            return where
        return replace(where, text=f"{where.text} + {self.indices.index(fixed).text}", constant=None)

    # ---- neighbours that each point of the last dimension has

    def _run_axes(self, run: Run) -> frozenset[int]:
        """The dimensions of the tile of one of the neighbours."""
        assert self.runs.axis is not None
        last = self.rank - 1
        where = self.indices.index(run.first - self.runs.axis.expr * run.count)
        return self.mask({*where.axes, last}).axes | where.axes | {last}

    def _run_shape(self, run: Run) -> list[str]:
        axes = self._run_axes(run)
        return [side if place in axes else "1" for place, side in enumerate(self.sides)]

    def _run_place(self, buffer: str, run: Run) -> tuple[str, str]:
        """The addresses of all neighbours, and which of them exist."""
        assert self.runs.axis is not None
        last, size = self.rank - 1, self.sides[-1]
        points = f"tl.arange(0, {run.count} * {size})" + ("[None, :]" if last else "")
        points += "" if self.integer == "tl.int32" else f".to({self.integer})"
        wide = self.b.once(("wide", run.count), points, "r")
        where = self.indices.index(run.first - self.runs.axis.expr * run.count)
        parts = [self.mask(axis for axis in self._run_axes(run) if axis != last)]
        if last in self.masks:
            end = self.ends[last]
            text = self.b.once(("wide", run.count, end.text), f"{wide} < {end.text} * {run.count}", "inside")
            parts.append(Tile(text, BOOL, end.axes | {last}))
        mask = self.mask((), *(part for part in parts if part.text)).text
        return f"{self.buffers[buffer]} + {where.text} + {wide}", mask

    def _neighbours(self, buffer: str, run: Run) -> list[str]:
        """The tiles of the neighbours, loaded together at the first use of one."""
        key = buffer, run.first
        if key not in self.loaded:
            pointer, mask = self._run_place(buffer, run)
            text = f"tl.load({pointer}, {mask}, other=0" if mask else f"tl.load({pointer}"
            self.settle({buffer})
            whole = self.b.named(text + self._policy(buffer), "w0")
            self.loaded[key] = taken_apart(self.b, whole, run.count, self._run_shape(run))
        return self.loaded[key]

    def store_run(self, run: Run, stores: Sequence[Store]) -> None:
        """Writes neighbours together."""
        buffer, shape = stores[0].buffer, self._run_shape(run)
        pointer, mask = self._run_place(buffer, run)
        tiles = [self.value(each.value) for each in stores]
        axes = self._run_axes(run)
        if not all(tile.axes <= axes for tile in tiles):
            raise Unsupported(f"a store of many values to one element of {buffer}")
        whole = f"({', '.join(shape)},)"
        texts = [t.typed if t.axes == axes else f"tl.broadcast_to({t.typed}, {whole})" for t in tiles]
        if self.shares and (buffer in self.aliases or buffer in self.aliases.values()):
            self._barrier()
        text = f"tl.store({pointer}, {put_together(texts, shape)}"
        self.b.line((f"{text}, {mask}" if mask else text) + self._policy(buffer))
        self.forget(buffer)
        self.dirty.add(buffer)

    def _policy(self, buffer: str) -> str:
        """The end of a load or store."""
        return f', eviction_policy="{self.policies[buffer]}")' if buffer in self.policies else ")"

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
        turn = self.turn if self.turn is not None and self.turn.holds(index) else None
        where = where if turn is None else replace(where, text=turn.where)
        pointer = self.pointer(buffer, where, axes)
        if self.shares and (buffer in self.aliases or buffer in self.aliases.values()):
            # Other threads may still have to load what is overwritten here.
            self._barrier()
        whole = f"tl.store({pointer}, {value.typed}{self._policy(buffer)}"
        part = f"tl.store({pointer}, {value.typed}, {mask.text}{self._policy(buffer)}" if mask.text else whole
        if turn is None:
            self.b.line(part)
        else:
            self.b.either(turn.full, whole, part)
        self.forget(buffer)
        self.dirty.add(buffer)
        if value.constant is None and value.axes == axes:
            self.stored[buffer, index] = value

    def add(
        self, buffer: str, index: Expr, value: Tile, conditions: Sequence[Tile], points: frozenset[int]
    ) -> None:
        """Adds the value of each point of the dimensions ``points`` that exists, also where several meet."""
        where = self.indices.index(index)
        mask = self.mask(points, *(Tile(each.typed, BOOL, each.axes) for each in conditions)).text
        pointer = self.pointer(buffer, where, points)
        self.b.line(f'tl.atomic_add({pointer}, {value.typed}{f", {mask}" if mask else ""}, sem="relaxed")')
        self.forget(buffer)


# What computes each kind of value; constants and names have their tiles at hand.
COMPUTED: dict[type, Callable[[Values, Any, str], Tile]] = {
    Scalar: Values._scalar,
    Index: Values._position,
    Load: Values._load,
    Apply: Values._operation,
}


def literal(constant: bool | int | float) -> str:
    """A constant as Triton reads it."""
    if isinstance(constant, float) and not math.isfinite(constant):
        return f'float("{constant!r}")'
    return repr(constant)
