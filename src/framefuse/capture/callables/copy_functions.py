"""Copies what is plain data, after stating as facts what the copy is made of."""

from __future__ import annotations

import copy
import copyreg
import itertools
import types

import torch

from framefuse.capture.facts.atoms import ATOMS, SETS
from framefuse.capture.facts.numbers import TRACKED
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import special
from framefuse.capture.program.frame import Frame, InterpretedGenerator, copy_of, enter
from framefuse.capture.program.itertools_equivalents import one_of
from framefuse.capture.program.lookups import type_get
from framefuse.capture.program.markers import MISSING, SWITCH, Outcome
from framefuse.capture.program.natives import KINDS
from framefuse.capture.recording.recorder import Recorder
from framefuse.capture.recording.tensors import dense_order
from framefuse.ir.classes import written_in_c
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Keywords, Value

SHARED = (type, types.FunctionType, types.BuiltinFunctionType, torch.device, range)
PLAIN_CONTAINERS = (list, tuple, torch.Size, dict)
HOOKS = (
    "__deepcopy__", "__getattr__", "__reduce__", "__reduce_ex__", "__getstate__", "__setstate__", "__getnewargs__",
    "__getnewargs_ex__", "__new__", "__slots__",
)  # fmt: skip
DEEPEST = 12
MANY = 16  # tensors, each of which is compared with each
COPY: types.FunctionType = vars(copy)["copy"]


@special(copy.deepcopy)
def _deepcopy(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """``copy.deepcopy`` of plain data and of tensors without history; MISSING for anything else."""
    recorder = machine.recorder
    if len(args) != 1 or kwargs or not recorder.alive or not is_plain(args[0]):
        return MISSING
    tensors: dict[int, torch.Tensor] = {}
    parts: dict[int, Value] = {}
    state(recorder, args[0], set(), parts, tensors)
    if not _are_apart(recorder, list(tensors.values())):
        return MISSING
    parts |= {number: tensor.clone() for number, tensor in tensors.items()}
    frame.stack.append(copy.deepcopy(args[0], parts))
    return None


@special(copy.copy)
def _shallow(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """``copy.copy``: an instance that is its ``__dict__`` is made here, of all else the function of the library is
    interpreted.
    """
    value = args[0] if len(args) == 1 and not kwargs else None
    kind, sources, contents = type(value), machine.recorder.sources, machine.recorder.contents
    if kind is InterpretedGenerator and value.__class__ is not types.GeneratorType:
        frame.stack.append(_iterator(args[0]))
        return None
    if kind in KINDS.values() and not sources.knows(value):  # what the call made: its state is for its own class alone
        frame.stack.append(copy.copy(value))
        return None
    if not machine.recorder.alive or not has_plain_state(kind) or type_get(kind, "__copy__") is not MISSING:
        machine.push(enter(COPY, args, kwargs))
        return SWITCH
    sources.guard_version(kind)
    sources.guard_type(value)
    content = _content(value)
    if sources.knows(value):
        sources.instance_dict(value)
        contents.guard_extent(content)
    copied = object.__new__(kind)
    _content(copied).update({name: contents.item(content, name, part) for name, part in content.items()})
    frame.stack.append(copied)
    return None


def _iterator(value: InterpretedGenerator) -> InterpretedGenerator:
    copied = copy_of(value)
    if value.function is one_of and value.state != "done":  # what the iterators share knows of the new one
        _, waiting, own = copied.frame.locals[:3]
        waiting.append(list(own))
        copied.frame.locals[2] = waiting[-1]
        copied.arguments[2:3] = waiting[-1:] if copied.arguments else []
    return copied


def is_plain(value: Value, depth: int = 0) -> bool:
    """Whether a copy runs nobody's code and depends on nothing but atoms, containers, tensors and instance dicts."""
    kind = type(value)
    if kind is torch.Tensor:
        with torch._C.DisableTorchFunction():
            return _is_whole(value)
    if kind in ATOMS or kind in TRACKED or is_a(value, SHARED):
        return True
    if depth > DEEPEST:
        return False
    if kind in SETS:
        return all(type(part) in ATOMS for part in value)
    if kind in PLAIN_CONTAINERS:
        parts = (*value, *value.values()) if kind is dict else value
        return all(is_plain(part, depth + 1) for part in parts)
    return has_plain_state(kind) and all(is_plain(part, depth + 1) for part in _content(value).values())


def _is_whole(tensor: torch.Tensor) -> bool:
    """Whether a copy of a tensor is what ``clone`` makes: the tensor is all of its memory, and a leaf without gradient
    or attributes.
    """
    if tensor.requires_grad or tensor.layout is not torch.strided or tensor.is_inference() or vars(tensor):
        return False
    if tensor.device.type == "meta" or tensor.is_conj() or tensor.is_neg() or tensor._backward_hooks:
        return False
    if dense_order(tensor.shape, tensor.stride()) is None or tensor.grad is not None:
        return False
    return tensor.untyped_storage().nbytes() == tensor.nbytes


def _are_apart(recorder: Recorder, tensors: list[torch.Tensor]) -> bool:
    """Whether no two of some tensors share memory, now and at later calls: copies share what the tensors do."""
    if len(tensors) < 2:
        return True
    if len(tensors) > MANY:
        return False
    with torch._C.DisableTorchFunction():
        if len({tensor.untyped_storage()._cdata for tensor in tensors}) < len(tensors):
            return False
    numbers = [recorder.number(tensor) for tensor in tensors]
    entries = [recorder.inputs[number].source for number in numbers if number in recorder.inputs]
    for one, other in itertools.combinations(entries, 2):
        recorder.sources.fact(one, "disjoint", other)
    return True


def has_plain_state(kind: type) -> bool:
    """Whether an instance is its ``__dict__``: a class written in Python that changes nothing about copying."""
    return (
        type(kind) is type
        and kind is not object
        and kind not in copyreg.dispatch_table
        and all(base is object or not written_in_c(base) for base in kind.__mro__)
        and all(type_get(kind, name) is type_get(object, name) for name in HOOKS)
    )


def _content(value: Value) -> dict[str, Value]:
    state: dict[str, Value] = object.__getattribute__(value, "__dict__")
    return state


def state(
    recorder: Recorder, value: Value, met: set[int], numbers: dict[int, Value], tensors: dict[int, torch.Tensor]
) -> None:
    """States everything that a copy of ``value`` is made of; ``numbers`` gets its run-time numbers, which are their own
    copies, and ``tensors`` what is to be copied.
    """
    kind, sources, contents = type(value), recorder.sources, recorder.contents
    if kind is torch.Tensor:
        tensors[id(value)] = value
        if sources.knows(value):
            sources.tell_apart(value)
            sources.read(value, "grad", None, None)
            found = sources.instance_dict(value)
            if found is not None:
                contents.guard_extent(found[0])
        return
    if kind in TRACKED:
        numbers[id(value)] = value
        return
    if kind in ATOMS or is_a(value, SHARED) or id(value) in met:
        return
    met.add(id(value))
    sources.tell_apart(value)  # a copy keeps which of its parts are one
    if kind in PLAIN_CONTAINERS or kind in SETS:
        contents.guard_shallow_contents(value)
        parts = list(value.values()) if kind is dict else list(value)
    else:
        sources.guard_version(kind)
        sources.guard_type(value)
        content = _content(value)
        sources.instance_dict(value)
        contents.guard_shallow_contents(content)
        parts = list(content.values())
    for part in parts:
        state(recorder, part, met, numbers, tensors)
