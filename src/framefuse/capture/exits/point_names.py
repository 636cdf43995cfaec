"""Names the values of a point behind a break by the variables that the program keeps them in."""

from __future__ import annotations

from collections.abc import Iterator

from framefuse.capture.exits.resume_points import ResumePoint
from framefuse.capture.exits.snapshot import Part
from framefuse.capture.program.decoded import decode

OUTCOME = {"branch": "the branch"}  # what a step gave, by the reason for which it is one


def point_names(point: ResumePoint) -> dict[str, str]:
    """What the user calls the values of a point, by the text of their source."""
    shift = int(point.has_outcome)
    names = {f"args[{shift + number}]": "a value of the step" for number in range(point.count - shift)}
    if shift:
        names["args[0]"] = OUTCOME.get(point.why.code, "what the step gave")
    places = {place: shift + point.leaves + n for n, place in enumerate(point.free)}
    for part, name in _held(point.shape):
        place = part.value + shift if part.kind == "leaf" else places.get(part.value)
        if place is not None:
            names[f"args[{place}]"] = name
    return names


def _held(shape: Part) -> Iterator[tuple[Part, str]]:
    """The leaves and numbers that variables of the frames hold, with the name of the variable; innermost frames last,
    whose names count.
    """
    for part in shape.parts:
        if part.kind == "frame":
            variables = decode(part.value[0]).local_names
            for name, held in zip(variables, part.parts[7].parts, strict=False):
                yield from _within(held, name)


def _within(part: Part, name: str) -> Iterator[tuple[Part, str]]:
    if part.kind in ("leaf", "number"):
        yield part, name
    elif part.kind == "tuple":
        for number, inner in enumerate(part.parts[:-1]):
            yield from _within(inner, f"{name}[{number}]")
