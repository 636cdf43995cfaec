"""Calls what can be called: Python functions get frames, classes are built in steps, native code passes or stops."""

from __future__ import annotations

import copy
import dataclasses
import functools
import inspect
import math
import operator
import types
import weakref
from typing import Any

import torch

from framefuse.capture import leaves, queries
from framefuse.capture.attributes import python_method, type_get
from framefuse.capture.copies import deepcopy
from framefuse.capture.custom_functions import apply
from framefuse.capture.frame import (
    MISSING,
    SWITCH,
    Frame,
    enter,
)
from framefuse.capture.leaves import runs_natively
from framefuse.capture.module_calls import CALL as MODULE_CALL
from framefuse.capture.module_calls import enter_module
from framefuse.capture.mutations import mutate
from framefuse.capture.numbers import NUMBERS, TRACKED, bare, pin_nested, plain_number
from framefuse.capture.operations import Operations
from framefuse.capture.protocols import checked
from framefuse.capture.repeated import call_repeated, is_repeatable
from framefuse.capture.sources import CODE_LIKE
from framefuse.capture.specials import SPECIALS, TWIN_TYPES, TWINS, needs_twin
from framefuse.capture.steps import replayed
from framefuse.capture.unseen import PLAIN, compared, shown
from framefuse.ir.classes import immutable, written_in_c

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
SPECIALS[copy.deepcopy] = deepcopy
SPECIALS[torch.autograd.Function.apply.__func__] = apply  # type: ignore[attr-defined]
ORDINARY_TYPES = (types.BuiltinFunctionType, types.MethodDescriptorType)


class Calls(Operations):
    """The call protocol of the interpreter."""

    recorder: Any
    frames: list[Frame]
    inlined: int
    sealed: int
    refused: str  # the row of the stops catalogue for the native call under way
    opaque: Any
    breakable: Any
    must_break: Any

    def call(self, frame: Frame, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], then: Any = None) -> Any:
        """Pushes the result of the call on ``frame``, or enters a frame that will; ``then`` says what becomes of the
        result.
        """
        sources = self.recorder.sources
        while True:
            kind = type(target)
            if kind is types.FunctionType:
                special = SPECIALS.get(target)
                if special is not None:
                    return self._special(special, frame, target, args, kwargs, then)
                if runs_natively(target):
                    break
                if target is MODULE_CALL and enter_module(self, args, kwargs, then):
                    return SWITCH
                if self.recorder.alive and id(target) not in sources.known and id(target) not in sources.made:
                    sources.root(target)
                sources.function(target)
                sources.closure(target)
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
            if kind is functools.partial:
                if id(target) in sources.known:
                    for name in ("func", "args", "keywords"):
                        part = sources.read(target, "getattr", name, getattr(target, name))
                        sources.whole(part)
                args, kwargs = (*target.args, *args), {**target.keywords, **kwargs}
                target = target.func
                continue
            if kind in leaves.COMPILED or "__framefuse__" in kind.__dict__:
                # Compiled itself, a function or the twin of a module: its program is part of this one.
                sources.typed(target)
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
                if target in TWINS and needs_twin(args):
                    target = TWINS[target]
                    continue
                break
            if isinstance(target, (torch._ops.OpOverloadPacket, torch._ops.OpOverload)):
                break
            if kind is operator.attrgetter and len(args) == 1 and not kwargs:
                self.finish(frame, self._get_attributes(frame, target, args[0]), then)
                return None
            if is_repeatable(target, args, kwargs):
                self.finish(frame, call_repeated(self.recorder, target, args, kwargs), then)
                return None
            method = type_get(kind, "__call__")
            if type(method) is types.FunctionType and not runs_natively(method):
                sources.typed(target)
                sources.version(kind)
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
            if id(then[1]) in self.recorder.sources.known:
                self.recorder.journal.place("attr", then[1], then[2], value, MISSING)
            then[1].__dict__[then[2]] = bare(value)
        elif what == "binary" and value is NotImplemented:
            self.operate(frame, *then[1:], True)
            return
        elif what == "checked":
            value = checked(then[1], then[2], value)
        elif what == "raise":
            self.throw(exception_of(then[2], value), then[1])  # type: ignore[attr-defined]
            return
        elif what == "jump":
            if value is then[1]:
                frame.step = then[2]
            return
        elif what == "jump or pop":
            if value is then[1]:
                frame.step = then[2]
            else:
                frame.stack.pop()
            return
        frame.stack.append(value)

    def native(
        self, frame: Frame, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], then: Any = None
    ) -> None:
        """Calls native code and finishes with its result; what stands on no list is an opaque step."""
        recorder = self.recorder
        if not recorder.alive:
            self.finish(frame, self.handling(target, strip_shallow(args), kwargs), then)
            return
        done = self._of_container(target, args, kwargs)
        if done is not MISSING:
            self.finish(frame, done, then)
            return
        self.refused = "native-call"
        policy = self._policy(target, args, kwargs)
        if policy is not None and self._unseen(target, args, kwargs):
            policy = None
        elif policy == "torch":
            stopped = queries.STOPPED.get(queries.call_name(target))
            if stopped is not None and self.breakable():
                policy, self.refused = None, stopped
        elif target in READS_VALUE if kind_hashable(target) else False:
            if any(isinstance(part, torch.Tensor) for part in args):
                policy, self.refused = None, "item"
        if not callable(target):
            target(*args, **kwargs)  # raises what eager raises
        if policy is None or self.must_break(frame):
            detail = leaves.title(target)
            self.opaque(frame, *_unbound(target, args), kwargs, then, self.refused, detail)
            return
        self.finish(frame, self._allowed(policy, target, args, kwargs), then)

    def native_value(self, frame: Frame, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The result of native code, where the instruction goes on with it: no break is possible there."""
        self.sealed += 1
        try:
            self.native(frame, target, args, kwargs)
        finally:
            self.sealed -= 1
        return frame.stack.pop()

    def handling(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls native code, which finds the exception that is handled where the program stands."""
        handled = self.current() if self.handled is not None else None  # type: ignore[attr-defined]
        if handled is None:
            return target(*args, **kwargs)
        traceback, context = handled.__traceback__, handled.__context__
        try:
            raise handled
        except BaseException:
            handled.__traceback__, handled.__context__ = traceback, context
            return target(*args, **kwargs)

    def _allowed(self, policy: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Calls native code that stands on a list."""
        recorder = self.recorder
        if policy == "torch":
            before = recorder.mode_calls
            value = self.handling(target, args, kwargs)
            if recorder.mode_calls == before:
                for part in (*args, *kwargs.values()):
                    if type(part) in TRACKED:
                        part.plain()
            return value
        if name_of(target) in TEXTS and isinstance(getattr(target, "__self__", None), str):
            shown(self, (args, kwargs))
        elif name_of(target) in COMPARING:
            holder = getattr(target, "__self__", None)
            compared(self, *args, tuple(holder) if isinstance(holder, (dict, set, frozenset)) else holder)
        elif type(target) is types.FunctionType and id(target) not in HOLDS_FUNCTIONS:
            self._hand_over(target, args, kwargs)
        if policy == "new":
            if args and type(args[0]) in TRACKED and isinstance(getattr(target, "__self__", None), (dict, set)):
                args = (args[0].plain(), *args[1:])
            return self.handling(target, args, kwargs)
        for part in args:
            recorder.sources.whole(part)
        for part in kwargs.values():
            recorder.sources.whole(part)
        if target not in KEEPS_NUMBERS if kind_hashable(target) else True:
            pin_nested(getattr(target, "__self__", None))
            for part in (*args, *kwargs.values()):
                pin_nested(part)
        if any(type(part) in TRACKED for part in args) or any(type(part) in TRACKED for part in kwargs.values()):
            args = tuple([part.plain() if type(part) in TRACKED else part for part in args])
            kwargs = {key: part.plain() if type(part) in TRACKED else part for key, part in kwargs.items()}
        return self.handling(target, args, kwargs)

    def _hand_over(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Python code of the library is about to look into its arguments."""
        if target.__globals__.get("__name__", "") not in LOOKS_INSIDE:
            return
        sources = self.recorder.sources
        for part in (*args, *kwargs.values()):
            if id(part) in sources.known and not immutable(type(part)) and not isinstance(part, CODE_LIKE):
                self.recorder.kill("native-call", leaves.title(target))
            sources.deep(part)

    def _unseen(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether native code would run the user's function or advance an iterator that existed before the call."""
        sources = self.recorder.sources
        name = getattr(target, "__name__", "")
        hands = (
            type(target) is types.FunctionType and not name.startswith("_check") and id(target) not in HOLDS_FUNCTIONS
        )
        if hands or name in leaves.CALLS_BACK_NAMES or (isinstance(target, type) and target in leaves.CALLS_BACK):
            for part in (*args, *kwargs.values()):
                called: Any = part.__func__ if isinstance(part, types.MethodType) else part
                if isinstance(called, types.FunctionType) and not runs_natively(called):
                    return True
        if target is iter and len(args) == 2:
            return True
        return any(id(part) in sources.known and hasattr(type(part), "__next__") for part in args)

    def _policy(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """``torch`` (the mode records it, numbers stay tracked), ``pure`` (arguments by value), ``new`` (keeps what
        it is given), or None.
        """
        kind = type(target)
        recorder = self.recorder
        if kind is weakref.ReferenceType and id(target) in recorder.sources.made:
            return "new"
        if kind is types.FunctionType:
            module = target.__globals__.get("__name__", "")
            if module.partition(".")[0] == "torch":
                code = leaves.torch_function_stop(target)
                if code is not None:
                    self.refused = code
                    return None
                return "torch"
            return "pure" if module in leaves.PURE_MODULES else None
        if isinstance(target, (torch._ops.OpOverloadPacket, torch._ops.OpOverload)):
            return "torch"
        if kind in leaves.NATIVE_KINDS:
            holder = getattr(target, "__self__", None)
            if leaves.is_torch_native(target):
                return "torch"
            if leaves.is_pure(target):
                return "pure"
            if isinstance(holder, leaves.MUTABLE_TYPES):
                return self._container_method(holder, target.__name__, args, kwargs)
            owner = getattr(target, "__objclass__", None)
            if owner is not None and holder is None:
                if issubclass(owner, leaves.MUTABLE_TYPES) and args:
                    return self._container_method(args[0], target.__name__, args[1:], kwargs)
                return (
                    "pure"
                    if owner is object or issubclass(owner, (*leaves.PURE_TYPES, *leaves.ITERATOR_TYPES))
                    else None
                )
            if holder is not None and isinstance(holder, (*leaves.PURE_TYPES, *leaves.ITERATOR_TYPES)):
                return "pure" if not isinstance(holder, type) else self._class_method(holder, target, args)
            if isinstance(holder, BaseException):
                return "pure" if id(holder) not in recorder.sources.known else None
            if kind is types.MethodWrapperType and target.__name__ in (
                "__init__",
                "__repr__",
                "__str__",
                "__eq__",
                "__ne__",
                "__hash__",
            ):
                return "pure" if target.__objclass__ is object else None
            return None
        if isinstance(target, type):
            code = leaves.class_stop(target)
            if code is not None:
                self.refused = code
                return None
            if leaves.is_pure(target):
                return (
                    "new"
                    if target in CONTAINER_TYPES_KEEPING and not any(id(a) in recorder.sources.known for a in args)
                    else "pure"
                )
            if issubclass(target, BaseException):
                return "new"
            if issubclass(target, torch.nn.Parameter) or issubclass(target, torch.Tensor):
                return "torch"
            plain_new = (
                type_get(target, "__new__") is object.__new__ and type_get(target, "__init__") is object.__init__
            )
            if plain_new or (issubclass(target, tuple) and not written_in_c(target)):
                return "new"
            if issubclass(target, (dict, list)) and type_get(target, "__init__") in (dict.__init__, list.__init__):
                return "pure"
            return None
        if type(target).__module__ in ("operator", "functools") and type(target).__name__ in (
            "itemgetter",
            "attrgetter",
        ):
            return "pure"
        if isinstance(target, torch.jit.ScriptFunction):
            return None
        return None

    def _class_method(self, holder: type, target: Any, args: tuple[Any, ...]) -> str | None:
        if leaves.is_pure(holder) or target.__name__ in (
            "__subclasses__",
            "mro",
            "__instancecheck__",
            "__subclasscheck__",
        ):
            return "pure"
        if target.__name__ == "__new__" and (
            not args or leaves.is_pure(args[0]) or holder in (object, dict, list, tuple, set, float, int, str)
        ):
            return "new"
        return "pure" if target.__name__ == "fromkeys" else None

    def _of_container(self, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The value of a call that is replayed, or of a method that changes a known container or reads an entry of it;
        MISSING for any other call.
        """
        done = replayed(self, target, args, kwargs)
        if done is not MISSING or type(target) not in leaves.NATIVE_KINDS:
            return done
        holder, name = getattr(target, "__self__", None), target.__name__
        if type(target) in (types.MethodDescriptorType, types.WrapperDescriptorType):
            if not args or not issubclass(target.__objclass__, leaves.MUTABLE_TYPES):
                return MISSING
            holder, args = args[0], args[1:]
        sources = self.recorder.sources
        if not isinstance(holder, leaves.MUTABLE_TYPES) or id(holder) not in sources.known:
            return MISSING
        if name in leaves.MUTATORS:
            return mutate(self, holder, name, args, kwargs)
        if name == "get" and isinstance(holder, dict) and 1 <= len(args) <= 2 and not kwargs:
            key = plain_number(args[0])
            if not sources.membership(holder, key):
                return MISSING
            if not dict.__contains__(holder, key):
                return args[1] if len(args) > 1 else None
            return self.entry(holder, key)
        return MISSING

    def entry(self, holder: Any, key: Any) -> Any:
        """An entry that a dict has; a number is a run-time number where the code may write entries."""
        value = dict.__getitem__(holder, key)
        free = type(value) in (int, float) and self.frames[-1].code.grows
        return self.recorder.sources.item(holder, key, value, free)

    def elements(self, values: Any) -> list[Any]:
        """The elements of a list or tuple as they are known, with their facts."""
        self.recorder.sources.whole(values)
        return [self.recorder.sources.item(values, number, value) for number, value in enumerate(values)]

    def _container_method(self, holder: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | None:
        """A method of a list, dict, set or deque: journalled when it changes one that existed before the call."""
        recorder = self.recorder
        sources = recorder.sources
        known = id(holder) in sources.known
        if name in leaves.MUTATORS:
            if not known:
                for part in args:
                    if name in ("extend", "update", "__init__", "__ior__", "__iadd__", "extendleft"):
                        sources.whole(part)
                return "new"
            recorder.kill("write", f"a {type(holder).__name__} ({name})")
            return "pure"
        if not known:
            for part in args:
                sources.whole(part)
            return "new" if name in ("__getitem__", "get", "items", "keys", "values", "copy") else "pure"
        if name == "__contains__" and args and sources.membership(holder, args[0]):
            pass
        elif name == "__getitem__" and isinstance(holder, dict):
            if sources.membership(holder, args[0]) and dict.__contains__(holder, args[0]):
                plain_number(sources.item(holder, args[0], dict.__getitem__(holder, args[0])))
        elif name == "__len__":
            sources.length(holder)
        else:
            sources.whole(holder)
        return "pure"

    # Classes --------------------------------------------------------------------------------------------------------

    def construct(self, frame: Frame, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], then: Any) -> Any:
        """Calls a class; MISSING when native code shall do it."""
        special = SPECIALS.get(cls)
        if special is not None:
            outcome = self._sealed(special, frame, args, kwargs, then)
            if outcome is not MISSING:
                if outcome is None and then is not None:
                    self.finish(frame, frame.stack.pop(), then)
                return outcome
        if cls in TWIN_TYPES and needs_twin(args):
            return self.call(frame, TWIN_TYPES[cls], args, kwargs, then)
        method = python_method(type(cls), "__call__")
        if method is not None:
            return self.call(frame, method, (cls, *args), kwargs, then)
        return self.make(frame, cls, args, kwargs, then)

    def make(self, frame: Frame, cls: type, args: tuple[Any, ...], kwargs: dict[str, Any], then: Any) -> Any:
        """An instance as ``type.__call__`` makes it; MISSING when native code shall do it."""
        self.recorder.sources.version(cls)
        init, new = type_get(cls, "__init__"), type_get(cls, "__new__")
        new = new.__func__ if isinstance(new, staticmethod) else new
        python_init = type(init) is types.FunctionType and not runs_natively(init)
        python_new = type(new) is types.FunctionType and not runs_natively(new)
        if issubclass(cls, type) or not (python_init or python_new):
            return MISSING
        if issubclass(cls, torch.Tensor):
            self.recorder.kill("tensor-kind", f"A {cls.__name__}")
            return MISSING
        if python_new:
            made = self.call_nested(new, (cls, *args), kwargs)  # type: ignore[attr-defined]
        elif new is object.__new__:
            made = object.__new__(cls)
        else:
            made = new(cls, *args, **kwargs)
        if not isinstance(made, cls):
            self.finish(frame, made, then)
            return None
        if python_init:
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
        if init is not object.__init__:
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
            method = python_method(kind, "__bool__")
            if method is not None:
                self.recorder.sources.typed(value)
                return checked("__bool__", kind, self.call_nested(method, (value,)))  # type: ignore[attr-defined]
            if type_get(kind, "__bool__") is MISSING:
                method = python_method(kind, "__len__")
                if method is not None:
                    return bool(checked("__len__", kind, self.call_nested(method, (value,))))  # type: ignore[attr-defined]
            self.recorder.sources.typed(value)
        self.recorder.sources.filled(value)
        return bool(value)

    def binary(
        self, frame: Frame, function: Any, left: Any, right: Any, name: str, reflected: str | None = None
    ) -> Any:
        """A binary operation or comparison; Python methods of the operands get frames."""
        kind, other = type(left), type(right)
        if (kind not in SIMPLE and kind not in TRACKED) or (other not in SIMPLE and other not in TRACKED):
            attempts = self.attempts(function, left, right, name, reflected)
            if attempts:
                return self.operate(frame, attempts, function, left, right)
            if name == "__eq__" and not isinstance(left, torch.Tensor):
                self.recorder.sources.typed(left)
        if kind in TRACKED and other not in NUMBERS and not isinstance(right, torch.Tensor):
            left = left.plain()
        elif other in TRACKED and kind not in NUMBERS and not isinstance(left, torch.Tensor):
            right = right.plain()
        elif kind is str or kind is bytes:
            pin_nested(right)
        sources = self.recorder.sources
        if (kind is str or kind is bytes) and function is operator.mod:
            shown(self, right)
        elif kind not in SIMPLE or isinstance(left, PLAIN):
            compared(self, left, right)
        if sources.known:
            if id(left) in sources.known:
                sources.deep(left)
            if id(right) in sources.known:
                sources.deep(right)
        frame.stack.append(function(left, right))
        return None

    def iterable(self, value: Any) -> Any:
        """A value that native code may iterate: Python ``__iter__`` is called first, known containers become facts."""
        kind = type(value)
        if kind not in SIMPLE:
            method = python_method(kind, "__iter__")
            if method is not None:
                return checked("__iter__", kind, self.call_nested(method, (value,)))  # type: ignore[attr-defined]
        sources = self.recorder.sources
        if kind in (list, tuple) and id(value) in sources.known:
            sources.extent(value)
            parts = [sources.item(value, number, part) for number, part in enumerate(value)]
            return value if all(map(operator.is_, parts, value)) else kind(parts)
        sources.whole(value)
        return value


CONTAINER_TYPES_KEEPING = frozenset(
    (
        list,
        tuple,
        set,
        frozenset,
        dict,
        slice,
        zip,
        enumerate,
        types.MethodType,
        functools.partial,
        torch.Size,
        types.SimpleNamespace,
        types.CellType,
        map,
        filter,
        super,
        property,
        classmethod,
        staticmethod,
    )
)


# Python functions of the library that look at a function they are given and do not call it.
HOLDS_FUNCTIONS = frozenset(
    id(getattr(inspect, name))
    for name in "signature isfunction ismethod isgeneratorfunction isbuiltin unwrap isclass ismodule".split()
) | {id(dataclasses.fields), id(dataclasses.is_dataclass)}
# Pure natives that leave the numbers inside their arguments alone or use them by Python's protocols.
KEEPS_NUMBERS = frozenset((math.prod, sum, reversed, iter, len, isinstance, type, callable, id, zip, enumerate, next))


def exception_of(kind: type, made: Any) -> BaseException:
    """What the exception class ``kind`` made when it was raised."""
    if not isinstance(made, BaseException):
        raise TypeError(f"calling {kind!r} should have returned an instance of BaseException, not {type(made)!r}")
    return made


# Methods that make texts of their arguments, and that compare what lies in a container.
TEXTS = frozenset(("format", "format_map"))
COMPARING = frozenset("index count remove __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __contains__ sort".split())
LOOKS_INSIDE = frozenset(("dataclasses", "inspect", "string", "numbers", "fractions", "json", "re"))


def name_of(target: Any) -> str:
    """The name of a native method, empty for anything else."""
    return target.__name__ if type(target) in leaves.NATIVE_KINDS else ""


def kind_hashable(target: Any) -> bool:
    """Whether a callable can be looked up in a set."""
    return type(target) in leaves.NATIVE_KINDS or isinstance(target, type)


# Builtins that read the value of a tensor they are given.
READS_VALUE = frozenset((int, float, complex, str, repr, format, round, ascii, hex, oct, bin, list, tuple, set, hash))
READS_VALUE -= {list, tuple, set, hash}  # elements of a tensor are tensors; its hash is its identity


def _unbound(target: Any, args: tuple[Any, ...]) -> tuple[Any, tuple[Any, ...]]:
    """A callable that outlives the call, and its arguments: methods of C are looked up on the type of their owner."""
    holder = getattr(target, "__self__", None)
    bound = isinstance(target, (types.BuiltinMethodType, types.MethodWrapperType))
    if not bound or holder is None or isinstance(holder, (types.ModuleType, type)):
        return target, args
    found = type_get(type(holder), target.__name__)
    return (found, (holder, *args)) if callable(found) else (target, args)


def strip_shallow(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Arguments with plain numbers at their top level."""
    return tuple([bare(part) for part in args])
