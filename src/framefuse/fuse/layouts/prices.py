"""Prices of labelling the vertices of a graph 0 or 1, and the labels that cost the least: a minimum cut."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from framefuse.ir.flow import SINK, SOURCE, UNBOUNDED, sink_side

Labels = Sequence[int]  # by vertex


@dataclass(slots=True)
class Copy:
    """A value of ``vertex`` that ``readers`` need in their own label: what a copy in the other one costs."""

    vertex: int
    price: int
    readers: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Prices:
    """Vertices with a label each: :data:`SOURCE` always has 0 and :data:`SINK` 1, the others are free.

    ``alone`` are the prices of a vertex with label 0 and with 1. ``between`` is what two vertices cost whose labels
    differ. ``copies`` are paid once, however many readers ask for one.
    """

    count: int = 2
    alone: dict[int, list[int]] = field(default_factory=dict)
    between: dict[tuple[int, int], int] = field(default_factory=dict)
    copies: dict[Hashable, Copy] = field(default_factory=dict)

    def vertex(self) -> int:
        """A new free vertex."""
        self.count += 1
        return self.count - 1

    def charge(self, vertex: int, zero: float, one: float) -> None:
        """Adds to the prices of a vertex by itself."""
        prices = self.alone.setdefault(vertex, [0, 0])
        prices[0] += round(zero)
        prices[1] += round(one)

    def join(self, one: int, other: int, price: float) -> None:
        """Adds to the price of two vertices with different labels."""
        if one != other:
            pair = (min(one, other), max(one, other))
            self.between[pair] = self.between.get(pair, 0) + round(price)

    def read(self, value: Hashable, vertex: int, reader: int, price: float) -> None:
        """Says that ``reader`` needs a ``value`` of ``vertex`` in its own label, of which a copy costs ``price``."""
        self.copies.setdefault(value, Copy(vertex, round(price))).readers.add(reader)

    def total(self, labels: Labels) -> int:
        """What these labels cost."""
        price_of_all = sum(prices[labels[vertex]] for vertex, prices in self.alone.items())
        price_of_all += sum(price for (one, other), price in self.between.items() if labels[one] != labels[other])
        for copy in self.copies.values():
            price_of_all += copy.price * any(labels[reader] != labels[copy.vertex] for reader in copy.readers)
        return price_of_all

    def least(self) -> Labels:
        """Labels that cost the least; of several those with the fewest vertices of label 1.

        A vertex whose label is 1 is on the sink's side of the cut. A copy has a vertex for each label that it may
        have: it is on the side of the readers that ask for it, and its arc is cut where the value is on the other side.
        """
        size, arcs = self.count, list(self._arcs())
        for copy in self.copies.values():
            one, zero = size, size + 1
            size += 2
            arcs += [(copy.vertex, one, copy.price), (zero, copy.vertex, copy.price)]
            for reader in copy.readers:
                arcs += [(one, reader, UNBOUNDED), (reader, zero, UNBOUNDED)]
        inner = [arc for arc in arcs if arc[2] and arc[0] != SINK and arc[1] != SOURCE and arc[:2] != (SOURCE, SINK)]
        return sink_side(size, inner)[: self.count]

    def _arcs(self) -> Iterator[tuple[int, int, int]]:
        for vertex, (zero, one) in self.alone.items():
            yield SOURCE, vertex, one - min(zero, one)
            yield vertex, SINK, zero - min(zero, one)
        for (one, other), price in self.between.items():
            yield one, other, price
            yield other, one, price
