"""Turns items over values into items over buffers: places, an arena shared by lifetimes, allocations and releases."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from framefuse.fuse import costs
from framefuse.fuse.addressing.layout import estimate
from framefuse.fuse.memory.arena import Piece, Places, places
from framefuse.ir.dtypes import DType
from framefuse.ir.numbers import Expr, Symbol, product
from framefuse.ir.schedule import Allocate, Item, Memory, Release


@dataclass(slots=True)
class Value:
    """A buffer that an item writes: its place (``arena`` becomes ``fresh`` where the arena cannot hold it), layout, and
    the numbers of the first and last item that touch it.
    """

    place: str
    dtype: DType
    sizes: tuple[Expr, ...]
    strides: tuple[Expr, ...]
    device: str = "cpu"
    input: int = -1
    base: int = -1
    offset: Expr | None = None
    first: int = -1
    last: int = -1
    pinned: bool = False  # lives to the end of the call
    over: tuple[int, ...] = ()  # buffers whose memory its first writer may take, when they end there
    taken: int = -1  # the one that it took
    given: bool = False  # to such a buffer

    @property
    def bytes(self) -> Expr:
        """Its size in memory."""
        return product(self.sizes) * self.dtype.size


@dataclass
class Buffers:
    """The buffers of a schedule by number."""

    hints: Mapping[Symbol, int]
    brief: bool = False  # whether large memory is given back when its last reader has run
    values: list[Value] = field(default_factory=list)

    def add(self, value: Value) -> int:
        """A new buffer's number."""
        self.values.append(value)
        return len(self.values) - 1

    def touch(self, number: int, item: int) -> None:
        """Notes that an item reads or writes a buffer, or what it is a view of."""
        value = self.values[number]
        if value.first < 0:
            value.first = item
        value.last = max(value.last, item)
        if value.base >= 0:
            self.touch(value.base, item)

    def may_take(self, number: int, item: int) -> bool:
        """Whether a buffer begins with this item, and may begin in the memory of another."""
        value = self.values[number]
        large = value.place == "fresh" and estimate(value.bytes, self.hints) >= costs.LARGE
        return value.first == item and (value.place == "arena" or large)

    def place(self, late: frozenset[Symbol]) -> dict[str, Places]:
        """Gives arena buffers their offsets, each in the arena of its device, by which the answer goes.

        Buffers whose size depends on ``late`` symbols (known only after a library call) become fresh tensors. A buffer
        that takes the memory of another is one piece with it.
        """
        self._start_in_results(late)
        homes: dict[int, int] = {}  # by buffer: the number of its piece
        pieces: list[Piece] = []
        members: list[list[int]] = []  # by piece: its buffers in order
        waiting = [number for number, value in enumerate(self.values) if value.place == "arena"]
        for number in sorted(waiting, key=lambda n: self.values[n].first):
            value = self.values[number]
            if value.bytes.symbols & late:
                value.place = "fresh"
                continue
            value.taken = self._ending(value, homes)
            if value.taken >= 0:
                homes[number] = homes[value.taken]
                pieces[homes[number]].last = value.last
                members[homes[number]].append(number)
            else:
                homes[number] = len(pieces)
                pieces.append(Piece(value.bytes, value.first, value.last))
                members.append([number])
        arenas: dict[str, list[int]] = {"cpu": []}  # by device: the numbers of its pieces
        for home, piece in enumerate(pieces):
            if not (self.brief and self._given_back(piece, members[home])):
                arenas.setdefault(self.values[members[home][0]].device, []).append(home)
        found = {
            device: places([pieces[home] for home in there], self.hints, _symbol_name(device))
            for device, there in arenas.items()
        }
        for device, there in arenas.items():
            for home, offset in zip(there, found[device].offsets, strict=True):
                for number in members[home]:
                    self.values[number].offset = offset
        return found

    def _given_back(self, piece: Piece, members: Sequence[int]) -> bool:
        """Makes a large piece a tensor of its own, which is released after its last use, unless its buffers are of
        several types. They are views of the last of them.
        """
        values = [self.values[number] for number in members]
        if len({value.dtype for value in values}) > 1 or estimate(piece.size, self.hints) < costs.LARGE:
            return False
        for value in values[:-1]:
            value.place, value.base = "view", members[-1]
        values[-1].place, values[-1].first = "fresh", piece.first
        return True

    def _start_in_results(self, late: frozenset[Symbol]) -> None:
        """Puts a large buffer where a fresh one will be that takes its memory: the sum of two gradients is then made in
        the memory of the first, and the arena, which stays, need not hold that.
        """
        for number, value in enumerate(self.values):
            if value.place != "fresh" or value.bytes.symbols & late:
                continue
            for place in value.over:
                other = self.values[place]
                same = other.bytes is value.bytes and other.dtype is value.dtype and other.device == value.device
                if other.place == "arena" and same and other.last == value.first and not other.given:
                    other.place, other.base, other.given = "view", number, True
                    value.taken, value.first = place, other.first
                    break

    def _ending(self, value: Value, homes: Mapping[int, int]) -> int:
        """A buffer of the same size that the writer of ``value`` is the last to read; -1 for none."""
        for number in value.over:
            other = self.values[number]
            if other.device != value.device:
                continue
            if number in homes and other.last == value.first and other.bytes is value.bytes and not other.given:
                other.given = True
                return number
        return -1

    def memories(self) -> tuple[Memory, ...]:
        """The finished buffers."""
        return tuple(
            Memory(v.place, v.dtype, v.sizes, v.strides, v.device, v.input, v.base, v.offset) for v in self.values
        )


def _symbol_name(device: str) -> str:
    return "arena" if device == "cpu" else f"arena_{device.replace(':', '')}_"


def with_lifetimes(
    items: Sequence[Item],
    buffers: Buffers,
    before: Mapping[int, Item],
    consumed: Collection[int] = (),
    needless: Collection[int] = (),
) -> tuple[Item, ...]:
    """The items with an allocation before the first use of each fresh buffer and releases after the last use of fresh
    buffers, call results and the graph inputs number ``consumed``. ``before`` gives what stands in front of an item; no
    allocation follows it. The ``needless`` items are left out.
    """
    latest = min(before, default=len(items))
    found: list[Item] = []
    starts: dict[int, list[int]] = {}
    ends: dict[int, list[int]] = {}
    for number, value in enumerate(buffers.values):
        if value.place == "fresh":
            starts.setdefault(min(max(value.first, 0), latest), []).append(number)
        ends_here = value.place in ("fresh", "call") or (value.place == "input" and value.input in consumed)
        if ends_here and not value.pinned and value.last >= 0:
            ends.setdefault(value.last, []).append(number)
    for position, item in enumerate(items):
        found.extend(Allocate(number) for number in starts.get(position, ()))
        if position in before:
            found.append(before[position])
        if position not in needless:
            found.append(item)
        if position in ends:
            found.append(Release(tuple(ends[position])))
    return tuple(found)
