"""Connects stages that do not know each other: gives the recorder what native code does for it."""

from __future__ import annotations

from framefuse import _native
from framefuse.capture.callables import marks
from framefuse.capture.program import host
from framefuse.ir.marks import graph_break


def connect() -> None:
    """Opens the doors between the stages; called before anything is recorded, and again without harm."""
    host.register(_native.Dispatch, _native.at_frame, _native.headroom, _native.type_lookup)
    marks.break_at(graph_break)
