"""Records a real run of a Python function as a trace: torch calls, facts they rest on, effects, the result's recipe."""

from __future__ import annotations

from framefuse.capture.record import Recording, bind, record

__all__ = ["Recording", "bind", "record"]
