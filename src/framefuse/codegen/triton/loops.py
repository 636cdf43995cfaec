"""Turns the statements of a loop nest into lines of a kernel: tiles for vector loops, loops for the rest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from framefuse.codegen.optimise import Optimised
from framefuse.codegen.triton import reductions, squares
from framefuse.codegen.triton.blocks import Blocks, Dimension
from framefuse.codegen.triton.builder import TYPES, Builder, Tile
from framefuse.codegen.triton.casts import cast
from framefuse.codegen.triton.estimates import upper
from framefuse.codegen.triton.indices import Steady
from framefuse.codegen.triton.odd_rows import Row
from framefuse.codegen.triton.online import Pair, pairs
from framefuse.codegen.triton.pointwise import apply
from framefuse.codegen.triton.reductions import Running
from framefuse.codegen.triton.squares import Lanes
from framefuse.codegen.triton.values import Values
from framefuse.codegen.unsupported import Unsupported
from framefuse.ir.dtypes import BOOL, INT64
from framefuse.ir.loops import (
    Accumulate,
    Accumulator,
    AtomicAdd,
    Check,
    Index,
    Let,
    Load,
    Loop,
    LoopKind,
    Scratch,
    Statement,
    Store,
)
from framefuse.ir.loops.walk import statements, values_of
from framefuse.ir.numbers import Expr, Minimum, Symbol

ARG = ("argmax", "argmin")
WRITTEN_OUT = 16  # turns of a loop for one thread up to which its code is written for each
MOST = {"tl.int32": 2**31 - 1, "tl.int64": 2**63 - 1}


class Loops:
    """Writes statements at the point where ``values`` stands. ``open`` are the dimensions of the loops around it, and
    ``steady`` the numbers that divide the parallel axis at ends of programs alone. ``rows`` are the loops whose rows
    begin anywhere (``odd_rows.py``).
    """

    def __init__(
        self, b: Builder, values: Values, blocks: Blocks, nest: Optimised | None = None,
        steady: frozenset[Symbol] = frozenset(), rows: Mapping[int, Expr] | None = None,
    ) -> None:  # fmt: skip
        self.b, self.values, self.blocks, self.steady, self.rows = b, values, blocks, steady, rows or {}
        self.open: frozenset[int] = frozenset()
        self.running: dict[str, Running] = {}
        self.lanes: dict[str, Lanes] = {}  # of sums of squared distances
        self.dimensions: dict[int, Loop] = {}  # the loops that are open
        every = statements(nest.kernel.body) if nest is not None else ()
        vectors = [s for s in every if isinstance(s, Loop) and id(s) in blocks.loops and not s.kind.parallel]
        self.turns = [loop for loop in vectors if not blocks.loops[id(loop)].whole]
        together = pairs(nest) if nest is not None and len(self.turns) > 1 else []
        self.pairs = {id(pair.first): pair for pair in together if id(pair.first) in {id(loop) for loop in self.turns}}
        seconds = {id(pair.second) for pair in self.pairs.values()}
        self.turns = [loop for loop in self.turns if id(loop) not in seconds]
        self.places = {id(loop): place for place, loop in enumerate(self.turns)}
        self.summed: dict[int, str] = {}  # what the second loop of a pair would give

    def statements(self, body: Sequence[Statement]) -> None:
        last = {name: place for place, s in enumerate(body) for name in _fed((s,))}
        own = [s.name for s in body if isinstance(s, Accumulator)]  # in their order, in which they are folded
        for place, statement in enumerate(body):
            self.statement(statement)
            for name in own:
                if last.get(name) == place:
                    self.finish(self.running[name])
        for name in own:
            if name not in last:
                self.finish(self.running[name])

    def statement(self, statement: Statement) -> None:
        STATEMENTS[type(statement)](self, statement)

    def let(self, statement: Let) -> None:
        name, value = statement.name, statement.value
        if isinstance(value, Index) and value.dtype is INT64:
            where = self.values.indices.index(value.index)
            self.values.indices.symbols[Symbol(name)] = where
            self.values.positions.add(name)
            return
        tile = self.values.value(value, name)
        self.values.locals[name] = tile
        if tile.dtype is INT64:
            self.values.as_index(name, tile)

    def store(self, statement: Store) -> None:
        runs = self.values.runs
        if id(statement) in runs.joined:
            return
        if id(statement) in runs.stores:
            self.values.store_run(*runs.stores[id(statement)])
            return
        self.values.store(statement.buffer, statement.index, self.values.value(statement.value))

    def atomic_add(self, statement: AtomicAdd) -> None:
        condition = [] if statement.mask is None else [self.values.value(statement.mask)]
        self.values.add(statement.buffer, statement.index, self.values.value(statement.value), condition, self.open)

    def scratch(self, statement: Scratch) -> None:
        raise Unsupported("a private row")

    def check(self, statement: Check) -> None:
        ok = self.values.value(statement.ok)
        mask = self.values.mask(ok.axes).text
        more = f", mask={mask}" if mask else ""
        self.b.line(f'tl.device_assert({ok.typed}, "index out of bounds"{more})')

    # ---- accumulators

    def accumulator(self, statement: Accumulator) -> None:
        self.running[statement.name] = running = Running(statement, [], self.open, self.open)
        self.values.locals.pop(statement.name, None)
        self.lanes.pop(statement.name, None)
        if statement.running:
            self.start(running, self.open)

    def start(self, running: Running, axes: frozenset[int], turns: str = "") -> None:
        """Gives an accumulator its parts, before the outermost loop that feeds it; ``turns`` counts the turns of that
        loop if each of them feeds one term.
        """
        running.axes, running.turns = axes, turns
        name = running.accumulator.name
        if running.op == "squares":
            self.lanes[name] = lanes = squares.begin(self.b, self.values, running, axes, turns)
            running.parts.append(lanes.mean)
            return
        texts = [f"{reductions.identity(running.op, running.compared)}, {TYPES[running.compared.name]}"]
        if running.op in ARG:
            texts.append(f"{MOST[self.values.integer]}, {self.values.integer}")
        for text in texts:
            part = self.b.fresh(name if not running.parts else f"{name}_at")
            self.b.line(f"{part} = {self.values.full(text, axes)}")
            running.parts.append(part)

    def accumulate(self, statement: Accumulate) -> None:
        running = self.running[statement.name]
        value = self.values.converted(self.values.value(statement.value), running.compared)
        running.term = value.text if running.term is None else ""
        if running.op == "squares":
            self._accumulate_square(running, value)
            return
        if running.accumulator.running:
            self._scan(running, value)
            return
        fresh = not running.parts
        if fresh:
            self.start(running, self.open)
        if running.axes != self.open:
            raise Unsupported(f"{statement.name} is fed at several depths")
        mask = self.values.mask(running.axes - running.own).text
        if running.op in ARG:
            assert statement.index is not None
            self._accumulate_position(running, value, statement.index, mask, fresh)
            return
        (part,) = running.parts
        joined = reductions.joined(running.op, [part], [value.typed])
        self.b.line(f"{part} = tl.where({mask}, {joined}, {part})" if mask else f"{part} = {joined}")

    def _scan(self, running: Running, value: Tile) -> None:
        """What the terms up to each point of a turn come to, behind those of the turns before; the last of them is
        what the turns behind it begin with.
        """
        name, (carry,) = running.accumulator.name, running.parts
        if self.open == running.own:  # what the row begins with
            self.b.line(f"{carry} = {reductions.joined(running.op, [carry], [value.typed])}")
            return
        (place,) = self.open - running.own
        text, mask = value.typed, self.values.mask(self.open - running.own).text
        if place not in value.axes:
            text = f"tl.broadcast_to({text}, {self.values.tile_shape(value.axes | {place})})"
        if mask:
            text = f"tl.where({mask}, {text}, {reductions.identity(running.op, running.compared)})"
        here = self.b.named(reductions.scanned(running.op, carry, text, place), name)
        dimension = next(d for d in self.blocks.loops.values() if d.place == place)
        last = f"{self._range(dimension)} == BLOCK{place} - 1"
        total = f"tl.sum(tl.where({last}, {here}, {reductions.nothing(running.compared)}), {place})"
        wide = "" if self.values.rank < 2 else "[:, None]" if place == 1 else "[None, :]"
        self.b.line(f"{carry} = {total}{wide}")
        self.values.locals[name] = Tile(here, running.accumulator.dtype, self.open)

    def _accumulate_position(self, running: Running, value: Tile, index: Expr, mask: str, fresh: bool) -> None:
        at = self.values.indices.index(index)
        integer = self.values.integer
        position = f"tl.full((), {at.text}, {integer})" if at.constant is not None else f"{at.text}.to({integer})"
        if fresh:  # what there is to compare with is nothing
            for part, term in zip(running.parts, (value.typed, position), strict=True):
                text = f"tl.where({mask}, {term}, {part})" if mask else f"{term} + tl.zeros_like({part})"
                self.b.line(f"{part} = {text}")
            return
        if self._comes_later(running, index):
            take = self.b.named(reductions.later(running.op, running.parts, value.typed, MOST[integer]), "take")
            take = f"{take} & {mask}" if mask else take
            for part, term in zip(running.parts, (value.typed, position), strict=True):
                self.b.line(f"{part} = tl.where({take}, {term}, {part})")
            return
        best, where = (self.b.fresh(f"{name}_next") for name in running.parts)
        terms = [value.typed, position]
        self.b.line(f"{best}, {where} = {reductions.joined_positions(running.op, running.parts, terms)}")
        for part, after in zip(running.parts, (best, where), strict=True):
            self.b.line(f"{part} = tl.where({mask}, {after}, {part})" if mask else f"{part} = {after}")

    def _comes_later(self, running: Running, index: Expr) -> bool:
        """Whether each lane of a tile meets its positions in their order."""
        steps = (index.coefficient(self.dimensions[place].axis) for place in running.axes - running.own)
        return bool(running.turns) and all(step is not None and (step.constant or 0) > 0 for step in steps)

    def _accumulate_square(self, running: Running, value: Tile) -> None:
        name, known = running.accumulator.name, self.lanes.get(running.accumulator.name)
        if known is None:
            running.axes = self.open
        elif running.axes != self.open:
            raise Unsupported(f"{name} is fed at several depths")
        gone = running.axes - running.own
        mask = self.values.mask(gone).text
        if known is None:
            ends = [self.values.indices.index(self.dimensions[place].extent) for place in sorted(gone)]
            if any(end.axes & gone for end in ends):
                raise Unsupported("rows of several lengths in one tile")
            lanes = squares.whole(self.b, self.values, running, value, mask, [end.text for end in ends] or ["1"])
            self.lanes[name], running.parts = lanes, [lanes.mean]
            return
        squares.add(self.b, running, known, value, mask)

    def _count(self, body: Sequence[Statement], dimension: Dimension, end: str) -> None:
        """Behind a loop of turns to ``end``: how many values the lanes have seen that did not count for themselves."""
        for name in dict.fromkeys(s.name for s in body if isinstance(s, Accumulate)):
            lanes, running = self.lanes.get(name), self.running[name]
            if lanes is not None and lanes.count is None:
                mask = self.values.mask(running.axes - running.own - {dimension.place}).text
                lanes.count = squares.seen(self.b, running, end, self._range(dimension), dimension.place, mask)

    def finish(self, running: Running) -> None:
        """Folds what the loops left along the dimensions that are closed again."""
        if running.accumulator.running:
            return
        if running.result:
            self.values.locals[running.accumulator.name] = Tile(running.result, running.accumulator.dtype, running.own)
            return
        if not running.parts:
            self.start(running, running.own)
        dtype = running.accumulator.dtype
        if running.op == "squares":
            other = squares.partner(running, "sum", list(self.running.values()))
            total = None
            if other is not None:
                self.finish(other)
                total = other.result
            lanes = self.lanes[running.accumulator.name]
            running.result = squares.fold(self.b, self.values, running, lanes, total)
            self.values.locals[running.accumulator.name] = Tile(running.result, dtype, running.own)
            return
        gone = sorted(running.axes - running.own, reverse=True)
        parts = running.parts
        other = squares.partner(running, f"arg{running.op}", list(self.running.values()))
        if other is not None:
            self.finish(other)
            parts, gone = [other.extreme], []
        for place in gone:
            parts = self._folded(running, parts, place, len(gone) == self.values.rank)
        running.extreme = parts[0]
        held = INT64 if running.op in ARG else running.compared
        text = f"{parts[-1]}.to(tl.int64)" if running.op in ARG else cast(parts[-1], held, dtype)
        running.result = text if text.isidentifier() else self.b.named(text, running.accumulator.name)
        self.values.locals[running.accumulator.name] = Tile(running.result, dtype, running.own)

    def _folded(self, running: Running, parts: Sequence[str], place: int, to_scalar: bool) -> list[str]:
        wide = "" if to_scalar else "[:, None]" if place == 1 else "[None, :]"
        names = [self.b.fresh(part) for part in running.parts]
        if running.op in ARG:
            best, where = names
            self.b.line(f"{best} = {reductions.extreme(running.op, parts[0], place)}{wide}")
            first = reductions.first_of(parts, best, place, MOST[self.values.integer])
            self.b.line(f"{where} = {first}{wide}")
            return names
        text = reductions.folded(running.op, running.compared, parts[0], place)
        self.b.line(f"{names[0]} = {f'({text}){wide}' if ' != ' in text else text + wide}")
        return names

    # ---- loops

    def loop(self, statement: Loop) -> None:
        if statement.extent.constant == 0:
            return
        dimension = self.blocks.loops.get(id(statement))
        saved = dict(self.values.locals), dict(self.values.indices.symbols), dict(self.values.masks), self.open
        if statement.kind.parallel:
            self.parallel(statement, dimension)
        elif id(statement) in self.summed:
            self._summed_before(statement)
        elif id(statement) in self.pairs and dimension is not None:
            self._pair(self.pairs[id(statement)], dimension)
        elif dimension is not None:
            self.vector(statement, dimension)
        else:
            self.serial(statement)
        self.values.locals, self.values.indices.symbols, self.values.masks, self.open = saved

    def parallel(self, statement: Loop, dimension: Dimension | None) -> None:
        integer = self.values.integer
        program = "tl.program_id(0)" if integer == "tl.int32" else f"tl.program_id(0).to({integer})"
        name = self.b.fresh("x")
        if dimension is None:
            self.b.line(f"{name} = {program}")
            self.values.indices.symbols[statement.axis] = Tile(name, INT64)
        else:
            start, along = f"{program} * BLOCK{dimension.place}", self._range(dimension)
            if self.blocks.by_column:  # Triton takes one column a thread where it does not see that they are neighbours
                along = self.b.named(f"tl.max_contiguous({along}, (1, 1))", "column")
            if self.steady:
                start = self.b.named(start, "first")
                self.values.indices.steady = Steady(statement.axis.expr, self.steady, start, along, dimension.place)
            self.b.line(f"{name} = {start} + {along}")
            self._enter(statement, dimension, name)
            self._limit(statement.extent, dimension, name)
        self.statements(statement.body)

    def _pair(self, pair: Pair, dimension: Dimension) -> None:
        """The largest element of a row and the sum of exponentials of distances from it, by one loop."""
        largest, held = self.running[pair.largest.name], TYPES[pair.total.dtype.name]
        axes = self.open | {dimension.place}
        total = self.b.named(self.values.full(f"0.0, {held}", axes), pair.total.name)

        def body(inside: Sequence[Statement]) -> None:
            for statement in inside:
                if isinstance(statement, Accumulate) and statement.name == pair.largest.name:
                    value = self.values.converted(self.values.value(statement.value), largest.compared)
                    mask = self.values.mask(largest.axes - largest.own).text
                    (part,) = largest.parts
                    text = f'tl.where({mask}, {value.typed}, float("-inf"))' if mask else value.typed
                    term = self.b.named(text, "term")
                    away = Tile(self.b.named(f"0.0 - tl.abs({term} - {part})", "away"), pair.total.dtype, axes)
                    share = self.b.named(apply("exp", [away], pair.total.dtype, self.values.near), "share")
                    self.b.line(f"{total} = device.rescaled({total}, {part}, {term}, {share})")
                    self.b.line(f"{part} = device.largest({part}, {term})")
                else:
                    self.statement(statement)

        self.vector(pair.first, dimension, body)
        self.finish(largest)
        (part,) = largest.parts
        away = Tile(self.b.named(f"{part} - {largest.result}", "away"), pair.total.dtype, axes)
        share = self.b.named(apply("exp", [away], pair.total.dtype, self.values.near), "share")
        text = self._sum(f"tl.where({part} == {largest.result}, {total}, {total} * {share})", axes - largest.own)
        infinite = f'tl.where({largest.result} > 0.0, float("inf"), 0.0)' if pair.safe else 'float("nan")'
        text = f'tl.where(tl.abs({largest.result}) == float("inf"), {infinite}, {text})'
        self.summed[id(pair.second)] = self.b.named(text, pair.total.name)

    def _summed_before(self, statement: Loop) -> None:
        (name,) = (s.name for s in statement.body if isinstance(s, Accumulate))
        running = self.running[name]
        running.result = self.summed[id(statement)]

    def _sum(self, text: str, gone: Iterable[int]) -> str:
        """The sum of a tile along dimensions."""
        places = sorted(gone, reverse=True)
        for place in places:
            wide = "" if len(places) == self.values.rank else "[:, None]" if place == 1 else "[None, :]"
            text = f"tl.sum({text}, {place}){wide}"
        return text

    def vector(
        self, statement: Loop, dimension: Dimension, inside: Callable[[Sequence[Statement]], None] | None = None
    ) -> None:
        """A dimension of the tile, in turns where it is longer; ``inside`` writes the body in another way."""
        integer = self.values.integer
        points = self._range(dimension) + ("" if integer == "tl.int32" else f".to({integer})")
        if dimension.whole:
            name = self.b.once(("points", dimension.place), points, "r")
            self._enter(statement, dimension, name)
            self._limit(statement.extent, dimension, name)
            self.statements(statement.body)
            return
        extent = self.values.indices.index(statement.extent)
        end = extent.text
        if extent.axes:
            bound = upper(statement.extent)
            if bound is None:
                end = self.b.once(("largest", extent.text), _largest(extent, self.values.rank), "end")
            else:
                end = str(bound)
        start = self.b.fresh("start")
        block = f"BLOCK{dimension.place}"
        row = None
        if id(statement) in self.rows:
            row = Row.begun(self.b, self.values.indices, statement, self.rows[id(statement)])
            end = row.stop
        self._before(statement.body, dimension.place, f"{start} // {block}")
        turns = f"range(0, {end}, {block})"
        if self.blocks.stages > 1:
            turns = f"tl.{turns[:-1]}, num_stages={self.blocks.stages})"
        back = self.b.fresh("back") if self._goes_back(statement) else start
        with self.b.loop(f"for {back} in {turns}:"), self._kept_near(statement):
            if back != start:
                self.b.line(f"{start} = ({end} - 1) // {block} * {block} - {back}")
            moved = f"{start} + {self._range(dimension)}"
            moved = moved if integer == "tl.int32" else f"({moved}).to({integer})"
            if row is not None:
                along = self.b.named(moved, "along")
                moved = f"{along} - {row.shift}"
            name = self.b.named(moved, "r")
            self._enter(statement, dimension, name)
            self._limit(statement.extent, dimension, name)
            if row is not None:
                self.values.turn = row.turn(self.b, start, block, along)
                self._not_before(dimension, name)
            (inside or self.statements)(statement.body)
            self.values.turn = None
        self._forget(statement.body)
        self._count(statement.body, dimension, extent.text)

    def _goes_back(self, statement: Loop) -> bool:
        """Whether the turns of a row that is read again begin at its end, which was read last: every other time, and
        where no accumulator minds the order.
        """
        fed = [self.running[name] for name in _fed(statement.body) if name in self.running]
        if self.values.rank > 1 or any(one.accumulator.running or one.op in (*ARG, "squares") for one in fed):
            return False
        return self.places.get(id(statement), 0) % 2 == 1

    @contextmanager
    def _kept_near(self, statement: Loop) -> Iterator[None]:
        """Tells caches, where a row is read more than once, what is read again and what is not."""
        place = self.places.get(id(statement))
        if self.values.rank == 1 and place is not None:
            before, after = (set().union(*map(_read, part)) for part in (self.turns[:place], self.turns[place + 1 :]))
            read = _read(statement)
            self.values.policies |= dict.fromkeys(read & before, "evict_first")
            self.values.policies |= dict.fromkeys(read & after, "evict_last")
            if read & before and not after:
                written = (s.buffer for s in statements(statement.body) if isinstance(s, Store))
                self.values.policies |= dict.fromkeys(written, "evict_first")
        yield
        self.values.policies.clear()

    def serial(self, statement: Loop) -> None:
        extent = self.values.indices.index(statement.extent)
        if extent.axes:
            raise Unsupported("a serial loop whose length differs inside a tile")
        self._before(statement.body, None)
        turn = self.b.fresh("turn")
        few = 0 < (extent.constant or 0) <= WRITTEN_OUT and not _has_tiles(statement)
        turns = "tl.static_range" if few else "range"
        with self.b.loop(f"for {turn} in {turns}(0, {extent.text}):"):
            name = self.b.fresh("s")
            self.b.line(f"{name} = tl.full((), {turn}, {self.values.integer})")
            self.values.indices.symbols[statement.axis] = Tile(name, INT64)
            self.statements(statement.body)
        self._forget(statement.body)

    def _before(self, body: Sequence[Statement], place: int | None, turns: str = "") -> None:
        """Starts the accumulators that a loop is about to feed, and forgets loads that its turns make stale. ``turns``
        counts the turns before the one at hand.
        """
        inside = frozenset() if place is None else frozenset((place,))
        for name, axes in self._feeding(body, self.open | inside).items():
            running = self.running.get(name)
            if running is not None and not running.parts:
                once = sum(isinstance(s, Accumulate) and s.name == name for s in body) == 1
                self.start(running, axes, turns if once else "")
        self.values.settle({v.buffer for v in values_of(body) if isinstance(v, Load)})
        self._forget(body)

    def _forget(self, body: Sequence[Statement]) -> None:
        """Forgets, at both ends of a loop, what was loaded from where its turns store."""
        for name in {s.buffer for s in statements(body) if isinstance(s, Store)}:
            self.values.forget(name)

    def _feeding(self, body: Sequence[Statement], axes: frozenset[int]) -> dict[str, frozenset[int]]:
        """The accumulators that are fed in statements, with the dimensions open where they are."""
        fed: dict[str, frozenset[int]] = {}
        for statement in body:
            if isinstance(statement, Accumulate):
                fed[statement.name] = axes
            elif isinstance(statement, Loop):
                dimension = self.blocks.loops.get(id(statement))
                inside = axes if dimension is None else axes | {dimension.place}
                fed.update(self._feeding(statement.body, inside))
        own = {s.name for s in statements(body) if isinstance(s, Accumulator)}
        return {name: where for name, where in fed.items() if name not in own}

    # ---- dimensions

    def _range(self, dimension: Dimension) -> str:
        """The points of one turn of a loop, in its dimension of the tile."""
        text = f"tl.arange(0, BLOCK{dimension.place})"
        if self.blocks.rank == 2:
            text += "[:, None]" if dimension.place == 0 else "[None, :]"
        return text

    def _enter(self, statement: Loop, dimension: Dimension, name: str) -> None:
        self.open |= {dimension.place}
        self.dimensions[dimension.place] = statement
        self.values.indices.symbols[statement.axis] = Tile(name, INT64, frozenset((dimension.place,)))

    def _limit(self, extent: Expr, dimension: Dimension, name: str) -> None:
        """The mask of the points that exist; none where that is every one."""
        constant = extent.constant
        if constant is not None and constant % dimension.block == 0:
            self.values.masks.pop(dimension.place, None)
            return
        self.values.ends[dimension.place] = end = self.values.indices.index(_without_bound(extent, dimension.block))
        mask = self.b.once((name, end.text), f"{name} < {end.text}", "inside")
        self.values.masks[dimension.place] = Tile(mask, BOOL, end.axes | {dimension.place})

    def _not_before(self, dimension: Dimension, name: str) -> None:
        """The same of a turn that may begin before its row."""
        ends = self.values.masks[dimension.place]
        mask = self.b.named(f"{ends.text} & ({name} >= 0)", "inside")
        self.values.masks[dimension.place] = replace(ends, text=mask)


# What writes each kind of statement.
STATEMENTS: dict[type, Callable[[Loops, Any], None]] = {
    Let: Loops.let,
    Accumulator: Loops.accumulator,
    Accumulate: Loops.accumulate,
    Store: Loops.store,
    AtomicAdd: Loops.atomic_add,
    Scratch: Loops.scratch,
    Check: Loops.check,
    Loop: Loops.loop,
}


def _without_bound(extent: Expr, block: int) -> Expr:
    """``n`` of ``min(block, n)``: points beyond the block are not in the tile."""
    if len(extent.terms) == 1 and extent.terms[0][1] == 1 and len(extent.terms[0][0]) == 1:
        atom = extent.terms[0][0][0]
        if isinstance(atom, Minimum):
            for bound, other in ((atom.left, atom.right), (atom.right, atom.left)):
                if bound.constant == block:
                    return other
    return extent


def _largest(extent: Tile, rank: int) -> str:
    text = extent.text
    for place in range(rank - 1, -1, -1):
        text = f"tl.max({text}, {place})"
    return text


def _read(loop: Loop) -> set[str]:
    return {value.buffer for value in values_of(loop.body) if isinstance(value, Load)}


def _fed(body: Sequence[Statement]) -> set[str]:
    return {s.name for s in statements(body) if isinstance(s, Accumulate)}


def _has_tiles(loop: Loop) -> bool:
    """Whether a loop inside of it is a dimension of the tile."""
    return any(isinstance(s, Loop) and s.kind is LoopKind.VECTOR for s in statements(loop.body))
