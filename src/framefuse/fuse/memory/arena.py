"""Turns sizes and lifetimes into places in one arena: what lives at once lies apart, whatever the sizes are."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

from framefuse.fuse.addressing.layout import estimate
from framefuse.ir import costs
from framefuse.ir.numbers import Expr, Symbol, expr


@dataclass(slots=True)
class Piece:
    """Memory of ``size`` bytes that is in use from item ``first`` to item ``last``."""

    size: Expr
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Places:
    """``offsets`` of the pieces, multiples of :data:`costs.ALIGN`, and the whole ``size``, in bytes. They are over the
    sizes' symbols and those in ``largest``, each of which is the largest of some expressions over symbols before it.
    """

    offsets: tuple[Expr, ...]
    size: Expr
    largest: tuple[tuple[Symbol, tuple[Expr, ...]], ...]


def places(pieces: Sequence[Piece], hints: Mapping[Symbol, int], name: str = "arena") -> Places:
    """A place for each piece; symbols that are made are named ``name`` and a number.

    The recorded sizes decide which piece lies above which: the largest are placed first, each in the smallest gap that
    it fits in among those alive with it (greedy by size: Pisarchyk and Lee, Efficient Memory Management for Deep Neural
    Net Inference, 2020). An offset is then the end of the highest piece below, so that it is right for other sizes too.
    Where very many are alive at once, as what a thousand steps save, only pieces of one size follow one another.
    """
    if _meetings(pieces) > costs.MEETINGS:
        return _pooled(pieces, hints, name)
    return _apart(pieces, hints, name)


def _meetings(pieces: Sequence[Piece]) -> int:
    """How many pairs of pieces are in use at one time."""
    firsts, lasts = sorted(piece.first for piece in pieces), sorted(piece.last for piece in pieces)
    return sum(number - bisect_left(lasts, first) for number, first in enumerate(firsts))


def _pooled(pieces: Sequence[Piece], hints: Mapping[Symbol, int], name: str) -> Places:
    """Places in time that is linear in the pieces: those of one size share a row of slots, and the rows are placed."""
    free: dict[Expr, list[tuple[int, int]]] = {}  # by size: when a slot's last piece ends, and which slot it is
    slots = []
    for number in sorted(range(len(pieces)), key=lambda n: pieces[n].first):
        piece = pieces[number]
        ends = free.setdefault(piece.size, [])
        slot = heappop(ends)[1] if ends and ends[0][0] < piece.first else len(ends)
        heappush(ends, (piece.last, slot))
        slots.append((number, slot))
    first: dict[Expr, int] = {}
    for number, _ in slots:
        first.setdefault(pieces[number].size, pieces[number].first)
    rows = {size: Piece(_aligned(size) * len(ends), first[size], max(ends)[0]) for size, ends in free.items()}
    placed = _apart(tuple(rows.values()), hints, name)
    starts = dict(zip(rows, placed.offsets, strict=True))
    offsets = {number: starts[pieces[number].size] + _aligned(pieces[number].size) * slot for number, slot in slots}
    return Places(tuple(offsets[number] for number in range(len(pieces))), placed.size, placed.largest)


def _aligned(size: Expr) -> Expr:
    return (size + (costs.ALIGN - 1)) // costs.ALIGN * costs.ALIGN


def _apart(pieces: Sequence[Piece], hints: Mapping[Symbol, int], name: str) -> Places:
    """Places that let pieces of any sizes follow one another; the time grows with the pairs that are in use at once."""
    together = _together(pieces)
    sizes = [-(-max(1, estimate(piece.size, hints)) // costs.ALIGN) * costs.ALIGN for piece in pieces]
    recorded = _recorded(pieces, sizes, together)
    maker = _Symbolic(name)
    ends: dict[int, Expr] = {}
    under: dict[int, int] = {}  # bits of the pieces that lie below one, through others too
    offsets: dict[int, Expr] = {}
    for number in sorted(range(len(pieces)), key=lambda n: (recorded[n], n)):
        below = [other for other in together[number] if other in ends]
        tops, under[number] = _tops(below, recorded, ends, under)
        offsets[number] = maker.largest(tops)
        ends[number] = offsets[number] + _aligned(pieces[number].size)
    tops, _ = _tops(list(ends), recorded, ends, under)
    whole = maker.largest(tops)
    return Places(tuple(offsets[number] for number in range(len(pieces))), whole, tuple(maker.made))


def _together(pieces: Sequence[Piece]) -> list[list[int]]:
    """For each piece the pieces that are in use at some time with it, itself among them, in order."""
    together: list[list[int]] = [[number] for number in range(len(pieces))]
    alive: list[int] = []
    for number in sorted(range(len(pieces)), key=lambda n: pieces[n].first):
        alive = [other for other in alive if pieces[other].last >= pieces[number].first]
        for other in alive:
            together[other].append(number)
            together[number].append(other)
        alive.append(number)
    return [sorted(numbers) for numbers in together]


def _tops(
    below: Sequence[int], recorded: Sequence[int], ends: Mapping[int, Expr], under: Mapping[int, int]
) -> tuple[list[Expr], int]:
    """The ends of those pieces that do not lie under another of them, and the bits of all of them and what is under
    them.
    """
    tops, bits = [], 0
    for other in sorted(below, key=lambda n: -recorded[n]):
        if not bits >> other & 1:
            tops.append(ends[other])
            bits |= under[other] | 1 << other
    return tops, bits


def _recorded(pieces: Sequence[Piece], sizes: Sequence[int], together: Sequence[Sequence[int]]) -> list[int]:
    """Offsets at the recorded sizes."""
    offsets = [-1] * len(pieces)
    for number in sorted(range(len(pieces)), key=lambda n: (-sizes[n], pieces[n].first)):
        placed = [other for other in together[number] if offsets[other] >= 0]
        taken = sorted((offsets[other], offsets[other] + sizes[other]) for other in placed)
        best, least, end = -1, 0, 0
        for start, stop in taken:
            gap = start - end
            if gap >= sizes[number] and (best < 0 or gap < least):
                best, least = end, gap
            end = max(end, stop)
        offsets[number] = end if best < 0 else best
    return offsets


class _Symbolic:
    """Makes the largest of some expressions."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.made: list[tuple[Symbol, tuple[Expr, ...]]] = []
        self.known: dict[frozenset[Expr], Expr] = {}

    def largest(self, values: Sequence[Expr]) -> Expr:
        """An expression, or a new symbol where none is known to be the largest."""
        left: list[Expr] = []
        for value in dict.fromkeys(values):
            if not any(never_more(value, other) for other in left):
                left = [other for other in left if not never_more(other, value)] + [value]
        if len(left) < 2:
            return left[0] if left else expr(0)
        key = frozenset(left)
        if key not in self.known:
            symbol = Symbol(f"{self.name}{len(self.made)}")
            self.made.append((symbol, tuple(left)))
            self.known[key] = symbol.expr
        return self.known[key]


def never_more(part: Expr, whole: Expr) -> bool:
    """Whether ``part <= whole`` by their form, whatever the sizes are."""
    rest = whole - part
    return all(
        factor >= 0 and all(isinstance(atom, Symbol) and not atom.signed for atom in atoms)
        for atoms, factor in rest.terms
    )
