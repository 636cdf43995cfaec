"""Removes hooks that other code registered by a step: every handle counts a number of its own on their class."""

from __future__ import annotations

from torch.utils.hooks import RemovableHandle

from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import special
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.ir.values import Arguments, Keywords

_REMOVE = RemovableHandle.remove


@special(_REMOVE)
def _remove(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """A handle that was there, or that a step gave: its number and the class differ at each call."""
    if len(args) != 1 or kwargs or not machine.recorder.sources.knows(args[0]) or not machine.exits.breakable():
        return MISSING
    machine.exits.opaque(frame, _REMOVE, args, kwargs, None, "native-call", "The removal of a hook")
    return None
