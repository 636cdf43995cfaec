"""Draws the memory over a call, compilations among calls, and stages of a compilation as shapes of SVG pictures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from framefuse.explain.memory_curve import Curve
from framefuse.explain.page_data import FunctionPage, GraphPage

WIDTH, HEIGHT = 1000, 150
STAGES = 220  # of the bar of a compilation
THIN = 3.0  # a mark among very many calls is still to be seen


@dataclass(frozen=True, slots=True)
class Picture:
    """The outlines of all memory and of what is kept for backward, the marked peak, and where backward begins (None:
    nowhere), in units of the picture.
    """

    total: str
    kept: str
    peak: tuple[int, int]
    backward: int | None
    width: int = WIDTH
    height: int = HEIGHT


def picture(curve: Curve) -> Picture:
    """The picture of a curve: each step is as wide as another."""
    points = curve.points
    most = max(curve.peak.bytes, 1)
    edges = [round(WIDTH * place / len(points)) for place in range(len(points) + 1)]
    at = points.index(curve.peak)
    backward = next((place for place, point in enumerate(points) if point.backward), None)
    return Picture(
        _outline(edges, [point.bytes for point in points], most),
        _outline(edges, [point.kept for point in points], most),
        ((edges[at] + edges[at + 1]) // 2, _height(curve.peak.bytes, most)),
        None if backward is None else edges[backward],
    )


@dataclass(frozen=True, slots=True)
class Mark:
    """A call that compiled something, on the line of calls; ``again``: since what was there did not apply."""

    call: int
    title: str
    again: bool
    left: float
    width: float


@dataclass(frozen=True, slots=True)
class Timeline:
    """The calls of a function in order, with those that compiled."""

    marks: tuple[Mark, ...]
    width: int = WIDTH


def timeline(page: FunctionPage) -> Timeline:
    """The picture of a function's calls."""
    calls = max((page.explanation.calls, *(graph.call for graph in page.graphs)))
    wide = WIDTH / max(calls, 1)
    marks = [
        Mark(graph.call, graph.title, graph.why is not None, (graph.call - 1) * wide, max(wide - 1, THIN))
        for graph in page.graphs
        if graph.call
    ]
    return Timeline(tuple(sorted(marks, key=lambda mark: mark.again)))


@dataclass(frozen=True, slots=True)
class StagePart:
    """A stage in the bar of a compilation; ``colour`` is the number of its colour on the page."""

    colour: int
    left: float
    width: float


def stages_of(graph: GraphPage, page: FunctionPage) -> tuple[StagePart, ...]:
    """The stages of a compilation as parts of a bar, whose length is its share of the longest one."""
    longest = max(sum(each.seconds.values()) for each in page.graphs) or 1.0
    parts, left = [], 0.0
    for colour, name in enumerate(page.stages):
        width = STAGES * graph.seconds.get(name, 0.0) / longest
        if width >= 0.5:
            parts.append(StagePart(colour % 8, round(left, 1), round(width, 1)))
        left += width
    return tuple(parts)


def _outline(edges: Sequence[int], values: Sequence[int], most: int) -> str:
    """The corners of steps of these heights, and back along the ground; equal neighbours are one step."""
    corners = [(edges[0], HEIGHT)]
    for place, value in enumerate(values):
        height = _height(value, most)
        if height != corners[-1][1]:
            corners += [(edges[place], corners[-1][1]), (edges[place], height)]
    corners += [(edges[-1], corners[-1][1]), (edges[-1], HEIGHT)]
    return " ".join(f"{x},{y}" for x, y in corners)


def _height(value: int, most: int) -> int:
    return HEIGHT - round((HEIGHT - 10) * value / most)
