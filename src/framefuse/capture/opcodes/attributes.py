"""Reads and writes attributes and items."""

from __future__ import annotations

import operator
from collections import defaultdict, deque

import torch

from framefuse.capture.callables.mutations import insert_default, mutate
from framefuse.capture.callables.unseen import compared, key_in
from framefuse.capture.facts.atoms import ATOMS
from framefuse.capture.facts.hidden_state import refuse_hidden_state
from framefuse.capture.facts.nested_numbers import pin_nested, strip
from framefuse.capture.facts.numbers import TRACKED, Integer, bare, plain_number
from framefuse.capture.facts.texts import Text
from framefuse.capture.interp.continuations import DROP
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.protocols import checked
from framefuse.capture.interp.registry import form_of, handles
from framefuse.capture.program.decoded import HANDLERS
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.leaves import refers_weakly
from framefuse.capture.program.lookups import python_method, runs_program, type_get
from framefuse.capture.program.markers import MISSING, NULL, Outcome
from framefuse.capture.recording.queries import own_writes
from framefuse.ir.own_class import is_a
from framefuse.ir.torch_calls import TABLE
from framefuse.ir.values import Value

STOPPED_READS = frozenset(name.removeprefix("get ") for name in TABLE.names("stop") if name.startswith("get "))
LOOKED_AT = STOPPED_READS | {"grad_fn", "grad"}  # attributes of tensors that may end a segment
EXACT = frozenset((list, tuple, dict, str, torch.Size, range, bytes, deque))


@handles("LOAD_ATTR")
def load_attr(machine: Machine, frame: Frame, argument: int) -> Outcome:
    holder, name = frame.stack.pop(), frame.code.names[argument]
    if name in LOOKED_AT and is_a(holder, torch.Tensor) and machine.recorder.alive:
        writes = own_writes(machine.recorder, holder) if name == "_version" else None
        if writes is not None:
            frame.stack.append(writes)
            return None
        if name in STOPPED_READS:
            return machine.natives.call(frame, getattr, (holder, name), {})
        made = name == "grad_fn" and machine.recorder.requires_grad(holder) is not False
        if made or _warns(holder, name):
            machine.exits.opaque(frame, getattr, (holder, name), {}, None, "tensor-attribute", name)
            return None
    attribute = machine.attributes.attribute(frame, holder, name)
    if is_a(attribute, tuple):
        frame.stack.append(attribute[0])
        return None
    return attribute


def _warns(tensor: torch.Tensor, name: str) -> bool:
    """Whether torch warns that the gradient of what is no leaf is not kept: as a step it does so at each call, where
    the program stands.
    """
    with torch._C.DisableTorchFunction():
        return name == "grad" and tensor.requires_grad and not tensor.is_leaf and not tensor.retains_grad


@handles("LOAD_METHOD")
def load_method(machine: Machine, frame: Frame, argument: int) -> Outcome:
    holder = frame.stack.pop()
    frame.stack.append(NULL)
    if type(holder) is Text and _is_called_at_once(frame):
        asking = holder.method(frame.code.names[argument])
        if asking is not None:
            frame.stack.append(asking)
            return None
    attribute = machine.attributes.attribute(frame, holder, frame.code.names[argument])
    if is_a(attribute, tuple):
        frame.stack.append(attribute[0])
        return None
    return attribute


def _is_called_at_once(frame: Frame) -> bool:
    """Whether nothing but loads of constants and variables stands between here and the call."""
    for handler, _ in frame.code.steps[frame.step : frame.step + 5]:
        if handler is HANDLERS["CALL"]:
            return True
        if handler not in (HANDLERS["LOAD_CONST"], HANDLERS["LOAD_FAST"]):
            return False
    return False


@handles("LOAD_SUPER")
def load_super(machine: Machine, frame: Frame, argument: int) -> Outcome:
    """The call of ``super`` that 3.12 fused with the attribute; ``argument``: whether the program gave arguments."""
    owner = frame.stack.pop()
    cls = frame.stack.pop()
    function = frame.stack.pop()
    if function is not super:
        return machine.calls.call(frame, function, (cls, owner) if argument else (), {})
    frame.stack.append(super(cls, owner))
    return None


@handles("STORE_ATTR")
def store_attr(machine: Machine, frame: Frame, argument: int) -> Outcome:
    holder = frame.stack.pop()
    return machine.attribute_writes.store(frame, holder, frame.code.names[argument], frame.stack.pop())


@handles("DELETE_ATTR")
def delete_attr(machine: Machine, frame: Frame, argument: int) -> Outcome:
    return machine.attribute_writes.delete(frame, frame.stack.pop(), frame.code.names[argument])


@handles("BINARY_SUBSCR")
def binary_subscr(machine: Machine, frame: Frame, argument: int) -> Outcome:
    key = frame.stack.pop()
    holder = frame.stack.pop()
    kind = type(holder)
    if is_a(holder, torch.Tensor):
        frame.stack.append(holder[key])
        return None
    recorder = machine.recorder
    method = python_method(kind, "__getitem__") if kind not in EXACT else None
    if method is not None:
        recorder.sources.guard_type(holder)
        recorder.sources.guard_version(kind)
        return machine.calls.call(frame, method, (holder, key), {})
    if kind in EXACT and kind is not dict:
        key = _index(machine, key)
        if type(key) is Integer:
            _look_up(machine, holder, key)
    if type(key) in TRACKED:
        key = key_in(machine, holder, key) if is_a(holder, dict) else key.plain()
    if kind in EXACT:
        if type(key) is slice:
            key = _plain(key)
        if recorder.sources.knows(holder) and type(key) is slice:
            if (part := _known_part(machine, holder, key)) is not None:
                frame.stack.append(part)
                return None
            recorder.contents.guard_shallow_contents(holder)
        if kind is dict:
            compared(machine, key)
        try:
            value = holder[key]
        except KeyError:
            recorder.contents.guard_membership(holder, key)
            raise
        except IndexError:
            recorder.contents.guard_length(holder)
            raise
        if type(key) is not slice:
            free = (frame.code.grows and type(value) in (int, float)) or _is_scheduled(frame, key)
            value = recorder.contents.item(holder, key, value, free)
        frame.stack.append(value)
        return None
    if is_a(holder, type):
        making = type_get(holder, "__class_getitem__")
        if type(making) is classmethod and runs_program(making.__func__):
            method = machine.attributes.attribute_now(frame, holder, "__class_getitem__")
            return machine.calls.call(frame, method, (key,), {})
        frame.stack.append(holder[key])  # type: ignore[index]
        return None
    if is_a(holder, dict):
        compared(machine, key)
        missing = python_method(kind, "__missing__")
        if missing is not None and not dict.__contains__(holder, key):
            recorder.contents.guard_membership(holder, key)
            return machine.calls.call(frame, missing, (holder, key), {})
        if is_a(holder, defaultdict) and not dict.__contains__(holder, key):
            frame.stack.append(insert_default(machine, holder, key))
            return None
        if recorder.sources.knows(holder) and not dict.__contains__(holder, key):
            recorder.contents.guard_membership(holder, key)
    elif recorder.sources.knows(holder) and not is_a(holder, (list, tuple)) and kind.__module__ != "typing":
        recorder.kill("argument", f"an item of a {kind.__name__}")
    if type(key) is slice:
        key = _plain(key)
    value = holder[key]
    frame.stack.append(recorder.contents.item(holder, key, value, frame.code.grows and type(value) in (int, float)))
    return None


def _look_up(machine: Machine, holder: Value, key: Integer) -> None:
    """Ever another element, a number or a tensor, is taken: a trace for each place would be in vain."""
    recorder, place = machine.recorder, bare(key)
    if recorder.sources.looked_at(key) and -len(holder) <= place < len(holder):
        if type(holder[place]) in (int, float, bool, torch.Tensor):
            recorder.leave("value", "An instruction")


# What schedulers set in the groups of an optimizer while it trains.
SCHEDULED = frozenset(("lr", "momentum", "weight_decay", "betas"))


def _is_scheduled(frame: Frame, key: Value) -> bool:
    """Whether one of torch's optimizers reads what a scheduler may have set: it only computes with it."""
    return type(key) is str and key in SCHEDULED and frame.globals.get("__name__", "").startswith("torch.optim.")


def _known_part(machine: Machine, holder: Value, key: slice) -> Value | None:
    """A part of a known tuple or list that the call did not change: numbers in it stay as free as they are there. One
    at an end of a list is that of any list of that many elements, one that the call appended to too.
    """
    contents = machine.recorder.contents
    if type(holder) is list and (places := _at_an_end(key, len(holder))):
        if contents.count(holder, True) < max(abs(places[0]), abs(places[-1] + 1)):
            raise AssertionError("a list has the elements that were found in it")
        return [contents.item(holder, place, holder[place]) for place in places]
    if type(holder) not in (tuple, list) or contents.has_changed(holder):
        return None
    part = holder[key]
    if part is holder:
        return None
    contents.guard_length(holder)
    places = range(*key.indices(len(holder)))
    return type(holder)([contents.item(holder, place, value) for place, value in zip(places, part, strict=True)])


def _at_an_end(key: slice, length: int) -> range | None:
    """The places of a part, counted from the end of a list that its bounds are counted from; None where the bounds are
    of both ends, or where a list of this ``length`` ends between them.
    """
    start, stop, step = key.start, key.stop, key.step
    if step not in (None, 1) or any(type(bound) not in (int, type(None)) for bound in (start, stop)):
        return None
    if start is not None and start < 0 and (stop is None or stop < 0):
        return range(start, stop or 0) if length >= -start else None
    if (start is None or start >= 0) and stop is not None and stop >= 0:
        return range(start or 0, stop) if length >= stop else None
    return None


def _index(machine: Machine, key: Value) -> Value:
    """An index, or the bounds of a slice, as the user's ``__index__`` gives it."""
    if type(key) is slice:
        bounds = [key.start, key.stop, key.step]
        plain = [_index(machine, bound) for bound in bounds]
        return key if all(map(operator.is_, plain, bounds)) else slice(*plain)
    if type(key) in ATOMS:
        return key
    method = python_method(type(key), "__index__")
    if method is None:
        refuse_hidden_state(machine.recorder.sources, key)
    return key if method is None else checked("__index__", type(key), machine.call_nested(method, (key,)))


def _plain(key: Value) -> Value:
    """A key or index as native code takes it, by its value."""
    if type(key) is slice:
        pin_nested(key)
        return strip(key)
    return plain_number(key)


@handles("STORE_SUBSCR")
def store_subscr(machine: Machine, frame: Frame, argument: int) -> Outcome:
    key = frame.stack.pop()
    holder = frame.stack.pop()
    value = frame.stack.pop()
    kind = type(holder)
    if is_a(holder, torch.Tensor):
        form = form_of(operator.setitem, (holder, key, value), {})
        if form is not None:
            return machine.calls.call(frame, form, (holder, key, value), {}, DROP)
        holder[key] = value
        return None
    method = python_method(kind, "__setitem__")
    if method is not None:
        machine.recorder.sources.guard_type(holder)
        return machine.calls.call(frame, method, (holder, key, value), {}, DROP)
    if type(key) in TRACKED and kind is dict and machine.recorder.sources.moves(key) and machine.exits.breakable():
        why = ("value", "An entry of a dict")
        return machine.exits.opaque(frame, operator.setitem, (holder, key, value), {}, DROP, *why)
    key = key_in(machine, holder, key) if is_a(holder, dict) else _plain(key)
    if is_a(holder, dict):
        compared(machine, key)
    if refers_weakly(kind) and any(map(machine.recorder.was_made, (key, value))):
        machine.recorder.kill("finalizer", "A weak reference to an object of this call")
    if machine.recorder.sources.knows(holder):
        if mutate(machine, holder, "__setitem__", (key, value), {}) is not MISSING:
            return None
        key, value = machine.recorder.refuse_write(f"a {kind.__name__}", key, value)
    key, value = machine.recorder.released(key, value)
    if type(key) is slice:
        value = machine.operations.iterable(value)
    holder[key] = value if is_a(holder, (list, dict, deque)) else plain_number(value)
    return None


@handles("DELETE_SUBSCR")
def delete_subscr(machine: Machine, frame: Frame, argument: int) -> Outcome:
    key = frame.stack.pop()
    holder = plain_number(frame.stack.pop())
    method = python_method(type(holder), "__delitem__")
    if method is not None:
        return machine.calls.call(frame, method, (holder, key), {}, DROP)
    key = key_in(machine, holder, key) if is_a(holder, dict) else _plain(key)
    if is_a(holder, dict):
        compared(machine, key)
    if machine.recorder.sources.knows(holder):
        if mutate(machine, holder, "__delitem__", (key,), {}) is not MISSING:
            return None
        machine.recorder.kill("write", f"a {type(holder).__name__}")
    del holder[key]
    return None
