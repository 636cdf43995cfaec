"""Gives each buffer its place: an offset in the arena of its device, the memory of another, or a tensor of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from framefuse.fuse.addressing.layout import estimate
from framefuse.fuse.memory.arena import Piece, Places, places
from framefuse.fuse.memory.draft import Draft, Value
from framefuse.ir import costs
from framefuse.ir.numbers import Symbol


def with_places(draft: Draft) -> Draft:
    """The draft whose arena buffers have offsets. Buffers whose size is known only after a library call become fresh
    tensors. A buffer that takes the memory of another is one piece with it.
    """
    graph = draft.graph
    late = frozenset(symbol for symbol, _, _ in graph.bound)
    # Between forward and backward memory is held for gradients: an arena that stays would come on top.
    planner = Planner(draft.values, graph.hints, brief=graph.trains or bool(graph.consumed))
    by_device = planner.place(late)
    largest = tuple(row for each in by_device.values() for row in each.largest)
    arenas = tuple((device, each.size) for device, each in by_device.items() if device != "cpu")
    values = tuple(planner.values)
    return replace(draft, values=values, largest=largest, arena=by_device["cpu"].size, arenas=arenas)


class Planner:
    """Buffers that are given places; with ``brief`` large memory is given back when its last reader has run."""

    def __init__(self, values: Sequence[Value], hints: Mapping[Symbol, int], brief: bool = False) -> None:
        self.values = list(values)
        self.hints = hints
        self.brief = brief

    def place(self, late: frozenset[Symbol]) -> dict[str, Places]:
        """Gives arena buffers their offsets, each in the arena of its device, by which the answer goes. Sizes that
        depend on ``late`` symbols are known only after a library call.
        """
        self._start_in_results(late)
        homes: dict[int, int] = {}  # by buffer: the number of its piece
        pieces: list[Piece] = []
        members: list[list[int]] = []  # by piece: its buffers in order
        waiting = [number for number, value in enumerate(self.values) if value.place == "arena"]
        for number in sorted(waiting, key=lambda n: self.values[n].first):
            value = self.values[number]
            if value.bytes.symbols & late:
                self.values[number] = replace(self.values[number], place="fresh")
                continue
            taken = self._ending(value, homes)
            if taken >= 0:
                self.values[number] = replace(self.values[number], taken=taken)
                homes[number] = homes[taken]
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
        by_device = {
            device: places([pieces[home] for home in there], self.hints, _symbol_name(device))
            for device, there in arenas.items()
        }
        for device, there in arenas.items():
            for home, offset in zip(there, by_device[device].offsets, strict=True):
                for number in members[home]:
                    self.values[number] = self.values[number].at(offset)
        return by_device

    def _given_back(self, piece: Piece, members: Sequence[int]) -> bool:
        """Makes a large piece a tensor of its own, which is released after its last use, unless its buffers are of
        several types. They are views of the last of them.
        """
        values = [self.values[number] for number in members]
        if len({value.dtype for value in values}) > 1 or estimate(piece.size, self.hints) < costs.LARGE:
            return False
        for number in members[:-1]:
            self.values[number] = replace(self.values[number], place="view", base=members[-1])
        self.values[members[-1]] = replace(self.values[members[-1]], place="fresh", first=piece.first)
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
                    self.values[place] = replace(self.values[place], place="view", base=number, given=True)
                    self.values[number] = replace(self.values[number], taken=place, first=other.first)
                    break

    def _ending(self, value: Value, homes: Mapping[int, int]) -> int:
        """A buffer of the same size that the writer of ``value`` is the last to read; -1 for none."""
        for number in value.over:
            other = self.values[number]
            if other.device != value.device:
                continue
            if number in homes and other.last == value.first and other.bytes is value.bytes and not other.given:
                self.values[number] = replace(self.values[number], given=True)
                return number
        return -1


def _symbol_name(device: str) -> str:
    return "arena" if device == "cpu" else f"arena_{device.replace(':', '')}_"
