"""Reads and writes attributes and items."""

from __future__ import annotations

from typing import Any

import torch

from framefuse.capture.attributes import python_method
from framefuse.capture.code import handles
from framefuse.capture.frame import MISSING, NULL, Frame
from framefuse.capture.numbers import TRACKED, bare, pin_nested
from framefuse.capture.recorder import strip

EXACT = frozenset((list, tuple, dict, str, torch.Size, range, bytes))


@handles("LOAD_ATTR")
def load_attr(machine: Any, frame: Frame, argument: int) -> Any:
    found = machine.attribute(frame, frame.stack.pop(), frame.code.names[argument])
    if type(found) is tuple:
        frame.stack.append(found[0])
        return None
    return found


@handles("LOAD_METHOD")
def load_method(machine: Any, frame: Frame, argument: int) -> Any:
    holder = frame.stack.pop()
    frame.stack.append(NULL)
    found = machine.attribute(frame, holder, frame.code.names[argument])
    if type(found) is tuple:
        frame.stack.append(found[0])
        return None
    return found


@handles("STORE_ATTR")
def store_attr(machine: Any, frame: Frame, argument: int) -> Any:
    holder = frame.stack.pop()
    return machine.store(frame, holder, frame.code.names[argument], frame.stack.pop())


@handles("DELETE_ATTR")
def delete_attr(machine: Any, frame: Frame, argument: int) -> Any:
    return machine.delete(frame, frame.stack.pop(), frame.code.names[argument])


@handles("BINARY_SUBSCR")
def binary_subscr(machine: Any, frame: Frame, argument: int) -> Any:
    key = frame.stack.pop()
    holder = frame.stack.pop()
    kind = type(holder)
    if isinstance(holder, torch.Tensor):
        frame.stack.append(holder[key])
        return None
    if type(key) in TRACKED and kind is not dict:
        key = key.plain()
    recorder = machine.recorder
    if kind in EXACT:
        if type(key) is slice:
            pin_nested(key)
            key = strip(key)
        if id(holder) in recorder.sources.known and type(key) is slice:
            recorder.sources.whole(holder)
        try:
            value = holder[key]
        except KeyError:
            recorder.sources.membership(holder, key)
            raise
        except IndexError:
            recorder.sources.length(holder)
            raise
        frame.stack.append(recorder.sources.item(holder, key, value) if type(key) is not slice else value)
        return None
    method = python_method(kind, "__getitem__")
    if method is not None:
        recorder.sources.typed(holder)
        recorder.sources.version(kind)
        return machine.call(frame, method, (holder, key), {})
    if isinstance(holder, type):
        frame.stack.append(holder[key])  # type: ignore[index]
        return None
    if isinstance(holder, dict):
        missing = python_method(kind, "__missing__")
        if missing is not None and not dict.__contains__(holder, key):
            recorder.sources.membership(holder, key)
            return machine.call(frame, missing, (holder, key), {})
        if id(holder) in recorder.sources.known and not dict.__contains__(holder, key):
            if hasattr(kind, "__missing__"):
                recorder.kill("write", f"a {kind.__name__}")
            else:
                recorder.sources.membership(holder, key)
    elif id(holder) in recorder.sources.known and not isinstance(holder, (list, tuple)):
        recorder.kill("argument", f"an item of a {kind.__name__}")
    frame.stack.append(recorder.sources.item(holder, key, holder[key]))
    return None


@handles("STORE_SUBSCR")
def store_subscr(machine: Any, frame: Frame, argument: int) -> Any:
    key = frame.stack.pop()
    holder = frame.stack.pop()
    value = frame.stack.pop()
    kind = type(holder)
    if isinstance(holder, torch.Tensor):
        holder[key] = value
        return None
    method = python_method(kind, "__setitem__")
    if method is not None:
        machine.recorder.sources.typed(holder)
        return machine.call(frame, method, (holder, key, value), {}, ("drop",))
    key = key.plain() if type(key) in TRACKED else key
    if id(holder) in machine.recorder.sources.known:
        _journal_item(machine, holder, key, value)
        value = bare(value)
    holder[key] = value
    return None


def _journal_item(machine: Any, holder: Any, key: Any, value: Any) -> None:
    recorder = machine.recorder
    if kind_of_item(holder, key):
        before = holder.get(key, MISSING) if isinstance(holder, dict) else MISSING
        if isinstance(holder, list):
            recorder.sources.length(holder)
            if not recorder.alive or not -len(holder) <= key < len(holder):
                return
            recorder.journal.operation(holder, "__setitem__", (key, value))
            return
        recorder.journal.place("item", holder, key, value, before)
        recorder.sources.changed[id(holder)] = "item"
    else:
        recorder.kill("write", f"a {type(holder).__name__}")


def kind_of_item(holder: Any, key: Any) -> bool:
    """Whether the write of an item can be replayed: a plain dict by an atom, a list by an index."""
    if type(holder) is dict:
        return type(key) in (str, int, bool, type(None))
    return type(holder) is list and type(key) is int


@handles("DELETE_SUBSCR")
def delete_subscr(machine: Any, frame: Frame, argument: int) -> Any:
    key = frame.stack.pop()
    holder = frame.stack.pop()
    method = python_method(type(holder), "__delitem__")
    if method is not None:
        return machine.call(frame, method, (holder, key), {}, ("drop",))
    if id(holder) in machine.recorder.sources.known:
        machine.recorder.kill("write", f"a {type(holder).__name__}")
    del holder[key]
    return None
