"""Calls what can be called: Python functions get frames, instances are made in steps, the rest is native code."""

from __future__ import annotations

import abc
import contextlib
import functools
import operator
import types
from typing import NamedTuple

import torch
from torch._library.custom_ops import CustomOpDef

from framefuse.capture.facts.questions import REGISTRATIONS, answered
from framefuse.capture.interp.continuations import PushInstance
from framefuse.capture.interp.machine import Machine, Special
from framefuse.capture.interp.registry import (
    CLASS_MAKERS,
    FORMS,
    NAMED_EQUIVALENTS,
    SHORTCUTS,
    SPECIALS,
    TRANSFORMS,
    begins,
    equivalent_of,
    form_of,
    needs_python,
    takes,
)
from framefuse.capture.program import leaves
from framefuse.capture.program.bound import unbound
from framefuse.capture.program.equivalents import dispatched, item_getter_
from framefuse.capture.program.frame import Frame, Pending, enter
from framefuse.capture.program.getters import made_of
from framefuse.capture.program.host import HOST
from framefuse.capture.program.leaves import is_wrapper, runs_natively
from framefuse.capture.program.lookups import LOOKUPS, has_finalizer, is_python_metaclass, python_method, type_get
from framefuse.capture.program.markers import MISSING, SWITCH, Marker, Outcome
from framefuse.capture.program.method_equivalents import method_in_python
from framefuse.capture.program.services import Why
from framefuse.capture.program.sharded_optimizers import WHOLE, WRAPPED, wraps_tensors
from framefuse.capture.recording.call_names import by_torchs_names
from framefuse.capture.recording.repeated import call_pure, call_repeated, is_pure, is_repeatable, says_once
from framefuse.capture.recording.saved import SAVED
from framefuse.capture.recording.tensors import is_held
from framefuse.capture.recording.wrappers import wraps_others
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Keywords, Value

# Classes of C whose methods have rows as their classes have them.
OF_THEIR_CLASS = (torch.Size, torch._C.DisableTorchFunctionSubclass)


class Instead(NamedTuple):
    """The call that does what another one would."""

    target: Value
    args: Arguments
    kwargs: Keywords


class Calls:
    """The call protocol of the interpreter."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.recorder = machine.recorder
        self.frames = machine.frames
        self.forced: Why | None = None

    def call(
        self, frame: Frame, target: Value, args: Arguments, kwargs: Keywords, continuation: Pending | None = None
    ) -> Outcome:
        """Pushes the result of the call on ``frame``, or enters a frame that will; ``continuation`` says what becomes
        of the result.
        """
        if self.forced is not None:
            why, self.forced = self.forced, None
            self.machine.exits.opaque(frame, *unbound(target, args), kwargs, continuation, *why)
            return None
        while True:
            reached = self._reach(frame, target, args, kwargs, continuation)
            if not isinstance(reached, Instead):
                break
            target, args, kwargs = reached
        if reached is not MISSING:
            return reached
        if FORMS.get():
            function, operands = unbound(target, args)
            named = by_torchs_names(function, kwargs)
            form = form_of(function, operands, named)
            if form is not None:
                return self.call(frame, form, operands, named, continuation)
        self.machine.natives.call(frame, target, args, kwargs, continuation)
        return None

    def _reach(
        self, frame: Frame, target: Value, args: Arguments, kwargs: Keywords, continuation: Pending | None
    ) -> Outcome | Instead:
        """Makes the call, or says which stands for it; MISSING when native code shall do it."""
        kind = type(target)
        if kind is types.FunctionType:
            return self._function(frame, target, args, kwargs, continuation)
        if kind is types.MethodType:
            return Instead(target.__func__, (target.__self__, *args), kwargs)
        if kind in leaves.NATIVE_KINDS:
            return self._native(frame, target, args, kwargs, continuation)
        if kind is functools.partial:
            return self._partial(target, args, kwargs)
        if kind is HOST.compiled or "__framefuse__" in kind.__dict__:
            return self._compiled(target, args, kwargs)
        if is_a(target, type):
            return self.construct(frame, target, args, kwargs, continuation)
        return self._instance(frame, target, args, kwargs, continuation)

    def _function(
        self, frame: Frame, target: Value, args: Arguments, kwargs: Keywords, continuation: Pending | None
    ) -> Outcome | Instead:
        """A function of Python gets a frame, unless the table or torch's own rules have something in its place."""
        special = SPECIALS.get(target)
        if special is not None and takes(target, args, kwargs):
            return self._special(special, frame, target, args, kwargs, continuation)
        if leaves.is_transform(target):
            return self._special(TRANSFORMS[0], frame, target, (target, *args), kwargs, continuation)
        name = target.__name__
        if name in WHOLE and args and wraps_tensors(args[0]) and type_get(type(args[0]), name) is target:
            self.machine.exits.opaque(frame, WHOLE[name], args, kwargs, continuation, *WRAPPED)
            return None
        if is_wrapper(target):
            return Instead(target.__wrapped__, args, kwargs)
        if runs_natively(target) and not _is_walked(target):
            named = NAMED_EQUIVALENTS.get((target.__globals__.get("__name__", ""), target.__name__))
            return Instead(named[1], args, kwargs) if named is not None and named[0](args, kwargs) else MISSING
        if target.__code__ is DISPATCH and len(args) == 1 and is_a(args[0], type) and not kwargs:
            registry = self._registry(target, args[0])
            if registry is not None:
                return Instead(dispatched, (registry, *args), kwargs)
        if target in SHORTCUTS and SHORTCUTS[target](self.machine, args, kwargs, continuation):
            return SWITCH
        if target in MANAGED and _holds_native_generator(args):
            return MISSING
        self.recorder.functions.enter(target)
        entered = enter(target, args, kwargs)
        if entered.code.missing is not None:
            self.recorder.kill("opcode", f"{entered.code.missing} in {target.__qualname__}")
            return MISSING
        entered.continuation = continuation
        self.machine.push(entered)
        return SWITCH

    def _native(
        self, frame: Frame, target: Value, args: Arguments, kwargs: Keywords, continuation: Pending | None
    ) -> Outcome | Instead:
        """A function or method of C that has a row in the table, or that Python of ours does the same as."""
        try:
            special = SPECIALS.get(target)
        except TypeError:
            special = None
        if special is not None and not takes(target, args, kwargs):
            return MISSING
        if special is None and type(target) is types.MethodWrapperType:
            special = SPECIALS.get((target.__name__, target.__objclass__))
            if special is not None:
                args, target = (target.__self__, *args), getattr(target.__objclass__, target.__name__)
        elif special is None and type(target) is types.BuiltinFunctionType:
            of_class = self._method_of_class(target)
            special = SPECIALS.get(of_class)
            if special is not None:
                args, target = (target.__self__, *args), of_class
        if special is not None:
            return self._special(special, frame, target, args, kwargs, continuation)
        moves = self.recorder.contents.holds_moving_number
        in_python = equivalent_of(target, args, False, moves)
        if in_python is not None:
            return Instead(in_python, args, kwargs)
        walked = needs_python((*args, *kwargs.values())) or any(moves(part) for part in args if type(part) is list)
        in_python = method_in_python(target) if walked else None
        return MISSING if in_python is None else Instead(in_python, (target.__self__, *args), kwargs)

    def _partial(self, target: Value, args: Arguments, kwargs: Keywords) -> Instead:
        sources = self.recorder.sources
        if sources.knows(target):
            for name in ("func", "args", "keywords"):
                part = sources.read(target, "getattr", name, getattr(target, name))
                self.recorder.contents.guard_shallow_contents(part)
        return Instead(target.func, (*target.args, *args), {**target.keywords, **kwargs})

    def _compiled(self, target: Value, args: Arguments, kwargs: Keywords) -> Instead:
        """A function or module that is compiled itself: its program is part of this one."""
        sources = self.recorder.sources
        sources.guard_type(target)
        state = sources.read(target, "getattr", "__framefuse__", target.__framefuse__)
        owner = sources.read(state, "getattr", "owner", state.owner)
        function = sources.read(state, "getattr", "function", state.function)
        return Instead(function, args if owner is None else (owner, *args), kwargs)

    def _instance(
        self, frame: Frame, target: Value, args: Arguments, kwargs: Keywords, continuation: Pending | None
    ) -> Outcome | Instead:
        """An object that can be called: of ``operator``, of torch, of ``functools``, or by a ``__call__`` of Python."""
        kind, sources = type(target), self.recorder.sources
        if kind is CustomOpDef:
            return Instead(sources.read(target, "getattr", "_opoverload", target._opoverload), args, kwargs)
        if is_a(target, (torch.jit.ScriptModule, torch._ops.OpOverloadPacket, torch._ops.OpOverload)):
            return MISSING
        fixed = sources.holds(target) or not sources.knows(target)  # no fact holds the names in any other
        if fixed and len(args) == 1 and not kwargs:
            if kind is operator.methodcaller:
                (name, *rest), keywords = made_of(target)
                return Instead(self.machine.attributes.attribute_now(frame, args[0], name), tuple(rest), keywords)
            if kind is operator.attrgetter:
                self.machine.finish(frame, self._get_attributes(frame, target, args[0]), continuation)
                return None
            if kind is operator.itemgetter and python_method(type(args[0]), "__getitem__") is not None:
                return Instead(item_getter_, (args[0], *made_of(target)[0]), kwargs)
        self.recorder.memory.lasting += 1  # what follows runs Python, or enters a frame
        if is_pure(target, args, kwargs, sources):
            value = call_pure(self.recorder, target, args, kwargs)
            if value is MISSING:
                return Instead(target.__wrapped__, args, kwargs)
            self.machine.finish(frame, value, continuation)
            return None
        if not says_once(target) and is_repeatable(target, args, kwargs, sources):
            self.machine.finish(frame, call_repeated(self.recorder, target, args, kwargs), continuation)
            return None
        method = type_get(kind, "__call__")
        if type(method) is not types.FunctionType:
            return MISSING
        if not runs_natively(method):
            sources.guard_type(target)
            sources.guard_version(kind)
        return Instead(method, (target, *args), kwargs)

    def _registry(self, function: types.FunctionType, kind: type) -> Value:
        """The table of a ``functools.singledispatch`` whose ``dispatch`` this is, if ``kind`` derives from all of its
        classes that it belongs to: what else that looks into is a weak cache.
        """
        cell = (function.__closure__ or ())[DISPATCH.co_freevars.index("registry")]
        abstract = [each for each in cell.cell_contents if is_a(each, abc.ABCMeta) and each not in kind.__mro__]
        if any(python_method(type(each), "__subclasscheck__") or issubclass(kind, each) for each in abstract):
            return None
        if abstract:
            LOOKUPS.note(kind)  # which an abstract class may look for methods in
            answered(self.recorder.sources, REGISTRATIONS)
        self.recorder.functions.enter(function)
        registry = self.recorder.functions.read_cell(cell, cell.cell_contents, 0)
        self.recorder.contents.guard_extent(registry)
        return registry

    def _get_attributes(self, frame: Frame, getter: Value, holder: Value) -> Value:
        """What an attrgetter gives for ``holder``."""
        given = []
        for path in made_of(getter)[0]:
            value, names = holder, path.split(".")
            if is_a(holder, torch.Tensor) and any(name.startswith(SAVED) for name in names):
                self.recorder.end("saved", path)  # before its step is learnt
            for name in names:
                value = self.machine.attributes.attribute_now(frame, value, name)
            given.append(value)
        return given[0] if len(given) == 1 else tuple(given)

    def _method_of_class(self, method: types.BuiltinFunctionType) -> Value:
        """The method of its class at which the row of a bound method of C stands, if one may; it takes ``self`` first,
        by a row and without.
        """
        holder = method.__self__
        if type(holder) in OF_THEIR_CLASS:
            return getattr(type(holder), method.__name__)
        if method.__name__ == "as_subclass" and is_a(holder, torch.Tensor):
            return torch.Tensor.as_subclass
        if method.__name__ == "__subclasses__" and is_a(holder, type):
            return type.__subclasses__
        if method.__name__ == "apply" and is_a(holder, type) and issubclass(holder, torch.autograd.Function):
            return vars(torch.autograd.Function)["apply"]  # before torch 2.14 a method of Python's
        return None

    def _special(
        self,
        special: Special,
        frame: Frame,
        target: Value,
        args: Arguments,
        kwargs: Keywords,
        continuation: Pending | None,
    ) -> Outcome:
        depth = len(self.frames)
        self.recorder.memory.lasting += 1
        outcome = self._sealed(special, frame, args, kwargs, continuation)
        if outcome is MISSING:
            self.machine.natives.call(frame, target, args, kwargs, continuation)
            return None
        if outcome is SWITCH:
            if continuation is not None and len(self.frames) > depth:
                if self.frames[-1].continuation is not None:
                    self.machine.finish(frame, self.machine.entered_value(frame, depth), continuation)
                    return None
                self.frames[-1].continuation = continuation
            return SWITCH
        if continuation is not None:
            self.machine.finish(frame, frame.stack.pop(), continuation)
        return None

    def _sealed(
        self, special: Special, frame: Frame, args: Arguments, kwargs: Keywords, continuation: Pending | None
    ) -> Outcome:
        """Runs a special; where more than a push follows it, no break may lose that."""
        if continuation is None:
            return special(self.machine, frame, args, kwargs)
        self.machine.exits.sealed += 1
        try:
            return special(self.machine, frame, args, kwargs)
        finally:
            self.machine.exits.sealed -= 1

    # Classes --------------------------------------------------------------------------------------------------------

    def construct(
        self, frame: Frame, cls: type, args: Arguments, kwargs: Keywords, continuation: Pending | None
    ) -> Outcome:
        """Calls a class; MISSING when native code shall do it."""
        if has_finalizer(cls):
            self.recorder.kill("finalizer", f"{cls.__name__}.__del__")
        special = SPECIALS.get(cls)
        if special is not None and takes(cls, args, kwargs):
            outcome = self._sealed(special, frame, args, kwargs, continuation)
            if outcome is not MISSING:
                if outcome is None and continuation is not None:
                    self.machine.finish(frame, frame.stack.pop(), continuation)
                return outcome
        tracked, moves = self.recorder.relations.tracked, self.recorder.contents.holds_moving_number
        in_python = equivalent_of(cls, (*args, *kwargs.values()), tracked, moves)
        if in_python is not None and begins(in_python, args, kwargs):
            return self.call(frame, in_python, args, kwargs, continuation)
        method = python_method(type(cls), "__call__")
        if method is not None:
            return self.call(frame, method, (cls, *args), kwargs, continuation)
        if type_get(type(cls), "__call__") is not PLAIN_MAKING:  # an enumeration looks a member up
            return MISSING
        return self.make(frame, cls, args, kwargs, continuation)

    def make(self, frame: Frame, cls: type, args: Arguments, kwargs: Keywords, continuation: Pending | None) -> Outcome:
        """An instance as ``type.__call__`` makes it; MISSING when native code shall do it."""
        self.recorder.sources.guard_version(cls)
        init: Value = type_get(cls, "__init__")
        new: Value = type_get(cls, "__new__")
        new = new.__func__ if is_a(new, staticmethod) else new
        python_init = type(init) is types.FunctionType and not runs_natively(init)
        python_new = type(new) is types.FunctionType and not runs_natively(new)
        if issubclass(cls, type):
            if not is_python_metaclass(cls) or len(args) != 3:
                return MISSING
            python_new = python_new or new in CLASS_MAKERS
        if not (python_init or python_new):
            if new == torch.Tensor.__new__:
                return self.call(frame, new, (cls, *args), kwargs, continuation)
            return MISSING
        if issubclass(cls, torch.Tensor) and not (python_new and (is_held(cls) or wraps_others(cls))):
            self.recorder.kill("tensor-kind", f"A {cls.__name__}")
            return MISSING
        if new in CLASS_MAKERS:
            instance = CLASS_MAKERS[new](self.machine, new, (cls, *args), kwargs)
            if is_a(instance, Marker):
                return instance
        elif python_new:
            instance = self.machine.call_nested(new, (cls, *args), kwargs)
        elif new is object.__new__:
            instance = object.__new__(cls)
        else:
            instance = new(cls, *args, **kwargs)
        if not is_a(instance, cls):
            self.machine.finish(frame, instance, continuation)
            return None
        if python_init:
            self.recorder.functions.enter(init)
            entered = enter(init, (instance, *args), kwargs)
            if entered.code.missing is not None:
                self.recorder.kill("opcode", f"{entered.code.missing} in {init.__qualname__}")
                init(instance, *args, **kwargs)
                self.machine.finish(frame, instance, continuation)
                return None
            if continuation is not None:
                self.machine.call_nested(init, (instance, *args), kwargs)
                self.machine.finish(frame, instance, continuation)
                return None
            entered.continuation = PushInstance(instance)
            self.machine.push(entered)
            return SWITCH
        if init is not object.__init__ and init is not type.__init__:
            init(instance, *args, **kwargs)
        self.machine.finish(frame, instance, continuation)
        return None


DISPATCH = functools.singledispatch(lambda value: None).dispatch.__code__
# Of a context manager made of a generator: that ends by an exception, which these take.
MANAGED = (contextlib._GeneratorContextManager.__enter__, contextlib._GeneratorContextManager.__exit__)
PLAIN_MAKING = vars(type)["__call__"]


def _holds_native_generator(args: Arguments) -> bool:
    """Whether the generator of a context manager is of code that runs natively, torch's own for one."""
    held = getattr(args[0], "__dict__", {}) if args else {}
    return type(held.get("gen")) is types.GeneratorType


def _is_walked(function: types.FunctionType) -> bool:
    """Whether a function of torch is the program's own code now."""
    form = FORMS.get().get(function)
    return form is not None and form.function is function
