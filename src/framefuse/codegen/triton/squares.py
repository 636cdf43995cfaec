"""Writes sums of squared distances from the mean: of a tile by its mean, over turns by a mean for each lane (Welford).

A lane that takes part in each turn of one loop has seen as many values as there were turns, so the share of the next
one is a number of the program; in loops around loops lanes count for themselves. Lanes are joined as Chan and others
say: their own squares, and the distances of their means from the mean of all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from framefuse.codegen.triton.builder import TYPES, Builder, Tile
from framefuse.codegen.triton.reductions import Running
from framefuse.codegen.triton.values import Values


@dataclass(slots=True)
class Lanes:
    """What each lane holds: its ``mean`` and ``squares`` (none: the mean is one value), and how many values it has
    seen, as a tile (none: each lane of a ``mask`` one).
    """

    mean: str
    squares: str | None = None
    count: str | None = None
    mask: str = ""
    turns: str = ""  # of the loop before the one at hand, if each has one value for each lane
    ends: list[str] = field(default_factory=list)  # how many values all of them have seen: a product, if it is known


def begin(b: Builder, values: Values, running: Running, axes: frozenset[int], turns: str) -> Lanes:
    """Lanes before a loop, which count for themselves if no ``turns`` do."""
    zeros = values.full(f"0.0, {TYPES[running.compared.name]}", axes)
    name = running.accumulator.name
    lanes = Lanes(b.named(zeros, f"{name}_mean"), b.named(zeros, f"{name}_squares"), turns=turns)
    if not turns:
        lanes.count = b.named(zeros, f"{name}_count")
    return lanes


def whole(b: Builder, values: Values, running: Running, value: Tile, mask: str, ends: list[str]) -> Lanes:
    """Lanes of one value each."""
    zeros = values.full(f"0.0, {TYPES[running.compared.name]}", running.axes)
    text = f"tl.where({mask}, {value.typed}, {zeros})" if mask else f"{zeros} + {value.typed}"
    plain = not mask and value.axes == running.axes and value.constant is None
    return Lanes(value.text if plain else b.named(text, f"{running.accumulator.name}_mean"), mask=mask, ends=ends)


def add(b: Builder, running: Running, lanes: Lanes, value: Tile, mask: str) -> None:
    """One more value for each lane of the mask."""
    away = f"{value.typed} - {lanes.mean}"
    away = b.named(f"tl.where({mask}, {away}, 0.0)" if mask else away, "away")
    count = f"tl.full((), {lanes.turns} + 1, {TYPES[running.compared.name]})"
    if lanes.count is not None:
        b.line(f"{lanes.count} = {lanes.count} + {f'tl.where({mask}, 1.0, 0.0)' if mask else '1.0'}")
        count = f"tl.maximum({lanes.count}, 1.0)"
    share = b.named(f"1.0 / {count}", "share")
    b.line(f"{lanes.squares} = {lanes.squares} + {away} * {away} * (1.0 - {share})")
    b.line(f"{lanes.mean} = {lanes.mean} + {away} * {share}")


def fold(b: Builder, values: Values, running: Running, lanes: Lanes, total: str | None) -> str:
    """The squared distances of all lanes; ``total`` is the sum of all values, if it is known."""
    held = TYPES[running.compared.name]
    gone = sorted(running.axes - running.own, reverse=True)

    def summed(text: str) -> str:
        for place in gone:
            wide = "" if len(gone) == values.rank else "[:, None]" if place == 1 else "[None, :]"
            text = f"tl.sum({text}, {place}){wide}"
        return text

    if lanes.ends:
        number = " * ".join(lanes.ends)
        number = b.named(f"tl.maximum(tl.full((), 0, tl.int64) + {number}, 1).to({held})", "number")
    else:
        number = b.named(f"tl.maximum({summed(lanes.count or lanes.mean)}, 1.0)", "number")
    if total is None:
        total = summed(lanes.mean if lanes.count is None else f"{lanes.count} * {lanes.mean}")
    away = b.named(f"{lanes.mean} - {total} / {number}", "away")
    if lanes.squares is None:
        squares = f"{away} * {away}"
        squares = f"tl.where({lanes.mask}, {squares}, 0.0)" if lanes.mask else squares
    else:
        squares = f"{lanes.squares} + {lanes.count} * {away} * {away}"
    return b.named(summed(squares), running.accumulator.name)


def seen(b: Builder, running: Running, end: str, points: str, place: int, mask: str) -> str:
    """How many values each lane of the mask has seen behind a loop to ``end``, whose lanes begin at ``points``."""
    block = f"BLOCK{place}"
    text = f"(tl.maximum({end} - {points} + ({block} - 1), 0) // {block}).to({TYPES[running.compared.name]})"
    return b.named(f"tl.where({mask}, {text}, 0.0)" if mask else text, f"{running.accumulator.name}_count")


def partner(running: Running, op: str, others: Sequence[Running]) -> Running | None:
    """The reduction ``op`` of the same values, if there is one."""
    ended = (other for other in others if not other.accumulator.running)
    alike = (other for other in ended if other.op == op and other.compared is running.compared)
    same = (other for other in alike if (other.axes, other.own) == (running.axes, running.own))
    return next((other for other in same if running.term and other.term == running.term), None)
