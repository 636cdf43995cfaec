"""Writes and deletes attributes as the language does: what was there before is journalled, or the write refused."""

from __future__ import annotations

import threading
import types

import torch

from framefuse.capture.facts.class_numbers import is_assigned, note_assigned
from framefuse.capture.facts.numbers import TRACKED, bare, plain_number
from framefuse.capture.interp.attributes import MODULE_PARTS, held_by_class, is_made_tensor
from framefuse.capture.interp.continuations import DROP
from framefuse.capture.interp.machine import Machine
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.leaves import runs_natively
from framefuse.capture.program.lookups import python_method, type_get
from framefuse.capture.program.markers import MISSING, SWITCH, Outcome
from framefuse.capture.recording.tensors import is_held
from framefuse.ir.classes import written_in_c
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value

SETTERS = (object.__setattr__, types.SimpleNamespace.__setattr__, BaseException.__setattr__)
OF_THREADS = threading.local.__setattr__
DELETERS = (object.__delattr__, types.SimpleNamespace.__delattr__, torch.nn.Module.__delattr__)


class AttributeWrites:
    """How the interpreter sets and deletes attributes."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.recorder = machine.recorder

    def store(self, frame: Frame, holder: Value, name: str, value: Value) -> Outcome:
        """``holder.name = value``; SWITCH after a frame was entered that does it (its value is to be dropped)."""
        kind = type(holder)
        recorder = self.recorder
        if kind in TRACKED:
            setattr(plain_number(holder), name, value)  # raises what a plain number raises
        if issubclass(kind, (torch.Tensor, type)):
            if issubclass(kind, type) or type_get(kind, name) is MISSING:
                self._store_outside(holder, name, value)
                return None
            on_class = type_get(kind, name)
            if is_held(kind) and not hasattr(type(on_class), "__set__"):
                self._store_outside(holder, name, value)
                return None
            if type(on_class) is property and is_a(on_class.fset, types.FunctionType) and is_held(kind):
                recorder.sources.guard_type(holder)
                recorder.sources.guard_version(kind)
                return self.machine.calls.call(frame, on_class.fset, (holder, value), {}, DROP)
            return self._store_in_tensor(frame, holder, name, value)
        if type(holder) is types.ModuleType:
            recorder.sources.root(holder)
            recorder.journal.place("attr", holder, name, value, holder.__dict__.get(name, MISSING))
            setattr(holder, name, bare(value))
            return None
        recorder.sources.guard_version(kind)
        own = type_get(kind, "__setattr__")
        if own is torch.nn.Module.__setattr__:
            return self.store_in_module(frame, holder, name, value)
        if type(own) is types.FunctionType and not runs_natively(own):
            recorder.sources.guard_type(holder)
            return self.machine.calls.call(frame, own, (holder, name, value), {}, DROP)
        if own is OF_THREADS and not hasattr(type(type_get(kind, name)), "__set__"):
            if recorder.sources.knows(holder):
                recorder.journal.place("local", holder, name, value, holder.__dict__.get(name, MISSING))
                value = bare(value)
            setattr(holder, name, value)
            return None
        if own not in SETTERS:
            if recorder.sources.knows(holder):
                (value,) = recorder.refuse_write(f"{kind.__name__}.{name}", value)
            setattr(holder, name, plain_number(value))
            return None
        return self.generic_store(frame, holder, kind, name, value)

    def _store_in_tensor(self, frame: Frame, holder: Value, name: str, value: Value) -> Outcome:
        """``grad`` and ``data`` are places of a tensor that existed before; any other attribute is set by an opaque
        step, and so is ``data`` that lies in another way.
        """
        recorder = self.recorder
        known = recorder.alive and recorder.sources.knows(holder)
        if name == "grad" and known and (value is None or is_a(value, torch.Tensor)):
            with torch._C.DisableTorchFunction():
                before = holder.grad
                holder.grad = value
            recorder.journal.place("grad", holder, None, value, before if before is not None else MISSING)
            return None
        if name == "data" and known and is_a(value, torch.Tensor) and self._stands_for(value, holder):
            with torch._C.DisableTorchFunction():
                holder.data = value
            recorder.journal.place("data", holder, "data", value, MISSING)
            recorder.replaced.add(id(holder))
            self.machine.exits.watch()  # what reads it is taken back
            return SWITCH
        self.machine.natives.call(frame, setattr, (holder, name, value), {}, DROP)
        return None

    def _stands_for(self, value: torch.Tensor, holder: torch.Tensor) -> bool:
        """Whether a tensor that this trace computes lies as the one does whose data it becomes."""
        if self.recorder.numbers.get(id(value)) is None or self.recorder.sources.knows(value):
            return False
        if type(value) is not torch.Tensor or type(holder) not in (torch.Tensor, torch.nn.Parameter):
            return False
        with torch._C.DisableTorchFunction():
            if value.layout is not torch.strided or holder.layout is not torch.strided or value.is_nested:
                return False
            if holder._is_view() or not holder.is_leaf:  # autograd looks at where it lies
                return False
            alike = value.shape == holder.shape and value.dtype == holder.dtype and value.device == holder.device
            return alike and value.stride() == holder.stride() and not (value.is_inference() or holder.is_inference())

    def _store_outside(self, holder: Value, name: str, value: Value) -> None:
        """A new attribute of a tensor, or one of a class, whose every change voids what is known of its instances."""
        recorder = self.recorder
        tensor = is_a(holder, torch.Tensor) and is_held(type(holder))
        if tensor and recorder.sources.knows(holder):
            before = object.__getattribute__(holder, "__dict__").get(name, MISSING)
            recorder.journal.place("attr", holder, name, value, before)
        elif tensor and is_made_tensor(recorder, holder):
            object.__getattribute__(holder, "__dict__")[name] = value
            return
        elif recorder.sources.is_made(holder):
            value = plain_number(value)
            if type(value) is types.FunctionType and not recorder.sources.knows(value):
                recorder.sources.note_made(value)
        elif not self._counts(holder, name, value):
            (value,) = recorder.refuse_write(f"{getattr(holder, '__name__', type(holder).__name__)}.{name}", value)
            note_assigned(holder, name, bare(value))
        setattr(holder, name, bare(value))

    def _counts(self, holder: Value, name: str, value: Value) -> bool:
        """Whether a class has a number by this name, which programs assign while they run, and takes another one of its
        type: then no other fact about the class is touched, and the number is written at each call.
        """
        recorder = self.recorder
        if type(holder) is not type or not recorder.alive or not is_assigned(holder, name):
            return False
        before = vars(holder).get(name)
        if type(before) is not type(bare(value)) or recorder.sources.is_made(holder):
            return False
        recorder.sources.guard_version(holder)
        recorder.journal.class_number(holder, name, value, before)
        return recorder.alive

    def generic_store(self, frame: Frame, holder: Value, kind: type, name: str, value: Value) -> Outcome:
        """As object.__setattr__."""
        recorder = self.recorder
        on_class = type_get(kind, name)
        known = recorder.sources.knows(holder)
        if known:
            recorder.sources.guard_type(holder)
        setter = on_class.fset if type(on_class) is property else None
        if is_a(setter, types.FunctionType) and not runs_natively(setter):
            return self.machine.calls.call(frame, on_class.fset, (holder, value), {}, DROP)
        if on_class is not MISSING and hasattr(type(on_class), "__set__"):
            setter = python_method(type(on_class), "__set__")
            if setter is not None:
                on_class = held_by_class(recorder, kind, name, on_class)
                return self.machine.calls.call(frame, setter, (on_class, holder, value), {}, DROP)
            if known and type(on_class) is types.MemberDescriptorType and not written_in_c(kind):
                recorder.journal.place("slot", holder, name, value, getattr(holder, name, MISSING))
            elif known:
                (value,) = recorder.refuse_write(f"{kind.__name__}.{name}", value)
            keeps = type(on_class) is types.MemberDescriptorType and not written_in_c(kind)
            object.__setattr__(holder, name, bare(value) if known else value if keeps else plain_number(value))
            return None
        if known and kind.__dictoffset__:  # else it takes no attribute
            before = object.__getattribute__(holder, "__dict__").get(name, MISSING)
            recorder.journal.place("attr", holder, name, value, before)
            value = bare(value)
        object.__setattr__(holder, name, value)
        return None

    def store_in_module(self, frame: Frame, holder: Value, name: str, value: Value) -> Outcome:
        recorder = self.recorder
        if not recorder.sources.knows(holder):
            torch.nn.Module.__setattr__(holder, name, value)
            return None
        state = holder.__dict__
        if self._holds(holder, name, value):
            return None
        registered = any(name in state.get(part, ()) for part in ("_parameters", "_modules"))
        if is_a(value, (torch.Tensor, torch.nn.Module)):  # no other object is asked for its class
            registered = registered or isinstance(value, (torch.nn.Parameter, torch.nn.Module))
        if registered or (is_a(value, torch.Tensor) and getattr(value, "_is_buffer", False)):
            (value,) = recorder.refuse_write(f"{type(holder).__name__}.{name}", value)
            torch.nn.Module.__setattr__(holder, name, value)
            return None
        buffers = state.get("_buffers", {})
        if name in buffers:
            content = recorder.sources.read(holder, "attr", "_buffers", buffers)
            recorder.journal.place("item", content, name, value, buffers[name])
            torch.nn.Module.__setattr__(holder, name, value)
            return None
        for part in MODULE_PARTS:
            if part in state:
                recorder.contents.guard_membership(recorder.sources.read(holder, "attr", part, state[part]), name)
        return self.generic_store(frame, holder, type(holder), name, value)

    def _holds(self, holder: torch.nn.Module, name: str, value: Value) -> bool:
        """Whether a module has this parameter, submodule or buffer by this name already, which is held to stay so."""
        sources, state = self.recorder.sources, holder.__dict__
        parts = ["_parameters", "_modules"]
        if is_a(value, torch.Tensor) and getattr(value, "_is_buffer", False):
            passing = state.get("_non_persistent_buffers_set")
            persistent = getattr(value, "persistent", None)
            if type(passing) is set and (name in passing) is not persistent:
                sources.read(value, "attr", "persistent", persistent)
                self.recorder.contents.guard_membership(
                    sources.read(holder, "attr", "_non_persistent_buffers_set", passing), name
                )
                parts.append("_buffers")
        for part in parts:
            held = state.get(part)
            if type(held) is dict and value is not None and held.get(name) is value and name not in state:
                sources.read(sources.read(holder, "attr", part, held), "item", name, value)
                return True
        return False

    def delete(self, frame: Frame, holder: Value, name: str) -> Outcome:
        """``del holder.name``."""
        recorder = self.recorder
        kind = type(holder)
        if kind in TRACKED:
            delattr(plain_number(holder), name)
        own = python_method(kind, "__delattr__")
        if own is not None:
            return self.machine.calls.call(frame, own, (holder, name), {}, DROP)
        if issubclass(kind, (torch.Tensor, type, types.ModuleType)) or type_get(kind, "__delattr__") not in DELETERS:
            recorder.kill("write", f"{kind.__name__}.{name}")
            delattr(holder, name)
            return None
        return self.generic_delete(frame, holder, name)

    def generic_delete(self, frame: Frame, holder: Value, name: str) -> Outcome:
        """As object.__delattr__."""
        sources, contents, kind = self.recorder.sources, self.recorder.contents, type(holder)
        sources.guard_version(kind)
        on_class = type_get(kind, name)
        deleter = on_class.fdel if type(on_class) is property else None
        if is_a(deleter, types.FunctionType) and not runs_natively(deleter):
            return self.machine.calls.call(frame, on_class.fdel, (holder,), {}, DROP)
        if sources.knows(holder):
            sources.guard_type(holder)
            state = sources.instance_dict(holder) if kind.__dictoffset__ else None
            if on_class is not MISSING and hasattr(type(on_class), "__set__"):
                if type(on_class) is not types.MemberDescriptorType or not hasattr(holder, name):
                    self.recorder.kill("write", f"{kind.__name__}.{name}")
                elif self.recorder.alive:
                    sources.read(holder, "getattr", name, getattr(holder, name))  # it was there
                    self.recorder.journal.place("delslot", holder, name, MISSING, getattr(holder, name))
            elif state is None or name not in state[0]:
                self.recorder.kill("write", f"{kind.__name__}.{name}")
            else:
                contents.guard_membership(state[0], name)
                self.recorder.journal.place("delattr", holder, name, MISSING, state[0][name])
        object.__delattr__(holder, name)
        return None
