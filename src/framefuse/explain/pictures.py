"""Draws the memory over a call as the shapes of an SVG picture."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from framefuse.explain.memory_curve import Curve

WIDTH, HEIGHT = 1000, 150


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
