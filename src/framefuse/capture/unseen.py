"""Ends a recording where native code is about to run the user's Python, whose reads nobody would see."""

from __future__ import annotations

from typing import Any

import torch

from framefuse.capture.attributes import python_method
from framefuse.capture.contents import ATOMS
from framefuse.capture.numbers import TRACKED
from framefuse.capture.sources import CODE_LIKE
from framefuse.ir.classes import immutable

PLAIN = (list, tuple, dict, set, frozenset)
COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__")
DEPTH = 6


def shown(machine: Any, value: Any, depth: int = 0) -> None:
    """Native code makes a text of ``value``: known content becomes facts, an object of the user ends the recording."""
    kind = type(value)
    if kind in ATOMS or kind in TRACKED or isinstance(value, (torch.Tensor, *CODE_LIKE)) or depth > DEPTH:
        return
    sources = machine.recorder.sources
    if kind in PLAIN:
        sources.whole(value)
        for part in (*value, *value.values()) if isinstance(value, dict) else tuple(value):
            shown(machine, part, depth + 1)
    elif not immutable(kind) and (id(value) in sources.known or not isinstance(value, BaseException)):
        machine.recorder.kill("native-call", f"The text of a {kind.__name__}")
    else:
        sources.inside(value)


def compared(machine: Any, *values: Any) -> None:
    """Native code compares what lies in these containers, or hashes it: the user's own comparisons end the recording.
    """
    for value in values:
        if machine.recorder.alive and _compares(value, 0):
            machine.recorder.kill("native-call", f"A comparison inside a {type(value).__name__}")


def _compares(value: Any, depth: int) -> bool:
    kind = type(value)
    if kind in ATOMS or kind in TRACKED or isinstance(value, (torch.Tensor, *CODE_LIKE)) or depth > DEPTH:
        return False
    if isinstance(value, PLAIN):
        parts = (*value, *value.values()) if isinstance(value, dict) else tuple(value)
        if any(_compares(part, depth + 1) for part in parts):
            return True
        if kind in PLAIN:
            return False
    return any(python_method(kind, name) is not None for name in COMPARISONS)
