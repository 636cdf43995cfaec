"""Says what is left to gain of a compiled function, each with one thing to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from framefuse.errors import Reason
from framefuse.explain.break_times import dearest
from framefuse.explain.units import duration
from framefuse.ir.source import Line
from framefuse.ir.stops import ROWS

if TYPE_CHECKING:  # which shows itself by a card
    from framefuse.explain.report import Explanation

MOST = 3
FAILS = "Where eager raises too, mend the program; else report it with what framefuse.minify makes of the call."
MEANT = frozenset(row.code for row in ROWS if row.meant)  # breaks by which nothing is lost


@dataclass(frozen=True, slots=True)
class Left:
    """Something that is left to gain, with one thing to do."""

    fact: str
    advice: str


def left_of(explained: Explanation) -> tuple[Left, ...]:
    """What ran eagerly by its count, then breaks by their price, then compiling again: the first of them."""
    found = [
        Left(f"{_at(reason.line)}ran eagerly {times(count)}: {reason.fact}", reason.advice)
        for reason, count in sorted(explained.stops, key=lambda entry: -entry[1])
    ]
    found += [
        Left(f"{_at(reason.line)}a break{price_of(explained, reason)}: {reason.fact}", reason.advice)
        for reason in dearest(explained.prices, explained.breaks)
        if reason.code not in MEANT
    ]
    found += [
        Left(f"{_at(graph.line)}compiled code failed {times(graph.declined.count)}: {graph.declined.why}", FAILS)
        for graph in explained.graphs
        if graph.declined is not None and graph.declined.why is not None
    ]
    again = [graph.why for graph in explained.graphs if graph.why is not None]
    if again:
        advice = "Where few values come, nothing is to be done; else take the question out of the compiled function."
        found.append(Left(f"compiled again {times(len(again))}, last because {again[-1]}", advice))
    return tuple(found[:MOST])


def _at(line: Line | None) -> str:
    return "" if line is None else f"{line.place} "


def price_of(explained: Explanation, why: Reason) -> str:
    """What a break took of the call that was timed, nothing where none was."""
    price = explained.prices.get(why)
    return "" if price is None else f" of {duration(price.seconds)} a call"


def times(count: int) -> str:
    """A count as people say it."""
    return "once" if count == 1 else f"{count} times"
