"""Deals what eager's autograd nodes held out to the pieces of a graph, so that each checks and frees as they would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from framefuse.autodiff.divide import Division, homes_of
from framefuse.ir.derivative import Hold, Holder, Saved


@dataclass(slots=True)
class Group:
    """The nodes of a piece whose gradients go to the same ``sources``: inputs of the graph and other pieces, as bits.
    ``saved`` and ``shown`` are the inputs and outputs whose memory they keep, ``selves`` the inputs they keep as such,
    ``again`` those that they read in a walk as they are by then.
    """

    sources: int
    saved: set[int] = field(default_factory=set)
    selves: set[int] = field(default_factory=set)
    shown: set[int] = field(default_factory=set)
    frees: bool = False
    again: set[int] = field(default_factory=set)

    def take(self, holder: Holder | Group) -> None:
        """Adds a node."""
        self.saved |= holder.saved
        self.selves |= holder.selves
        self.shown |= holder.shown
        self.frees |= holder.frees
        self.again |= holder.again


def united(groups: Iterable[Group]) -> Group:
    """What any of the groups keeps."""
    whole = Group(0)
    for group in groups:
        whole.take(group)
    return whole


class Holding:
    """What eager held, by piece; a node of eager's is of the piece that leads to the same outputs. Of inputs that are
    views ``bases`` gives the input that they show: eager's nodes lead to that.
    """

    def __init__(self, division: Division, holders: Sequence[Holder], bases: Mapping[int, int]) -> None:
        self.bases = bases
        self.parts = {part.home: number for number, part in enumerate(division.parts)}
        self.first = len(division.graph.inputs)  # the bits of pieces stand behind those of inputs
        self.piece_of = {place: number for number, part in enumerate(division.parts) for place in part.outputs}
        self.groups: list[dict[int, Group]] = [{} for _ in division.parts]
        homes = homes_of(holders, division.bits)
        reached: list[int] = []
        for holder, home in zip(holders, homes, strict=True):
            reached.append(self._sources(holder, home, homes, reached))
            number = self._part(home)
            if number is not None and (holder.frees or holder.saved or holder.shown or holder.again):
                self.groups[number].setdefault(reached[-1], Group(reached[-1])).take(holder)

    def _sources(self, holder: Holder, home: int, homes: Sequence[int], reached: Sequence[int]) -> int:
        bits = 0
        for place in holder.inputs:
            bits |= 1 << place
        for before in holder.onto:
            other = self.parts.get(homes[before])
            bits |= reached[before] if homes[before] == home or other is None else 1 << self.first + other
        return bits

    def _part(self, home: int) -> int | None:
        """The piece of what leads to these outputs, or the next larger one: its own may have nothing to compute."""
        if home in self.parts or not home:
            return self.parts.get(home)
        around = [other for other in self.parts if other & home == home]
        return self.parts[min(around, key=int.bit_count)] if around else None

    def source(self, entry: Saved) -> int:
        """The bit of what a piece takes."""
        if entry.kind == "input":
            shown = self.bases.get(entry.place, -1)
            return 1 << (entry.place if shown < 0 else shown)
        return 1 << self.first + self.piece_of[entry.place]


def holds(
    holding: Holding | None,
    groups: Sequence[Group],
    inputs: Sequence[Saved],
    watched: Sequence[Saved],
    saves: bool,
) -> tuple[Hold, ...]:
    """What eager holds of a piece that takes ``inputs`` and watches these tensors. Where that is not known it is what
    the piece itself ``saves``.
    """
    everything = (1 << len(inputs)) - 1
    if holding is None:
        return (Hold(everything, tuple(range(len(watched))), saves),)
    number_of = {(entry.kind, entry.place): number for number, entry in enumerate(watched)}
    sources = [holding.source(entry) for entry in inputs]
    by_graph: dict[int, tuple[set[int], bool]] = {}
    for group in groups:
        wanted = sum(1 << number for number, source in enumerate(sources) if source & group.sources) or everything
        checks = [number_of.get(("input", place)) for place in group.saved]
        checks += [number_of.get(("output", place)) for place in group.shown]
        known, frees = by_graph.get(wanted, (set(), False))
        by_graph[wanted] = {*known, *(number for number in checks if number is not None)}, frees or group.frees
    return tuple(Hold(wanted, tuple(sorted(checks)), frees) for wanted, (checks, frees) in by_graph.items())
