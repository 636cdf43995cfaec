"""Turns what a kernel loads of an input, where it writes a part of it, into loads of that part, element by element."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from framefuse.fuse.addressing.ranges import ONE, address, extreme, nonnegative
from framefuse.fuse.memory.draft import Value
from framefuse.ir.loops import Buffer, Index, Let, Load, Loop, Statement, Store
from framefuse.ir.loops import Value as Computed
from framefuse.ir.loops.rewrite import with_parts, with_values
from framefuse.ir.loops.walk import in_order, operands, position, statements, values
from framefuse.ir.numbers import Expr, Symbol
from framefuse.ir.schedule import Item, RunKernel

Loops = tuple[Loop, ...]  # around a statement, outermost first


@dataclass(frozen=True, slots=True)
class Region:
    """A part of the input in buffer ``own``: ``part`` is its own buffer, ``first`` and ``last`` are its elements'
    places in the input's memory.
    """

    own: int
    part: int
    first: Expr
    last: Expr


def region(buffers: Sequence[Value], part: int) -> Region:
    """What the buffer ``part``, a view of an input, takes of it."""
    value = buffers[part]
    assert value.offset is not None, "a view has an offset"
    last = address([size - ONE for size in value.sizes], value.strides)
    return Region(value.base, part, value.offset, value.offset + last)


def spares(item: Item, where: Region) -> bool:
    """Whether a kernel loads no element of the part from the input's buffer."""
    if not isinstance(item, RunKernel):
        return False
    if where.own not in item.buffers:
        return True
    walk = _Walk(item)
    touched = _touches(item.kernel.body, walk.name(where.own), ())
    return all(walk.is_apart(touch, loops, where) for touch, loops in touched)


def through(item: RunKernel, where: Region, written: int) -> RunKernel | None:
    """The kernel, which writes the part as the buffer ``written``, with loads from the part's buffer of the elements
    that it writes; None where it loads others of them from the input's buffer.
    """
    return item if where.own not in item.buffers else _Through(item, where, written).made()


def _touches(body: Sequence[Statement], buffer: str, loops: Loops) -> Iterator[tuple[Load | Store, Loops]]:
    """Every load from a buffer and store to it with the loops around it."""
    for statement in body:
        if isinstance(statement, Loop):
            yield from _touches(statement.body, buffer, (*loops, statement))
            continue
        parts = (part for value in values(statement) for part in in_order(value, ()))
        yield from ((part, loops) for part in parts if isinstance(part, Load) and part.buffer == buffer)
        if isinstance(statement, Store) and statement.buffer == buffer:
            yield statement, loops


class _Walk:
    """Places in memory that a kernel touches, over the depths of loops and the graph's symbols."""

    def __init__(self, item: RunKernel) -> None:
        self.item = item
        self.numbers = item.sizes
        self.digits: dict[Symbol, Expr] = {}  # positions that are decoded from a loop's axis,
        self.decoded: dict[Symbol, Loop] = {}  # and the loop in which each is
        for statement in statements(item.kernel.body):
            for each in statement.body if isinstance(statement, Loop) else ():
                if isinstance(each, Let) and isinstance(each.value, Index) and isinstance(statement, Loop):
                    name = Symbol(each.name)
                    self.digits[name], self.decoded[name] = each.value.index, statement

    def name(self, number: int) -> str:
        return self.item.kernel.buffers[self.item.buffers.index(number)].name

    def place(self, index: Expr, loops: Loops) -> Expr | None:
        """An index over depths; None where what the kernel computes is part of it."""
        depths = {loop.axis: _depth(number).expr for number, loop in enumerate(loops)}
        known = {**self.numbers, **depths}
        while not self.digits.keys().isdisjoint(index.symbols):
            index = index.substitute(self.digits)
        return index.substitute(known) if index.symbols <= known.keys() else None

    def is_apart(self, touch: Load | Store, loops: Loops, where: Region) -> bool:
        """Whether a load from the input's buffer gives no element of the part."""
        place = self.place(touch.index, loops)
        extents = {_depth(n): self.place(loop.extent, loops[:n]) for n, loop in enumerate(loops)}
        if place is None or None in extents.values():
            return False
        known = {axis: extent for axis, extent in extents.items() if extent is not None}
        low, high = (extreme(place, known, top) for top in (False, True))
        behind = low is not None and nonnegative(low - where.last - ONE)
        return behind or (high is not None and nonnegative(where.first - high - ONE))


class _Through(_Walk):
    """Makes the statements of a kernel anew."""

    def __init__(self, item: RunKernel, where: Region, written: int) -> None:
        super().__init__(item)
        self.where = where
        self.own, self.out = self.name(where.own), self.name(written)
        self.part = f"{self.own}p{where.part}"
        self.stays = self.moves = self.fails = False  # loads of the input, loads of the part, loads that forbid it

    def made(self) -> RunKernel | None:
        item, kernel = self.item, self.item.kernel
        touched = _touches(kernel.body, self.out, ())
        self.store, self.loops = next(each for each in touched if isinstance(each[0], Store))
        body = self._body(kernel.body, ())
        if self.fails or not self.moves:
            return None if self.fails else item
        dtype = kernel.buffers[item.buffers.index(self.where.own)].dtype
        pairs = [
            (buffer, number)
            for buffer, number in zip(kernel.buffers, item.buffers, strict=True)
            if self.stays or number != self.where.own
        ]
        pairs.append((Buffer(self.part, dtype, False), self.where.part))
        new = replace(kernel, buffers=tuple(buffer for buffer, _ in pairs), body=body)
        return replace(item, kernel=new, buffers=tuple(number for _, number in pairs))

    def _body(self, body: Sequence[Statement], loops: Loops) -> tuple[Statement, ...]:
        return tuple(self._statement(statement, loops) for statement in body)

    def _statement(self, statement: Statement, loops: Loops) -> Statement:
        if isinstance(statement, Loop):
            return replace(statement, body=self._body(statement.body, (*loops, statement)))
        parts = [self._value(value, loops) for value in values(statement)]
        return with_values(statement, parts, position(statement))

    def _value(self, root: Computed, loops: Loops) -> Computed:
        done: dict[int, Computed] = {}
        for value in in_order(root, done):
            made = with_parts(value, [done[id(part)] for part in operands(value)], position(value))
            done[id(value)] = self._load(made, loops) if isinstance(made, Load) else made
        return done[id(root)]

    def _load(self, load: Load, loops: Loops) -> Load:
        if load.buffer != self.own:
            return load
        place, stored = self.place(load.index, loops), self.place(self.store.index, self.loops)
        same = place is not None and stored is not None and place is self.where.first + stored
        digits = self.store.index.symbols & self.digits.keys()
        known = all(any(loop is self.decoded[digit] for loop in loops) for digit in digits)
        if same and known and len(loops) >= len(self.loops):
            self.moves = True
            axes = {loop.axis: loops[number].axis.expr for number, loop in enumerate(self.loops)}
            return replace(load, buffer=self.part, index=self.store.index.substitute(axes))
        self.stays = True
        self.fails = self.fails or not self.is_apart(load, loops, self.where)
        return load


def _depth(number: int) -> Symbol:
    return Symbol(f"@d{number}")
