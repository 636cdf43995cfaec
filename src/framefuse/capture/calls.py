"""Calls what can be called: Python functions get frames, instances are made in steps, the rest is native code."""

from __future__ import annotations

import copy
import functools
import operator
import types
from typing import Any

import torch
from torch._library.custom_ops import CustomOpDef
from torch.nn.parallel import DistributedDataParallel

from framefuse.capture import leaves
from framefuse.capture.attribute_functions import ATTRIBUTE_FUNCTIONS
from framefuse.capture.attributes import has_finalizer, python_method, type_get
from framefuse.capture.class_making import MAKERS, new_class, understood
from framefuse.capture.constructors import CONSTRUCTORS
from framefuse.capture.copies import deepcopy, shallow
from framefuse.capture.custom_functions import apply
from framefuse.capture.frame import (
    MISSING,
    SWITCH,
    Ended,
    Frame,
    enter,
)
from framefuse.capture.frame_readers import FRAME_READERS
from framefuse.capture.fused_steps import FUSED_STEPS
from framefuse.capture.generator_calls import GENERATOR_CALLS
from framefuse.capture.heaps import HEAPS, of_a_heap
from framefuse.capture.host import HOST
from framefuse.capture.identities import IDENTITIES
from framefuse.capture.leaves import is_wrapper, runs_natively
from framefuse.capture.module_calls import CALL as MODULE_CALL
from framefuse.capture.module_calls import enter_module
from framefuse.capture.number_functions import NUMBER_FUNCTIONS
from framefuse.capture.numbers import NUMBERS, TRACKED, bare, pin_nested, plain_number, reads_values
from framefuse.capture.operator_functions import OPERATOR_FUNCTIONS
from framefuse.capture.policy import Natives, unbound
from framefuse.capture.protocols import checked
from framefuse.capture.quiet import QUIET
from framefuse.capture.repeated import call_repeated, is_repeatable
from framefuse.capture.scans import associative_scan, scanned
from framefuse.capture.slot_methods import SLOT_METHODS
from framefuse.capture.specials import ASKED, SPECIALS, TWIN_TYPES, TWINS, needs_twin
from framefuse.capture.texts import QUESTIONS
from framefuse.capture.twins import equal_parts, inside_ddp_forward
from framefuse.capture.unseen import PLAIN, compared, compares, hidden, shown, walked
from framefuse.ir.classes import immutable

HOLDERS = frozenset((tuple, list, dict))  # whose C code compares what lies in them
SEQUENCES = (tuple, list)
EQUALITY = (operator.eq, operator.ne)
SIMPLE = frozenset(
    (
        int,
        float,
        bool,
        str,
        bytes,
        type(None),
        tuple,
        list,
        dict,
        set,
        frozenset,
        slice,
        range,
        torch.Tensor,
        torch.Size,
        torch.nn.Parameter,
    )
)
# Classes of C whose instances call a function that they are given; where that is native it must not see our numbers.
DRIVERS = frozenset((map, filter))
SPECIALS[copy.deepcopy] = deepcopy
SPECIALS[copy.copy] = shallow
SPECIALS |= {native: of_a_heap(twin) for native, twin in HEAPS.items()}
SPECIALS[DistributedDataParallel._inside_ddp_forward] = lambda machine, frame, args, kwargs: machine.call(
    frame, inside_ddp_forward, args, kwargs
)
SPECIALS.update(ATTRIBUTE_FUNCTIONS)
SPECIALS.update(FRAME_READERS)
SPECIALS.update(NUMBER_FUNCTIONS)
SPECIALS.update(IDENTITIES)
SPECIALS.update(FUSED_STEPS)
SPECIALS.update(OPERATOR_FUNCTIONS)
SPECIALS.update(CONSTRUCTORS)
SPECIALS.update(GENERATOR_CALLS)
SPECIALS.update(SLOT_METHODS)
SPECIALS.update(QUIET)
SPECIALS.update(QUESTIONS)
SPECIALS[torch.autograd.Function.apply.__func__] = apply  # type: ignore[attr-defined]


class Calls(Natives):
    """The call protocol of the interpreter."""

    recorder: Any
    frames: list[Frame]
    inlined: int

    def call(self, frame: Frame, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], then: Any = None) -> Any:
        """Pushes the result of the call on ``frame``, or enters a frame that will; ``then`` says what becomes of the
        result.
        """
        if self.forced is not None:
            why, self.forced = self.forced, None
            self.opaque(frame, *unbound(target, args), kwargs, then, *why)
            return None
        sources, contents = self.recorder.sources, self.recorder.contents
        while True:
            kind = type(target)
            if kind is types.FunctionType:
                special = SPECIALS.get(target)
                if special is not None:
                    return self._special(special, frame, target, args, kwargs, then)
                if is_wrapper(target):
                    target = target.__wrapped__
                    continue
                if runs_natively(target):
                    if scanned(target, args, kwargs):
                        target = associative_scan
                        continue
                    break
                if target is MODULE_CALL and enter_module(self, args, kwargs, then):
                    return SWITCH
                sources.enter_function(target)
                entered = enter(target, args, kwargs)
                if entered.code.missing is not None:
                    self.recorder.kill("opcode", f"{entered.code.missing} in {target.__qualname__}")
                    break
                entered.then = then
                self.push(entered)  # type: ignore[attr-defined]
                return SWITCH
            if kind is types.MethodType:
                args, target = (target.__self__, *args), target.__func__
                continue
            if kind in leaves.NATIVE_KINDS:
                try:
                    special = SPECIALS.get(target)
                except TypeError:
                    special = None
                if special is None and kind is types.MethodWrapperType:
                    special = SPECIALS.get((target.__name__, target.__objclass__))
                    if special is not None:
                        args = (target.__self__, *args)
                if special is not None:
                    return self._special(special, frame, target, args, kwargs, then)
                if target in TWINS and needs_twin(args, *ASKED.get(target, ())):
                    target = TWINS[target]
                    continue
                break
            if kind is functools.partial:
                if sources.knows(target):
                    for name in ("func", "args", "keywords"):
                        part = sources.read(target, "getattr", name, getattr(target, name))
                        contents.guard_shallow_contents(part)
                args, kwargs = (*target.args, *args), {**target.keywords, **kwargs}
                target = target.func
                continue
            if kind is HOST.compiled or "__framefuse__" in kind.__dict__:
                # Compiled itself, a function or the twin of a module: its program is part of this one.
                sources.guard_type(target)
                state = sources.read(target, "getattr", "__framefuse__", target.__framefuse__)
                owner = sources.read(state, "getattr", "owner", state.owner)
                args = args if owner is None else (owner, *args)
                target = sources.read(state, "getattr", "function", state.function)
                continue
            if kind is operator.methodcaller and len(args) == 1 and not kwargs:
                made, parts = target.__reduce__()
                if made is operator.methodcaller:
                    target, args = self.attribute_now(frame, args[0], parts[0]), parts[1:]  # type: ignore[attr-defined]
                    continue
            if isinstance(target, type):
                outcome = self.construct(frame, target, args, kwargs, then)
                if outcome is MISSING:
                    break
                return outcome
            if isinstance(target, torch.jit.ScriptModule):
                break
            if kind is CustomOpDef:
                target = sources.read(target, "getattr", "_opoverload", target._opoverload)
                continue
            if isinstance(target, (torch._ops.OpOverloadPacket, torch._ops.OpOverload)):
                break
            if kind is operator.attrgetter and len(args) == 1 and not kwargs:
                self.finish(frame, self._get_attributes(frame, target, args[0]), then)
                return None
            if is_repeatable(target, args, kwargs, sources):
                self.finish(frame, call_repeated(self.recorder, target, args, kwargs), then)
                return None
            method = type_get(kind, "__call__")
            if type(method) is types.FunctionType and not runs_natively(method):
                sources.guard_type(target)
                sources.guard_version(kind)
                args, target = (target, *args), method
                continue
            if type(method) is types.FunctionType and isinstance(method, types.FunctionType):
                args, target = (target, *args), method
                continue
            break
        self.native(frame, target, args, kwargs, then)
        return None

    def _get_attributes(self, frame: Frame, getter: Any, holder: Any) -> Any:
        """What an attrgetter gives for ``holder``."""
        found = []
        for path in getter.__reduce__()[1]:
            value = holder
            for name in path.split("."):
                value = self.attribute_now(frame, value, name)  # type: ignore[attr-defined]
            found.append(value)
        return found[0] if len(found) == 1 else tuple(found)

    def _special(self, special: Any, frame: Frame, target: Any, args: Any, kwargs: Any, then: Any) -> Any:
        depth = len(self.frames)
        outcome = self._sealed(special, frame, args, kwargs, then)
        if outcome is MISSING:
            self.native(frame, target, args, kwargs, then)
            return None
        if outcome is SWITCH:
            if then is not None and len(self.frames) > depth:
                if self.frames[-1].then is not None:
                    self.finish(frame, self.entered_value(frame, depth), then)  # type: ignore[attr-defined]
                    return None
                self.frames[-1].then = then
            return SWITCH
        if then is not None:
            self.finish(frame, frame.stack.pop(), then)
        return None

    def _sealed(self, special: Any, frame: Frame, args: Any, kwargs: Any, then: Any) -> Any:
        """Runs a special; where more than a push follows it, no break may lose that."""
        if then is None:
            return special(self, frame, args, kwargs)
        self.sealed += 1
        try:
            return special(self, frame, args, kwargs)
        finally:
            self.sealed -= 1

    def finish(self, frame: Frame, value: Any, then: Any) -> None:
        """Does with a returned value what ``then`` says; without one the value is pushed."""
        if then is None:
            frame.stack.append(value)
            return
        what = then[0]
        if what == "drop":
            return
        if what == "none":
            value = None
        if what == "init":
            if value is not None:
                raise TypeError(f"__init__() should return None, not '{type(value).__name__}'")
            value = then[1]
        elif what == "not":
            value = not value
        elif what == "bool":
            value = bool(value)
        elif what == "found":
            value = True
        elif what == "cached":
            if self.recorder.sources.knows(then[1]):
                self.recorder.journal.place("attr", then[1], then[2], value, MISSING)
                then[1].__dict__[then[2]] = bare(value)
            else:
                then[1].__dict__[then[2]] = value
        elif what == "binary" and value is NotImplemented:
            attempts, function, left, right = then[1:]
            self.operate(frame, attempts, function, left, right, nested=True)
            return
        elif what == "iterator":
            value = iter(self.elements(value))
        elif what == "checked":
            value = checked(then[1], then[2], value)
        elif what == "raise":
            self.throw(exception_of(then[2], value), then[1])  # type: ignore[attr-defined]
            return
        elif what == "jump":
            if value is then[1]:
                frame.step = then[2]
            return
        elif what == "next":
            if value is Ended:
                frame.stack.pop()
                frame.step = then[1]
                return
        elif what == "jump or pop":
            if value is then[1]:
                frame.step = then[2]
            else:
                frame.stack.pop()
            return
        frame.stack.append(value)

    # Classes --------------------------------------------------------------------------------------------------------

    def construct(self, frame: Frame, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], then: Any) -> Any:
        """Calls a class; MISSING when native code shall do it."""
        if has_finalizer(cls):
            self.recorder.kill("finalizer", f"{cls.__name__}.__del__")
        special = SPECIALS.get(cls)
        if special is not None:
            outcome = self._sealed(special, frame, args, kwargs, then)
            if outcome is not MISSING:
                if outcome is None and then is not None:
                    self.finish(frame, frame.stack.pop(), then)
                return outcome
        drives = cls in DRIVERS and self.recorder.relations.tracked and bool(args)
        given = (*args, *kwargs.values())
        if cls in TWIN_TYPES and (drives or needs_twin(given, *ASKED.get(cls, ()))):
            return self.call(frame, TWIN_TYPES[cls], args, kwargs, then)
        method = python_method(type(cls), "__call__")
        if method is not None:
            return self.call(frame, method, (cls, *args), kwargs, then)
        return self.make(frame, cls, args, kwargs, then)

    def make(self, frame: Frame, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], then: Any) -> Any:
        """An instance as ``type.__call__`` makes it; MISSING when native code shall do it."""
        self.recorder.sources.guard_version(cls)
        init, new = type_get(cls, "__init__"), type_get(cls, "__new__")
        new = new.__func__ if isinstance(new, staticmethod) else new
        python_init = type(init) is types.FunctionType and not runs_natively(init)
        python_new = type(new) is types.FunctionType and not runs_natively(new)
        if issubclass(cls, type):
            if not understood(cls) or len(args) != 3:
                return MISSING
            python_new = python_new or new in MAKERS
        if not (python_init or python_new):
            return MISSING
        if issubclass(cls, torch.Tensor):
            self.recorder.kill("tensor-kind", f"A {cls.__name__}")
            return MISSING
        if new in MAKERS:
            made = new_class(self, new, (cls, *args), kwargs)
            if made is MISSING:
                return MISSING
        elif python_new:
            made = self.call_nested(new, (cls, *args), kwargs)  # type: ignore[attr-defined]
        elif new is object.__new__:
            made = object.__new__(cls)
        else:
            made = new(cls, *args, **kwargs)
        if not isinstance(made, cls):
            self.finish(frame, made, then)
            return None
        if python_init:
            self.recorder.sources.enter_function(init)
            entered = enter(init, (made, *args), kwargs)
            if entered.code.missing is not None:
                self.recorder.kill("opcode", f"{entered.code.missing} in {init.__qualname__}")
                init(made, *args, **kwargs)
                self.finish(frame, made, then)
                return None
            if then is not None:
                self.call_nested(init, (made, *args), kwargs)  # type: ignore[attr-defined]
                self.finish(frame, made, then)
                return None
            entered.then = ("init", made)
            self.push(entered)  # type: ignore[attr-defined]
            return SWITCH
        if init is not object.__init__ and init is not type.__init__:
            init(made, *args, **kwargs)
        self.finish(frame, made, then)
        return None

    # Protocols ------------------------------------------------------------------------------------------------------

    def reads_value(self, value: Any) -> bool:
        """Whether ``bool(value)`` reads a tensor at a place where the recording can break."""
        return isinstance(value, torch.Tensor) and bool(self.breakable())

    def decide(self, frame: Frame, value: Any, then: tuple[Any, ...]) -> None:
        """An opaque step that takes the truth of a tensor."""
        self.opaque(frame, bool, (value,), {}, then, "branch", "bool of a tensor")

    def truth(self, value: Any) -> bool:
        """``bool(value)``, with the fact that decided it."""
        if value is True or value is False or value is None:
            return value is True
        kind = type(value)
        if kind not in SIMPLE and kind not in TRACKED:
            if not immutable(kind):
                method = python_method(kind, "__bool__")
                if method is not None:
                    self.recorder.sources.guard_type(value)
                    return checked("__bool__", kind, self.call_nested(method, (value,)))  # type: ignore[attr-defined]
                if type_get(kind, "__bool__") is MISSING:
                    method = python_method(kind, "__len__")
                    if method is not None:
                        return bool(checked("__len__", kind, self.call_nested(method, (value,))))  # type: ignore[attr-defined]
                hidden(self, value, "__bool__", "__len__")
            self.recorder.sources.guard_type(value)
        self.recorder.contents.guard_filled(value)
        return bool(value)

    def binary(
        self, frame: Frame, function: Any, left: Any, right: Any, name: str, reflected: str | None = None
    ) -> Any:
        """A binary operation or comparison; Python methods of the operands get frames."""
        if complex in (type(left), type(right)):
            left, right = plain_number(left), plain_number(right)
        kind, other = type(left), type(right)
        if kind in HOLDERS and other in HOLDERS and reads_values((left, right)):
            pin_nested((left, right))
        if (kind not in SIMPLE and kind not in TRACKED) or (other not in SIMPLE and other not in TRACKED):
            attempts = self.attempts(function, left, right, name, reflected)
            if attempts:
                return self.operate(frame, attempts, function, left, right)
            hidden(self, left, name)
            if name == "__eq__" and not isinstance(left, torch.Tensor):
                self.recorder.sources.guard_type(left)
        if kind in TRACKED and other not in NUMBERS and not isinstance(right, torch.Tensor):
            left = left.plain()
        elif other in TRACKED and kind not in NUMBERS and not isinstance(left, torch.Tensor):
            right = right.plain()
        elif kind is str or kind is bytes:
            pin_nested(right)
        sources, contents = self.recorder.sources, self.recorder.contents
        if (kind is str or kind is bytes) and function is operator.mod:
            shown(self, right)
        elif kind not in SIMPLE or isinstance(left, PLAIN):
            both = kind is other and kind in SEQUENCES and function in EQUALITY
            if both and compares(self, (left, right), ("__eq__",)):
                negated = ("not",) if function is operator.ne else None
                return self.call(frame, equal_parts, (left, right), {}, negated)
            compared(self, left, right)
        if sources.knows(left):
            contents.guard_deep_contents(left)
        if sources.knows(right):
            contents.guard_deep_contents(right)
        frame.stack.append(function(left, right))
        return None

    def iterable(self, value: Any) -> Any:
        """A value that native code may iterate: Python ``__iter__`` is called first, known containers become facts."""
        kind = type(value)
        if kind not in SIMPLE:
            method = python_method(kind, "__iter__")
            if method is not None:
                return checked("__iter__", kind, self.call_nested(method, (value,)))  # type: ignore[attr-defined]
        walked(self, value)
        sources, contents = self.recorder.sources, self.recorder.contents
        if kind in (list, tuple) and sources.knows(value):
            contents.guard_extent(value)
            parts = [contents.item(value, number, part) for number, part in enumerate(value)]
            return value if all(map(operator.is_, parts, value)) else kind(parts)
        contents.guard_shallow_contents(value)
        return value


def exception_of(kind: type, made: Any) -> BaseException:
    """What the exception class ``kind`` made when it was raised."""
    if not isinstance(made, BaseException):
        raise TypeError(f"calling {kind!r} should have returned an instance of BaseException, not {type(made)!r}")
    return made
