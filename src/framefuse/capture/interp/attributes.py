"""Reads attributes as the language does, with a fact for each thing that decided the outcome."""

from __future__ import annotations

import collections
import enum
import functools
import sys
import threading
import types

import torch

from framefuse.capture.facts.atoms import CARRIED
from framefuse.capture.facts.class_numbers import assigned_numbers, note_assigned
from framefuse.capture.facts.kinds import is_plain
from framefuse.capture.facts.numbers import TRACKED, plain_number
from framefuse.capture.facts.place_names import place_of
from framefuse.capture.interp import stacks
from framefuse.capture.interp.continuations import AskGetattr, PushCached
from framefuse.capture.interp.machine import Machine
from framefuse.capture.program.frame import Frame, FrameView
from framefuse.capture.program.leaves import runs_natively
from framefuse.capture.program.lookups import python_method, type_get
from framefuse.capture.program.markers import MISSING
from framefuse.capture.program.services import Found
from framefuse.capture.program.tracebacks import variables
from framefuse.capture.recording.functional_collectives import WAITING, waited
from framefuse.capture.recording.recorder import Recorder
from framefuse.capture.recording.saved import SAVED
from framefuse.capture.recording.tensors import is_held, lacks_sizes
from framefuse.capture.recording.wrappers import METADATA, outer, wraps_others
from framefuse.ir.classes import PLAIN_TENSORS, as_torch_does, immutable
from framefuse.ir.facts import Source
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Function, Keywords, Value

MODULE_PARTS = ("_parameters", "_buffers", "_modules")
DIRECT_TENSOR_ATTRIBUTES = frozenset(("dtype", "device", "ndim", "layout", "is_cuda"))
TUPLE_GETTER = type(collections.namedtuple("Named", "field").field)  # type: ignore[attr-defined]
# By object, from CPython 3.13 on: the methods that a functools.singledispatchmethod has bound, held weakly.
BOUND_BEFORE = "_method_cache"
OF_FUNCTION = {"f_code": "__code__", "f_globals": "__globals__"}
C_DESCRIPTORS = (
    types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
    types.GetSetDescriptorType,
    types.MemberDescriptorType,
)  # fmt: skip


def _is_property(described: type) -> bool:
    """Whether descriptors of this class are read as properties are: subclasses may say more of what they describe."""
    return described is property or (issubclass(described, property) and type_get(described, "__get__") is PLAIN_GETTER)


PLAIN_GETTER = type_get(property, "__get__")
PLAIN_LOOKUP = object.__getattribute__
NAMES = ("__name__", "__qualname__")


class Attributes:
    """How the interpreter reads attributes."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.recorder = machine.recorder
        self.frames = machine.frames

    def attribute(self, frame: Frame, holder: Value, name: str) -> Found:
        """``(holder.name,)``, or SWITCH after a frame was entered that computes it."""
        kind = type(holder)
        if not is_plain(kind):
            if kind in TRACKED:
                return (holder.__class__,) if name == "__class__" else (getattr(plain_number(holder), name),)
            if is_a(holder, torch.Tensor):
                return self._tensor_attribute(holder, name, frame)
            if kind is types.ModuleType or is_a(holder, types.ModuleType):
                return self.module_attribute(frame, holder, name)
            if is_a(holder, type):
                return self._class_attribute(frame, holder, name)
            if kind is FrameView:
                return self._frame_attribute(frame, holder, name)
            if kind is super:
                return self._super_attribute(frame, holder, name)
        if type.__getattribute__(kind, "__getattribute__") is not PLAIN_LOOKUP:
            own = type_get(kind, "__getattribute__")
            if type(own) is types.FunctionType and not runs_natively(own):
                self.recorder.sources.guard_type(holder)
                self.recorder.sources.guard_version(kind)
                return self._computed(frame, holder, kind, name, own, (holder, name))
        return self.generic_attribute(frame, holder, kind, name)

    def _frame_attribute(self, frame: Frame, view: FrameView, name: str) -> Found:
        """An attribute of the frame object of an interpreted frame."""
        own = view.frame
        if name in OF_FUNCTION:
            return self.attribute(frame, own.function, OF_FUNCTION[name])
        if name == "f_lineno":
            return (own.code.line_number(own.step - 1),)
        if name == "f_lasti":
            return (own.code.offsets[own.step - 1],)
        if name == "f_locals":
            return (variables(own),)
        if name == "f_back":
            outer = stacks.frames(self.machine)
            place = next((place for place, other in enumerate(outer) if other is own), None)
            if place is not None and place + 1 < len(outer):
                return (FrameView(self.machine, outer[place + 1]),)
            if place is not None:
                stacks.look(self.machine, frame, sys._getframe, (), {}, None, base=True)
                return None
        self.recorder.kill("stack", f"{name} of a frame")
        return (getattr(view.real(), name),)

    def _computed(self, frame: Frame, holder: Value, kind: type, name: str, getter: Function, args: Arguments) -> Found:
        """An attribute that a Python function gives; where it raises AttributeError ``__getattr__`` is asked."""
        depth = len(self.frames)
        computed = self.machine.calls.call(frame, getter, args, {})
        if len(self.frames) > depth and type_get(kind, "__getattr__") is not MISSING:
            self.frames[-1].recovery = AskGetattr(holder, name)
        return computed

    def fall_back(self, frame: Frame, holder: Value, name: str) -> None:
        """Pushes what ``__getattr__`` gives after the first way to an attribute raised AttributeError."""
        depth = len(self.frames)
        own = vars(holder) if is_a(holder, torch.nn.Module) else None  # others may hear of it
        value = self._fallback(frame, holder, type(holder), name, own)
        if is_a(value, tuple):
            frame.stack.append(value[0])
        elif len(self.frames) > depth:
            frame.stack.append(self.machine.entered_value(frame, depth))

    def attribute_now(self, frame: Frame, holder: Value, name: str) -> Value:
        """``holder.name`` as a value, computed at once."""
        depth = len(self.frames)
        value = self.attribute(frame, holder, name)
        if is_a(value, tuple):
            return value[0]
        return self.machine.entered_value(frame, depth) if len(self.frames) > depth else frame.stack.pop()

    def generic_attribute(self, frame: Frame, holder: Value, kind: type, name: str) -> Found:
        """As object.__getattribute__ followed by __getattr__."""
        sources = self.recorder.sources
        if name.startswith(SAVED) and is_a(holder, torch.autograd.graph.Node):
            self.recorder.end("saved", name)  # no step helps: what comes before it is to be eager too
        if kind is functools.singledispatchmethod and name == BOUND_BEFORE and frame.globals is vars(functools):
            return (None,)  # a method bound anew does the same
        sources.guard_version(kind)
        source = sources.source_of(holder)
        known = source is not None
        if known:
            sources.guard_type(holder)
        on_class = type_get(kind, name)
        described = type(on_class)
        local = is_a(holder, threading.local)
        if on_class is not MISSING and not (local and name == "__dict__"):
            if _is_property(described) and on_class.fget is not None:
                if is_a(on_class.fget, types.FunctionType) and not runs_natively(on_class.fget):
                    return self._computed(frame, holder, kind, name, on_class.fget, (holder,))
                return (sources.read(holder, "getattr", name, getattr(holder, name)),)
            if hasattr(described, "__set__"):
                return self._data_descriptor(frame, holder, kind, name, on_class)
        if local:
            return self._thread_local(frame, holder, kind, name, on_class)
        try:
            state = object.__getattribute__(holder, "__dict__") if kind.__dictoffset__ else None
        except AttributeError:
            state = None
        if type(state) is dict:
            if name in state:
                value = state[name]
                source = source or sources.of_member(holder, name)
                if source is None or not self.recorder.alive:
                    return (value,)
                free = True if type(value) in (int, float) and name in frame.code.stores else CARRIED
                return (sources.read_at(source, (id(state), "item", (str, name)), "attr", name, value, free),)
            if known:
                sources.guard_absent(holder, name)
        if on_class is not MISSING:
            return self._class_value(frame, holder, kind, name, on_class)
        return self._fallback(frame, holder, kind, name, state)

    def _thread_local(self, frame: Frame, holder: Value, kind: type, name: str, on_class: Value) -> Found:
        """An attribute of a threading.local, which the plan reads in its own thread: what lies in this thread's own
        dict, which is not the object's, before that of its class.
        """
        sources = self.recorder.sources
        known, own = sources.knows(holder), holder.__dict__
        if name not in own:
            if name == "__dict__" or (on_class is MISSING and type_get(kind, "__getattr__") is not MISSING):
                self.recorder.kill("argument", f"{kind.__name__}.{name}")
                return (getattr(holder, name),)
            if on_class is MISSING and known and (id(holder), "getattr", (str, name)) not in sources.written:
                sources.fact(Source("getattr", sources.known_source(holder), name), "unset", None, name)
            if hasattr(type(on_class), "__get__"):
                if known:
                    own = sources.read(holder, "getattr", "__dict__", own)
                    self.recorder.contents.guard_membership(own, name)
                return self._class_value(frame, holder, kind, name, on_class)
        value = getattr(holder, name)
        free = (name in frame.code.stores or CARRIED) if type(value) in (int, float) else False
        return (sources.read(holder, "getattr", name, value, free),)

    def _fallback(self, frame: Frame, holder: Value, kind: type, name: str, state: Value) -> Found:
        fallback = type_get(kind, "__getattr__")
        if fallback is torch.nn.Module.__getattr__ and state is not None:
            return self.module_part(holder, name, state)
        if type(fallback) is types.FunctionType and not runs_natively(fallback):
            return self.machine.calls.call(frame, fallback, (holder, name), {})
        value = getattr(holder, name)
        if fallback is not MISSING or self.recorder.sources.knows(holder):
            self.recorder.kill("argument", f"{kind.__name__}.{name}")
        return (value,)

    def module_part(self, holder: Value, name: str, state: Keywords) -> tuple[Value]:
        """nn.Module.__getattr__: parameters, then buffers, then submodules."""
        sources, contents = self.recorder.sources, self.recorder.contents
        for part in MODULE_PARTS:
            if part not in state:
                sources.guard_absent(holder, part)
                continue
            content = sources.read(holder, "attr", part, state[part])
            if name in content:
                return (contents.item(content, name, content[name]),)
            contents.guard_membership(content, name)
        raise AttributeError(f"'{type(holder).__name__}' object has no attribute '{name}'")

    def _data_descriptor(self, frame: Frame, holder: Value, kind: type, name: str, on_class: Value) -> Found:
        sources, contents = self.recorder.sources, self.recorder.contents
        if name == "__class__":
            return (kind,)
        if name in ("name", "value") and is_a(holder, enum.Enum):
            state, own = vars(holder), f"_{name}_"
            member = sources.source_of(holder) or (None if sources.is_made(kind) else sources.root(holder))
            if member is None or own not in state:
                return (getattr(holder, name),)
            return (sources.read_at(member, place_of(holder, "attr", own), "attr", own, state[own]),)
        if is_a(holder, types.CodeType):  # never changes, and some of its attributes are made anew at each read
            return (getattr(holder, name),)
        if name == "__dict__":
            value = holder.__dict__
            sources.instance_dict(holder)
            return (value,)
        if type(on_class) is TUPLE_GETTER and is_a(holder, tuple):
            place = on_class.__reduce__()[1][0]
            return (contents.item(holder, place, tuple.__getitem__(holder, place)),)
        getter = python_method(type(on_class), "__get__")
        if getter is not None:
            on_class = held_by_class(self.recorder, kind, name, on_class)
            return self._computed(frame, holder, kind, name, getter, (on_class, holder, kind))
        known = sources.knows(holder)
        try:
            value = getattr(holder, name)
        except AttributeError:
            if known and (id(holder), "getattr", (str, name)) not in sources.written:
                sources.fact(Source("getattr", sources.known_source(holder), name), "unset", None, name)
            raise
        if type(on_class) not in C_DESCRIPTORS and known:
            self.recorder.kill("argument", f"{kind.__name__}.{name}")
        free = (type(on_class) is types.MemberDescriptorType and name in frame.code.stores) or CARRIED
        return (sources.read(holder, "getattr", name, value, free if type(value) in (int, float) else 0),)

    def _class_value(self, frame: Frame, holder: Value, kind: type, name: str, on_class: Value) -> Found:
        described = type(on_class)
        if described is types.FunctionType:
            return (types.MethodType(on_class, holder),)
        if described is classmethod:
            if is_a(on_class.__func__, types.FunctionType):
                return (types.MethodType(on_class.__func__, kind),)
            self._hold_cached(kind, name, on_class.__func__)
            return (getattr(holder, name),)
        if described is staticmethod:
            if not self.recorder.sources.is_made(on_class.__func__):
                self.recorder.sources.root(on_class.__func__)
            return (on_class.__func__,)
        if described is functools.cached_property:
            return self.machine.calls.call(frame, on_class.func, (holder,), {}, PushCached(holder, name))
        getter = python_method(described, "__get__")
        if getter is not None:
            on_class = held_by_class(self.recorder, kind, name, on_class)
            return self._computed(frame, holder, kind, name, getter, (on_class, holder, kind))
        self._hold_cached(kind, name, on_class)
        if described in C_DESCRIPTORS or hasattr(described, "__get__"):
            return (getattr(holder, name),)
        return (held_by_class(self.recorder, kind, name, on_class),)

    def _hold_cached(self, kind: type, name: str, function: Value) -> None:
        """A function with a cache that lies on a class, of which the fact on the class's version says which it is."""
        if type(function) is functools._lru_cache_wrapper:
            owner = next(base for base in kind.__mro__ if name in vars(base))
            if not self.recorder.sources.is_made(owner):
                self.recorder.sources.root(function)

    def bound_method(self, frame: Frame, holder: Value, name: str) -> Found:
        """A special method as Python looks it up: on the class alone."""
        kind, method = type(holder), type_get(type(holder), name)
        if type(method) is property and method.fget is not None:
            return self.machine.calls.call(frame, method.fget, (holder,), {})
        return self._class_value(frame, holder, kind, name, method)

    def _class_attribute(self, frame: Frame, holder: type, name: str) -> Found:
        sources = self.recorder.sources
        meta = type(holder)
        if name in frame.code.stores and meta is type and not sources.is_made(holder):
            self._expect_counting(holder, name)
        sources.guard_version(holder)
        if meta is not type:
            sources.guard_version(meta)
            own = type_get(meta, name)
            if type(own) is property and is_a(own.fget, types.FunctionType) and not runs_natively(own.fget):
                return self.machine.calls.call(frame, own.fget, (holder,), {})
        on_class = type_get(holder, name)
        getter = python_method(type(on_class), "__get__") if on_class is not MISSING else None
        if getter is not None:
            on_class = held_by_class(self.recorder, holder, name, on_class)
            return self.machine.calls.call(frame, getter, (on_class, None, holder), {})
        value = getattr(holder, name)
        if name in NAMES and on_class is not value:  # no version of a class tells of another name
            return (sources.read(holder, "getattr", name, value),)
        if value is on_class:
            return (held_by_class(self.recorder, holder, name, value),)
        if on_class is MISSING and value is type_get(meta, name):
            return (held_by_class(self.recorder, meta, name, value),)
        if name == "__dict__":
            counts = any(owner is holder for owner, _, _ in assigned_numbers(holder))
            if counts or any(source.kind == "type_attr" for source in self.recorder.moving):
                self.recorder.kill("argument", "all attributes of a class")
        return (value,)

    def _expect_counting(self, holder: type, name: str) -> None:
        """A number of a class that the code at hand may assign, too: it is read anew at each call from the first on."""
        value = vars(holder).get(name)
        if type(value) in (int, float) and not immutable(holder):
            note_assigned(holder, name, value)
            self.recorder.sources.guard_version(holder)
            held_by_class(self.recorder, holder, name, value, True)

    def module_attribute(self, frame: Frame, holder: Value, name: str) -> Found:
        """An attribute of a Python module; what it lacks its ``__getattr__`` gives, or that of its class."""
        state, kind = types.ModuleType.__getattribute__(holder, "__dict__"), type(holder)
        sources = self.recorder.sources
        if not str(state.get("__name__")).startswith("torch"):  # a program may assign it a class with properties
            sources.root(holder)
            sources.guard_type(holder)
        own = type_get(kind, name)
        shadowed = kind is not types.ModuleType and hasattr(type(own), "__set__")
        if (shadowed or name not in state) and self.recorder.alive:
            plain = kind is types.ModuleType or python_method(kind, "__getattr__") is None
            if not plain or type(own) is property or type(own) in C_DESCRIPTORS:  # a method is bound anew at each read
                sources.root(holder)
                return self.generic_attribute(frame, holder, kind, name)
            fallback = state.get("__getattr__")
            if own is MISSING and type(fallback) is types.FunctionType and not runs_natively(fallback):
                sources.root(holder)
                sources.guard_absent(holder, name)
                getter = sources.read(holder, "attr", "__getattr__", fallback)
                return self.machine.calls.call(frame, getter, (name,), {})
        try:
            value = getattr(holder, name)
        except AttributeError:  # which the program may catch
            if self.recorder.alive and type_get(kind, name) is MISSING and "__getattr__" not in state:
                sources.root(holder)
                sources.guard_absent_names(holder, (name, "__getattr__"))
            raise
        if not self.recorder.alive:
            return (value,)
        part = "attr" if name in state else "getattr"
        free = type(value) in (int, float) and name in frame.code.stores
        place = place_of(holder, part, name)
        return (sources.read_at(sources.root(holder), place, part, name, value, free or CARRIED),)

    def _super_attribute(self, frame: Frame, holder: Value, name: str) -> Found:
        target = holder.__self__
        kind = holder.__self_class__
        self.recorder.sources.guard_version(kind)
        of_class = issubclass(type(target), type)
        if not of_class:
            self.recorder.sources.guard_type(target)
        order = kind.__mro__
        for base in order[order.index(holder.__thisclass__) + 1 :]:
            on_class = base.__dict__.get(name, MISSING)
            if on_class is MISSING:
                continue
            if type(on_class) is property and is_a(on_class.fget, types.FunctionType) and not of_class:
                return self.machine.calls.call(frame, on_class.fget, (target,), {})
            if type(on_class) is types.FunctionType and not of_class:
                return (types.MethodType(on_class, target),)
            value = getattr(holder, name)
            return (held_by_class(self.recorder, base, name, value) if value is on_class else value,)
        return (getattr(holder, name),)

    def _tensor_attribute(self, holder: Value, name: str, frame: Frame) -> Found:
        recorder = self.recorder
        if name in WAITING and id(holder) in recorder.waits.given:
            return (types.MethodType(waited, holder),)
        if not recorder.alive:
            return (getattr(holder, name),)
        kind = type(holder)
        if kind not in PLAIN_TENSORS:
            found = self._own_attribute(frame, holder, kind, name)
            if found is not MISSING:
                return found
        if name == "shape" and not lacks_sizes(holder):
            return (recorder.sizes.of(holder),)
        if name in DIRECT_TENSOR_ATTRIBUTES:
            recorder.number(holder) if recorder.transformed is None else recorder.transformed.take(holder)
            with torch._C.DisableTorchFunction():
                return (getattr(holder, name),)
        sources = recorder.sources
        if name == "__class__":
            sources.guard_type(holder)
            return (type(holder),)
        on_class = type_get(type(holder), name)
        state = object.__getattribute__(holder, "__dict__")
        if on_class is MISSING or not hasattr(type(on_class), "__set__"):
            if name in state:
                free = (type(state[name]) in (int, float) and name in frame.code.stores) or CARRIED
                value = sources.read(holder, "attr", name, state[name], free)
                made = is_made_tensor(recorder, holder) or id(holder) in recorder.wrappers
                if not sources.knows(holder) and name != "_is_param" and not made:
                    recorder.kill("tensor-attribute", name)
                return (value,)
            if on_class is MISSING and sources.knows(holder):
                sources.fact(Source("getattr", sources.known_source(holder), name), "unset", None, name)
        return (getattr(holder, name),)

    def _own_attribute(self, frame: Frame, holder: Value, kind: type, name: str) -> Found:
        """An attribute that a subclass of tensors has of its own; MISSING for one that all tensors have, and for what
        only this object has.
        """
        recorder = self.recorder
        wraps = wraps_others(kind)
        if not (wraps or is_held(kind)):
            recorder.kill("tensor-kind", f"A {kind.__name__}")
            return (getattr(holder, name),)
        recorder.sources.guard_type(holder)
        recorder.sources.guard_version(kind)
        on_class = type_get(kind, name)
        if on_class is type_get(torch.Tensor, name):
            if wraps and name in METADATA:
                return (outer(self.recorder.sources, self.recorder.wrappers.get(id(holder)), holder, name),)
            if on_class is MISSING or name == "__class__" or as_torch_does(kind):
                return MISSING
            return (getattr(holder, name),)  # the class is asked for what torch has as a function
        described = type(on_class)
        if described is property and is_a(on_class.fget, types.FunctionType):
            return self._computed(frame, holder, kind, name, on_class.fget, (holder,))
        if not hasattr(described, "__set__") and name in object.__getattribute__(holder, "__dict__"):
            return MISSING
        return self._class_value(frame, holder, kind, name, on_class)


def held_by_class(recorder: Recorder, kind: type, name: str, value: Value, free: int = CARRIED) -> Value:
    """A plain value that lies on a class; the fact on the class's version fixes which."""
    sources = recorder.sources
    if not recorder.alive or is_a(value, (bool, str, type(None), types.FunctionType, type)):
        return value
    if sources.written and type(value) in (int, float):
        owner = next((base for base in kind.__mro__ if name in vars(base)), kind)
        if (id(owner), "type_attr", name) in sources.written:
            return sources.written[id(owner), "type_attr", name]
    if sources.is_made(kind):
        kind = next(base for base in kind.__mro__ if name in vars(base))
        if sources.is_made(kind):
            return value
    return sources.read_at(sources.root(kind), (id(kind), "type_attr", name), "type_attr", name, value, free)


def is_made_tensor(recorder: Recorder, tensor: torch.Tensor) -> bool:
    """Whether a tensor was made in this call: what the program hangs onto it is made again with it."""
    return id(tensor) in recorder.numbers and not recorder.sources.knows(tensor)
