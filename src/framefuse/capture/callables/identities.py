"""Says what ``id`` and ``hash`` give: a run-time number where another object may stand in its place, else a step."""

from __future__ import annotations

from enum import Enum

import torch

from framefuse.capture.facts.atoms import ATOMS
from framefuse.capture.facts.numbers import TRACKED, Integer
from framefuse.capture.facts.told_apart import address
from framefuse.capture.interp.continuations import PushChecked
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import special
from framefuse.capture.program import leaves
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.lookups import python_method, type_get
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.capture.recording.recipe import by_identity
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Keywords, Value

ALIGNED = 16  # bytes: where the address of an object ends in zeros, its hash is the address without them


@special(id)
def _identity(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """``id`` of an object that existed before the call."""
    number = _address(machine, args[0]) if len(args) == 1 and not kwargs else None
    if number is None:
        return MISSING
    frame.stack.append(number)
    return None


@special(hash, pure=True, compares=("__hash__", "__eq__"))
@special(torch.Tensor.__hash__, ("__hash__", object))
def _hashing(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """``hash``: of the user's objects what their method gives, of those without one what their address makes."""
    if len(args) != 1 or kwargs:
        return MISSING
    value, kind = args[0], type(args[0])
    method = python_method(kind, "__hash__")
    if method is not None and not is_a(value, torch.Tensor):
        return machine.calls.call(frame, method, (value,), {}, PushChecked("__hash__", kind))
    if _by_value(value) or kind.__hash__ is None:
        machine.recorder.sources.tie()  # texts are hashed otherwise in each process
        return MISSING
    machine.recorder.sources.guard_type(value)
    number = _address(machine, value) if by_identity(kind) else None
    if number is not None and not is_a(value, torch.Tensor):
        number = _shifted(number)
    if number is not None:
        frame.stack.append(number)
    else:
        machine.exits.opaque(frame, hash, (value,), {}, None, "native-call", f"The hash of a {kind.__name__}")
    return None


def _address(machine: Machine, value: Value) -> int | None:
    """The address of a known object, None for any other."""
    sources = machine.recorder.sources
    known = machine.recorder.alive and type(value) not in TRACKED and sources.knows(value)
    return address(sources, value) if known else None


def _shifted(number: int) -> int | None:
    """The hash that an address makes."""
    if number % ALIGNED != 0:
        return None
    shifted = number // ALIGNED
    if type(shifted) is Integer:
        shifted.names = number.names  # type: ignore[attr-defined]
    return shifted


def _by_value(value: Value) -> bool:
    """Whether equal values hash alike in this process, whichever objects they are."""
    kind = type(value)
    if kind in (tuple, frozenset, torch.Size):
        return all(map(_by_value, value))
    if kind in ATOMS or kind in TRACKED or is_a(value, Enum):
        return True
    method = type_get(kind, "__hash__")  # of the standard library's values, as those of fractions
    return getattr(method, "__globals__", {}).get("__name__") in leaves.PURE_MODULES
