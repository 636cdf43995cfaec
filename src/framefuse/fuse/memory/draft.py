"""A schedule before its memory is decided: items in order over buffers that have a layout and a lifetime."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from framefuse.fuse.addressing.layout import estimate
from framefuse.ir import costs
from framefuse.ir.dtypes import DType
from framefuse.ir.graph import Graph
from framefuse.ir.numbers import Expr, Symbol, product
from framefuse.ir.schedule import Item, Offer

Writes = tuple[tuple[int, int, int], ...]  # as in Schedule


@dataclass(frozen=True, slots=True)
class Value:
    """A buffer that items touch: its place (``arena`` becomes ``fresh`` where the arena cannot hold it), layout and
    lifetime, which are the numbers of the first and last item that touch it.
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

    # What every buffer gets is written out: `replace` takes three times as long.

    def living(self, first: int, last: int, pinned: bool) -> Value:
        """The buffer with its lifetime."""
        return Value(
            self.place, self.dtype, self.sizes, self.strides, self.device, self.input, self.base, self.offset,
            first, last, pinned, self.over, self.taken, self.given,
        )  # fmt: skip

    def at(self, offset: Expr) -> Value:
        """The buffer at its place in the arena."""
        return Value(
            self.place, self.dtype, self.sizes, self.strides, self.device, self.input, self.base, offset,
            self.first, self.last, self.pinned, self.over, self.taken, self.given,
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Draft:
    """``items`` over ``values``, the buffers by number; ``outputs``, ``writes``, ``notes`` and ``offers`` are as in
    :class:`framefuse.ir.schedule.Schedule`, and so are ``largest``, ``arena`` and ``arenas`` once places are decided.

    ``before`` gives what stands in front of an item, by its number; the ``needless`` items are left out at the end.
    """

    graph: Graph
    items: tuple[Item, ...]
    values: tuple[Value, ...]
    outputs: tuple[int, ...]
    writes: Writes
    notes: tuple[tuple[int, str], ...] = ()
    offers: tuple[Offer, ...] = ()
    before: Mapping[int, Item] = field(default_factory=dict)
    needless: frozenset[int] = frozenset()
    largest: tuple[tuple[Symbol, tuple[Expr, ...]], ...] = ()
    arena: Expr | None = None
    arenas: tuple[tuple[str, Expr], ...] = ()

    def may_take(self, number: int, item: int) -> bool:
        """Whether a buffer begins with this item, and may begin in the memory of another."""
        value = self.values[number]
        large = value.place == "fresh" and estimate(value.bytes, self.graph.hints) >= costs.LARGE
        return value.first == item and (value.place == "arena" or large)


class Buffers:
    """The buffers of a draft while its items are written."""

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.firsts: list[int] = []
        self.lasts: list[int] = []

    def add(self, value: Value) -> int:
        """A new buffer's number."""
        self.values.append(value)
        self.firsts.append(-1)
        self.lasts.append(-1)
        return len(self.values) - 1

    def touch(self, number: int, item: int) -> None:
        """Notes that an item reads or writes a buffer, or what it is a view of."""
        while number >= 0:
            if self.firsts[number] < 0:
                self.firsts[number] = item
            self.lasts[number] = max(self.lasts[number], item)
            number = self.values[number].base

    def by_call(self, number: int) -> None:
        """Notes that a library call allocates a buffer."""
        self.values[number] = replace(self.values[number], place="call")

    def finished(self, pinned: frozenset[int]) -> tuple[Value, ...]:
        """The buffers with their lifetimes; those ``pinned`` live to the end of the call."""
        return tuple(
            value.living(first, last, number in pinned)
            for number, (value, first, last) in enumerate(zip(self.values, self.firsts, self.lasts, strict=True))
        )
