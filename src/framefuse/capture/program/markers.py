"""Values of the interpreter's own that no program can see."""

from __future__ import annotations

from typing import TypeAlias


class Marker:
    """A value of the interpreter's own that no program can see."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"<{self.name}>"


NULL = Marker("null")
UNBOUND = Marker("unbound")
MISSING = Marker("missing")
SWITCH = Marker("switch")
DONE = Marker("done")

Outcome: TypeAlias = Marker | None  # of a handler: SWITCH after a change of frames, DONE, or None to go on


class Ended:
    """Stands for the end of an iterator whose elements are taken one by one by opaque steps; known by identity."""
