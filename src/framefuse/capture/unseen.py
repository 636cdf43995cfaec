"""Ends a recording where native code is about to run the user's Python, whose reads nobody would see."""

from __future__ import annotations

import types
from typing import Any

import torch

from framefuse.capture.attributes import python_method, type_get
from framefuse.capture.contents import ATOMS
from framefuse.capture.numbers import TRACKED, pin_nested
from framefuse.capture.plain_methods import only_reads, underlying
from framefuse.capture.settle import slots_of
from framefuse.capture.sources import CODE_LIKE
from framefuse.ir.classes import immutable
from framefuse.ir.containers import elements, held

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
        if not _tells(machine, value, depth):
            machine.recorder.kill("native-call", f"The text of a {kind.__name__}")
    else:
        sources.inside(value)


def _tells(machine: Any, value: Any, depth: int) -> bool:
    """Whether the text of an object of the user is made of what lies in it, which is told as well."""
    kind = type(value)
    if depth > DEPTH or type(underlying(type_get(kind, "__repr__"))) is not types.FunctionType:
        return False  # the text names the address
    found = [only_reads(machine, value, name) for name in ("__repr__", "__str__", "__format__")]
    if False in found:
        return False
    for part in parts_of(value):
        if type(part) in TRACKED:
            part.plain()
        elif None in found and not _atomic(part):
            return False
        pin_nested(part)
        shown(machine, part, depth + 1)
    return True


def _atomic(value: Any) -> bool:
    """Whether a value is a number or text, or a container of such."""
    kind = type(value)
    if kind not in PLAIN:
        return kind in ATOMS or kind in TRACKED
    return all(map(_atomic, (*value, *value.values()) if isinstance(value, dict) else value))


def parts_of(value: Any) -> list[Any]:
    """What lies in the attributes and slots of an object."""
    return [*(getattr(value, "__dict__", None) or {}).values(), *slots_of(value).values()]


def compared(machine: Any, *values: Any) -> None:
    """Native code compares what lies in these containers, or hashes it: the user's own comparisons end the recording.
    """
    for value in values:
        if machine.recorder.alive and _compares(machine, value, 0):
            machine.recorder.kill("native-call", f"A comparison inside a {type(value).__name__}")


def _compares(machine: Any, value: Any, depth: int) -> bool:
    """Whether comparing or hashing ``value`` runs Python of the user that does more than read what lies in it."""
    kind = type(value)
    if kind in ATOMS or kind in TRACKED or isinstance(value, (torch.Tensor, *CODE_LIKE)) or depth > DEPTH:
        return False
    if isinstance(value, PLAIN):
        parts = elements(value) + (held(value) if isinstance(value, dict) else [])
        if any(_compares(machine, part, depth + 1) for part in parts):
            return True
        if kind in PLAIN:
            return False
    if all(python_method(kind, name) is None for name in COMPARISONS):
        return False
    found = [only_reads(machine, value, name) for name in COMPARISONS]
    if False in found:
        return True
    for part in parts_of(value):
        if type(part) in TRACKED:
            part.plain()
        elif isinstance(part, torch.Tensor) or (None in found and not _atomic(part)):
            return True
        machine.recorder.sources.deep(part)
        if _compares(machine, part, depth + 1):
            return True
    return False
