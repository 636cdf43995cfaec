"""Turns an object that leaves the call into a recipe that makes it again, and takes tracked numbers out of it."""

from __future__ import annotations

import types
from collections import OrderedDict, deque
from typing import Any

import torch

from framefuse.capture.frame import InterpretedGenerator, native_generator
from framefuse.capture.numbers import TRACKED, bare, form_of
from framefuse.capture.sources import ATOMS, CODE_LIKE
from framefuse.ir.trace import Build, Ref

HEAP_TYPE = 1 << 9


class Recipes:
    """Makes recipes; an object met twice is the same object again."""

    def __init__(self, recorder: Any) -> None:
        self.recorder = recorder
        self.made: dict[int, tuple[int, Any]] = {}
        self.open: set[int] = set()

    def build(self, value: Any) -> Any:
        """The recipe of ``value``: a constant, Ref, Expr, Real or Build. Ends the recording where there is none."""
        kind = type(value)
        if kind in TRACKED:
            return form_of(value)
        if kind in ATOMS or kind is torch.device:
            return value
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        source = self.recorder.sources.source(value)
        if source is not None:
            return Build("source", source) if source.kind != "object" else Build("const", source.key)
        if id(value) in self.made:
            number = self.made[id(value)][0]
            if number in self.open and isinstance(value, tuple):
                return self._refuse("a tuple that holds itself")
            return Build("same", number)
        return self._object(value, kind)

    def _refuse(self, detail: str) -> None:
        self.recorder.kill("result", detail)

    def _tensor(self, value: Any) -> Any:
        recorder = self.recorder
        source = recorder.sources.source(value)
        if source is not None:
            recorder.sources.fact(source, "type", type(value))
            return Build("source", source)
        number = recorder.number(value)
        return Ref(number) if number is not None else None

    def _object(self, value: Any, kind: type) -> Any:
        number = len(self.made)
        self.made[id(value)] = (number, value)
        self.open.add(number)
        made = self._build_object(value, kind, number)
        self.open.discard(number)
        return made

    def _build_object(self, value: Any, kind: type, number: int) -> Any:
        build = self.build
        if kind is tuple or kind is list:
            return Build(kind.__name__, None, tuple([build(part) for part in value]), None, number)
        if kind is set or kind is frozenset:
            if not all(type(part) in ATOMS for part in value):
                return self._refuse("a set of objects")
            return Build(kind.__name__, None, tuple(value), None, number)
        if kind is dict:
            return Build("dict", None, self._pairs(value), None, number)
        if kind is slice:
            return Build("slice", None, (build(value.start), build(value.stop), build(value.step)), None, number)
        if kind is range:
            return value if not any(type(part) in TRACKED for part in (value.start, value.stop)) else None
        if isinstance(value, tuple):
            return Build("namedtuple", kind, tuple([build(part) for part in value]), None, number)
        if isinstance(value, CODE_LIKE):
            if isinstance(value, types.FunctionType) or not _lasting(value):
                return self._refuse(f"a {kind.__name__} made during the call")
            return Build("const", value)
        return self._instance(value, kind, number)

    def _pairs(self, value: Any) -> tuple[tuple[Any, Any], ...]:
        if not all(type(key) in ATOMS or isinstance(key, CODE_LIKE) for key in value):
            self._refuse("a dict with keys that are no atoms")
            return ()
        return tuple((key, self.build(part)) for key, part in dict.items(value))

    def _instance(self, value: Any, kind: type, number: int) -> Any:
        if (not kind.__flags__ & HEAP_TYPE and kind not in (object, OrderedDict)) or isinstance(value, BaseException):
            return self._refuse(f"a {kind.__name__}")
        bases = {base for base in kind.__mro__ if not base.__flags__ & HEAP_TYPE}
        if not bases <= {object, dict, list, OrderedDict} or _slots(kind):
            return self._refuse(f"a {kind.__name__}")
        base = None
        if isinstance(value, dict):
            base = Build("dict", None, self._pairs(value))
        elif isinstance(value, list):
            base = Build("list", None, tuple([self.build(part) for part in list.__iter__(value)]))
        state = getattr(value, "__dict__", None) or {}
        return Build("object", kind, tuple((name, self.build(part)) for name, part in state.items()), base, number)


def _slots(kind: type) -> bool:
    return any(base.__dict__.get("__slots__") for base in kind.__mro__)


def _lasting(value: Any) -> bool:
    """Whether a type, builtin or module outlives the call by its place in a module."""
    owner = getattr(value, "__self__", None)
    return not (
        type(value) is types.BuiltinMethodType and owner is not None and not isinstance(owner, types.ModuleType)
    )


def settle(value: Any, memo: dict[int, Any] | None = None) -> Any:
    """``value`` with tracked numbers replaced by plain ones and unstarted interpreted generators by real ones;
    containers change in place, tuples are made anew.
    """
    memo = {} if memo is None else memo
    kind = type(value)
    if kind in TRACKED:
        return bare(value)
    if kind is InterpretedGenerator:
        return native_generator(value) if value.state == "new" else value
    if kind in ATOMS or (isinstance(value, (torch.Tensor, *CODE_LIKE)) and kind is not torch.Size):
        return value
    if id(value) in memo:
        return memo[id(value)][1]
    memo[id(value)] = (value, value)
    if isinstance(value, tuple):
        parts = [settle(part, memo) for part in value]
        if any(new is not old for new, old in zip(parts, value, strict=True)):
            made = _tuple_like(value, parts)
            memo[id(value)] = (value, made)
            return made
        return value
    if isinstance(value, dict):
        for key, part in list(dict.items(value)):
            new = settle(part, memo)
            if new is not part:
                (OrderedDict if isinstance(value, OrderedDict) else dict).__setitem__(value, key, new)
    elif isinstance(value, (list, deque)):
        for place, part in enumerate(list(value)):
            new = settle(part, memo)
            if new is not part:
                value[place] = new
    state = getattr(value, "__dict__", None)
    if type(state) is dict and kind.__flags__ & HEAP_TYPE and not isinstance(value, torch.nn.Module):
        settle(state, memo)
    return value


def _tuple_like(value: Any, parts: list[Any]) -> Any:
    kind = type(value)
    if kind is tuple:
        return tuple(parts)
    if hasattr(kind, "_make"):
        return kind._make(parts)
    return kind(parts)
