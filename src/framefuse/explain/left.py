"""Says what is left to gain of a compiled function, each with one thing to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from framefuse.ir.source import Line

if TYPE_CHECKING:  # which shows itself by a card
    from framefuse.explain.report import Explanation

MOST = 3


@dataclass(frozen=True, slots=True)
class Left:
    """Something that is left to gain, with one thing to do."""

    fact: str
    advice: str


def left_of(explained: Explanation) -> tuple[Left, ...]:
    """What ran eagerly by its count, then breaks, then compiling again: the first of them."""
    found = [
        Left(f"{_at(reason.line)}ran eagerly {count} times: {reason.fact}", reason.advice)
        for reason, count in sorted(explained.stops, key=lambda entry: -entry[1])
    ]
    found += [Left(f"{_at(reason.line)}a break: {reason.fact}", reason.advice) for reason in explained.breaks]
    again = [graph.why for graph in explained.graphs if graph.why is not None]
    if again:
        advice = "Where few values come, nothing is to be done; else take the question out of the compiled function."
        found.append(Left(f"compiled again {len(again)} times, last because {again[-1]}", advice))
    return tuple(found[:MOST])


def _at(line: Line | None) -> str:
    return "" if line is None else f"{line.place} "
