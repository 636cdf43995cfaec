"""Turns a function and its arguments into a frame of the interpreter, and a frame that yields into a generator."""

from __future__ import annotations

import builtins
from dataclasses import dataclass
from types import CodeType, FrameType, FunctionType, GeneratorType, ModuleType, TracebackType
from typing import Protocol

from framefuse.capture.program.decoded import Code, decode
from framefuse.capture.program.markers import UNBOUND
from framefuse.capture.program.natives import KINDS, STANDS_FOR
from framefuse.ir.own_class import is_a
from framefuse.ir.source import Line, Site
from framefuse.ir.values import Arguments, Keywords, Value


@dataclass(frozen=True, slots=True)
class Pending:
    """What becomes of a value, or of an exception, that a frame waits for; the kinds stand in continuations.py."""

    def targets(self) -> tuple[int, ...]:
        """The steps at which the frame may go on, other than the next one."""
        target: int | None = getattr(self, "target", None)
        return () if target is None else (target,)


class Frame:
    """An activation of a Python function: ``locals`` in slot order, value ``stack``, next ``step``.

    ``continuation`` says what becomes of the returned value (None: it is pushed on the caller's stack), ``resumption``
    what the caller of a generator does with its values, ``recovery`` how to go on after an error.
    ``bottom`` frames were entered from native code and end the loop. ``handled`` is the exception that the caller
    handles; in a sleeping generator the one that it handles itself. ``shown`` is the user's line at a step, while this
    frame is the innermost, ``around`` the one from which torch's own frame was reached. ``space`` is the namespace of a
    class whose body this is. ``site`` is the last instruction that was asked for.
    """

    __slots__ = (
        "code", "function", "locals", "stack", "step", "globals", "builtins", "keywords", "generator", "continuation",
        "recovery", "resumption", "bottom", "handled", "shown", "around", "space", "site",
    )  # fmt: skip

    def __init__(self, function: FunctionType, code: Code) -> None:
        self.code = code
        self.function = function
        self.locals: list[Value] = [UNBOUND] * len(code.local_names)
        self.stack: list[Value] = []
        self.step = 0
        self.globals = function.__globals__
        builtins = getattr(function, "__builtins__")  # noqa: B009
        self.builtins: dict[str, Value] = vars(builtins) if is_a(builtins, ModuleType) else builtins
        self.keywords: tuple[str, ...] = ()
        self.generator: InterpretedGenerator | None = None
        self.continuation: Pending | None = None
        self.recovery: Pending | None = None
        self.resumption: Pending | None = None
        self.bottom = False
        self.handled: BaseException | None = None
        self.shown: tuple[int, Line] | None = None
        self.around: Line | None = None
        self.space: Value = None
        self.site: Site | None = None

    def end(self) -> None:
        """Ends the generator whose body this is: what only its names held goes now, as its finalizers tell."""
        assert self.generator is not None
        self.generator.state, self.generator = "done", None
        self.locals.clear()


class Driver(Protocol):
    """What generators and frame objects ask of the machine that runs their frames, through its service for them."""

    def drive(self, generator: InterpretedGenerator, value: Value, error: BaseException | None = None) -> Value: ...
    def throw_into(self, generator: InterpretedGenerator, error: BaseException) -> Value: ...
    def close(self, generator: InterpretedGenerator) -> None: ...
    def delegate(self, generator: InterpretedGenerator) -> Value: ...
    def show(self, frame: Frame) -> FrameType: ...


class Host(Protocol):
    """The machine, as generators and frame objects know it."""

    @property
    def generators(self) -> Driver: ...


class FrameView:
    """The frame object of an interpreted frame, as ``sys._getframe`` gives it: it is read in the interpreter's terms.

    ``real`` is the machine's: a frame object of Python's that shows the same.
    """

    __slots__ = ("frame", "machine")

    def __init__(self, machine: Host, frame: Frame) -> None:
        self.machine = machine
        self.frame = frame

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return FrameType

    def real(self) -> FrameType:
        """A frame object of Python's that shows where the frame stands now."""
        return self.machine.generators.show(self.frame)


class InterpretedGenerator:
    """A generator whose body runs in the interpreter; native code can drive it as an ordinary iterator.

    Its frame knows it only while it runs, so that it ends with its last reference. ``arguments`` are those of a
    generator that has not started.
    """

    __slots__ = ("__name__", "__qualname__", "__weakref__", "arguments", "frame", "function", "machine", "state")

    def __init__(self, machine: Host, frame: Frame) -> None:
        self.machine = machine
        self.frame = frame
        self.function = frame.function
        self.arguments = list(frame.locals)
        self.state = "new"
        self.__name__, self.__qualname__ = frame.function.__name__, frame.function.__qualname__

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return KINDS.get(self.function, GeneratorType)

    def __iter__(self) -> InterpretedGenerator:
        return self

    def __repr__(self) -> str:
        kind = self.__class__
        if kind is GeneratorType:
            return f"<generator object {self.__qualname__} at {id(self):#x}>"
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        return f"<{module}{kind.__qualname__} object at {id(self):#x}>"

    def __next__(self) -> Value:
        return self.machine.generators.drive(self, None)

    def send(self, value: Value) -> Value:
        """Goes on with ``value`` as the result of the yield."""
        if self.state == "new" and value is not None:
            raise TypeError("can't send non-None value to a just-started generator")
        return self.machine.generators.drive(self, value)

    def throw(self, kind: Value, value: Value = None, traceback: Value = None) -> Value:
        """Goes on by raising at the yield."""
        return self.machine.generators.throw_into(self, thrown(kind, value, traceback))

    def close(self) -> None:
        """Raises GeneratorExit at the yield."""
        self.machine.generators.close(self)

    def __del__(self) -> None:
        if getattr(self, "state", "") == "suspended":
            self.machine.generators.close(self)

    @property
    def gi_frame(self) -> Value:
        return None if self.state == "done" else self.machine.generators.show(self.frame)

    @property
    def gi_code(self) -> CodeType:
        return self.function.__code__

    @property
    def gi_running(self) -> bool:
        return self.state == "running"

    @property
    def gi_suspended(self) -> bool:
        return self.state == "suspended"

    @property
    def gi_yieldfrom(self) -> Value:
        return self.machine.generators.delegate(self)


def thrown(kind: Value, value: Value = None, traceback: Value = None) -> BaseException:
    """The exception that ``throw(kind, value, traceback)`` of a generator raises, with CPython's errors."""
    if traceback is not None and not is_a(traceback, TracebackType):
        raise TypeError("throw() third argument must be a traceback object")
    if is_a(kind, type) and issubclass(kind, BaseException):
        if is_a(value, kind):
            error: BaseException = value
        else:
            error = kind() if value is None else kind(*value) if is_a(value, tuple) else kind(value)
    elif is_a(kind, BaseException):
        if value is not None:
            raise TypeError("instance exception may not have a separate value")
        error = kind
    else:
        raise TypeError(
            f"exceptions must be classes or instances deriving from BaseException, not {type(kind).__name__}"
        )
    return error if traceback is None else error.with_traceback(traceback)


def _plural(count: int, word: str) -> str:
    return f"{count} {word}{'' if count == 1 else 's'}"


def _listed(names: list[str]) -> str:
    quoted = [f"'{name}'" for name in names]
    if len(quoted) == 1:
        return quoted[0]
    if len(quoted) == 2:
        return f"{quoted[0]} and {quoted[1]}"
    return ", ".join(quoted[:-1]) + f", and {quoted[-1]}"


def bind_locals(function: FunctionType, args: Arguments, kwargs: Keywords) -> list[Value]:
    """Arguments in the order of the parameter slots, with CPython's own errors (same types and texts).

    Slots: positional parameters, keyword-only parameters, then ``*args`` as a tuple and ``**kwargs`` as a dict where
    declared.
    """
    code: CodeType = function.__code__
    count, only = code.co_argcount, code.co_kwonlyargcount
    flags = code.co_flags
    if not kwargs and not only and not flags & 12 and len(args) == count:
        return list(args)
    names, title = code.co_varnames, function.__qualname__
    total = count + only
    slots: list[Value] = [UNBOUND] * (total + bool(flags & 4) + bool(flags & 8))
    given = min(count, len(args))
    slots[:given] = args[:given]
    extra: dict[str, Value] | None = None
    if flags & 4:
        slots[total] = tuple(args[count:])
    if flags & 8:
        extra = slots[-1] = {}
    for name, value in kwargs.items():
        if name not in names[code.co_posonlyargcount : total]:
            if extra is None:
                if name in names[: code.co_posonlyargcount]:
                    raise TypeError(
                        f"{title}() got some positional-only arguments passed as keyword arguments: '{name}'"
                    )
                raise TypeError(f"{title}() got an unexpected keyword argument '{name}'")
            extra[name] = value
            continue
        place = names.index(name, code.co_posonlyargcount, total)
        if slots[place] is not UNBOUND:
            raise TypeError(f"{title}() got multiple values for argument '{name}'")
        slots[place] = value
    defaults = function.__defaults__ or ()
    if len(args) > count and not flags & 4:
        least = count - len(defaults)
        takes = f"from {least} to {count} positional arguments" if defaults else _plural(count, "positional argument")
        named_only = sum(slots[place] is not UNBOUND for place in range(count, total))
        also = (
            f" positional argument{'s' if len(args) != 1 else ''} (and {_plural(named_only, 'keyword-only argument')})"
        )
        were = "was" if len(args) == 1 and not named_only else "were"
        raise TypeError(f"{title}() takes {takes} but {len(args)}{also if named_only else ''} {were} given")
    first = count - len(defaults)
    for place in range(max(given, first), count):
        if slots[place] is UNBOUND:
            slots[place] = defaults[place - first]
    missing = [names[place] for place in range(given, first) if slots[place] is UNBOUND]
    if missing:
        raise TypeError(
            f"{title}() missing {_plural(len(missing), 'required positional argument')}: {_listed(missing)}"
        )
    named = function.__kwdefaults__ or {}
    for place in range(count, total):
        if slots[place] is UNBOUND and names[place] in named:
            slots[place] = named[names[place]]
    missing = [names[place] for place in range(count, total) if slots[place] is UNBOUND]
    if missing:
        raise TypeError(
            f"{title}() missing {_plural(len(missing), 'required keyword-only argument')}: {_listed(missing)}"
        )
    return slots


def enter(function: FunctionType, args: Arguments, kwargs: Keywords) -> Frame:
    """A new frame of ``function`` with its arguments bound."""
    frame = Frame(function, decode(function.__code__))
    slots = bind_locals(function, args, kwargs)
    frame.locals[: len(slots)] = slots
    return frame


def copy_of(generator: InterpretedGenerator) -> InterpretedGenerator:
    """An iterator that goes on from where this one stands, over the same iterators."""
    frame = Frame(generator.function, generator.frame.code)
    frame.locals, frame.stack = list(generator.frame.locals), list(generator.frame.stack)
    frame.step = generator.frame.step
    copied = InterpretedGenerator(generator.machine, frame)
    copied.state, copied.arguments = generator.state, list(generator.arguments)
    return copied


def native_generator(generator: InterpretedGenerator) -> Value:
    """The real generator or iterator that an unstarted interpreted one stands for."""
    function, args, kwargs = call_of(generator)
    generator.state = "done"
    return function(*args, **kwargs)


def call_of(generator: InterpretedGenerator) -> tuple[Value, list[Value], dict[str, Value]]:
    """The function, or class, and the arguments of the call that made an unstarted generator."""
    code = generator.function.__code__
    count, total = code.co_argcount, code.co_argcount + code.co_kwonlyargcount
    slots = list(generator.arguments)
    for place, name in enumerate(code.co_varnames[: len(slots)]):
        cell = slots[place]
        if name in code.co_cellvars and type(cell) is _CELL:
            slots[place] = cell.cell_contents
    args = list(slots[:count])
    at = total
    if code.co_flags & 4:
        args += slots[at]
        at += 1
    kwargs = dict(zip(code.co_varnames[count:total], slots[count:total], strict=True))
    if code.co_flags & 8:
        kwargs.update(slots[at])
    return STANDS_FOR.get(generator.function, generator.function), args, kwargs


_CELL = type((lambda x: lambda: x)(0).__closure__[0])  # type: ignore[index]

BUILTINS = vars(builtins)
