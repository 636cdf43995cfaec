"""Writes the card that a notebook shows of what was compiled: did it work, how much faster, what is left to gain."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from framefuse.explain.left import left_of
from framefuse.explain.timing import Timing

if TYPE_CHECKING:  # which shows itself by a card
    from framefuse.explain.report import Explanation

# Notebooks have a light or a dark ground: the text keeps their colour, the rest is thin enough for both.
BOX = "border:1px solid #8886;border-left:4px solid {};border-radius:4px;padding:.5em .8em;max-width:60em"
GOOD, OPEN = "#2a7", "#c60"


def card(explained: Explanation) -> str:
    """The card as one element of HTML, with all that is known folded below."""
    left = left_of(explained)
    items = "".join(f"<li>{escape(each.fact)}<br><b>{escape(each.advice)}</b></li>" for each in left)
    rest = f"<div>Left to gain:</div><ol style='margin:.2em 0'>{items}</ol>" if left else ""
    worked = bool(explained.graphs) and not left
    return (
        f"<div style='{BOX.format(GOOD if worked else OPEN)}'>"
        f"<div><b>{escape(explained.name)}</b> <small>{escape(explained.place)}</small></div>"
        f"<div style='font-size:1.2em'>{escape(_worked(explained))}</div><div>{escape(_faster(explained))}</div>{rest}"
        f"<details><summary>All that is known</summary><pre>{escape(str(explained))}</pre></details></div>"
    )


def _worked(explained: Explanation) -> str:
    if not explained.graphs:
        return f"Nothing is compiled{explained.nothing}."
    return f"{explained.hits} of {explained.calls} calls ran compiled code."


def _faster(explained: Explanation) -> str:
    timing = explained.timing
    if isinstance(timing, Timing):
        return f"A call is {timing.eager / timing.compiled:.1f} times as fast as eager."
    why = timing or "framefuse.explain(f, *args, time=True) measures it"
    return f"How much faster a call is was not measured: {why}." if explained.graphs else ""
