"""Builtins that must act in the interpreter's own terms: iteration, classes, truth, text, sums, weak references."""

from __future__ import annotations

import abc
import collections
import dataclasses
import functools
import importlib
import operator
import sys
import types
import typing
import weakref
from collections.abc import Callable, Iterator, Sequence

import torch

from framefuse.capture.callables.unseen import compared, hidden, shown
from framefuse.capture.facts.atoms import ATOMS, CONTAINERS
from framefuse.capture.facts.hidden_state import hides_moving
from framefuse.capture.facts.kinds import is_plain
from framefuse.capture.facts.numbers import NUMBERS, STANDS_FOR, TRACKED, Integer, applied, bare, extreme, made_of
from framefuse.capture.facts.questions import CALM, PROFILER, QUESTIONS, REGISTRATIONS, Question, answered
from framefuse.capture.facts.settle import cell_contents
from framefuse.capture.interp.continuations import PUSH_TRUTH, NextCall, PushAsked, PushAtEnd, PushChecked
from framefuse.capture.interp.machine import Machine, Special
from framefuse.capture.interp.protocols import BUILTINS
from framefuse.capture.interp.registry import needs_python, special
from framefuse.capture.program import equivalents
from framefuse.capture.program.frame import Frame, FrameView, InterpretedGenerator
from framefuse.capture.program.iterators import RangeIterator
from framefuse.capture.program.lookups import LOOKUPS, is_measured, python_method, runs_program, type_get
from framefuse.capture.program.markers import MISSING, SWITCH, UNBOUND, Outcome
from framefuse.capture.program.natives import CONVERSIONS, GREATER, LESS
from framefuse.capture.recording import element_reads
from framefuse.capture.recording.tensors import lacks_sizes
from framefuse.ir.classes import as_torch_does
from framefuse.ir.own_class import is_a
from framefuse.ir.trace import formatted
from framefuse.ir.values import Arguments, Keywords, Value


@special(len, pure=True, keeps_numbers=True, orderless=True)
def _len(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 1:
        return MISSING
    value = args[0]
    if is_a(value, torch.Tensor) and machine.recorder.alive:
        if not as_torch_does(type(value)):
            frame.stack.append(value.__len__())
            return None
        if value.ndim and not lacks_sizes(value):
            frame.stack.append(machine.recorder.sizes.at(value, 0))
            return None
    method = python_method(type(value), "__len__")
    if method is not None:
        machine.recorder.sources.guard_type(value)
        return machine.calls.call(frame, method, (value,), {}, PushChecked("__len__", type(value)))
    hidden(machine, value, "__len__")
    frame.stack.append(machine.recorder.contents.count(value, frame.code.grows))
    return None


@special(iter, pure=True, keeps_numbers=True)
def _iter(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) == 2 and not kwargs:
        return machine.calls.call(frame, equivalents.until_, args, {})
    if len(args) != 1:
        return MISSING
    if _moves(machine, args[0]):
        return machine.calls.call(frame, equivalents.walker, args, {})
    return machine.operations.iterate(frame, args[0])


def _moves(machine: Machine, value: Value) -> bool:
    """Whether this is a list in which a number moves."""
    return type(value) is list and machine.recorder.contents.holds_moving_number(value)


@special(next, pure=True, keeps_numbers=True)
def _next(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if not args:
        return MISSING
    iterator = args[0]
    if type(iterator) is InterpretedGenerator:
        if iterator.state == "done":
            if len(args) > 1:
                frame.stack.append(args[1])
                return None
            raise StopIteration
        machine.generators.resume(iterator, None, NextCall(args[1:]))
        return SWITCH
    method = python_method(type(iterator), "__next__")
    if method is None:
        return MISSING
    return machine.operations.advance(frame, method, iterator, PushAtEnd(args[1]) if len(args) > 1 else None)


@special(InterpretedGenerator.send, InterpretedGenerator.__next__, *equivalents.STEPS)
def _send(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    generator, value = args[0], args[1] if len(args) > 1 else None
    if type(generator) is not InterpretedGenerator or kwargs or len(args) > 2:
        return MISSING
    if generator.state == "done":
        raise StopIteration
    if generator.state == "new" and value is not None:
        raise TypeError("can't send non-None value to a just-started generator")
    machine.generators.resume(generator, value, NextCall())
    return SWITCH


@special(InterpretedGenerator.throw)
def _throw(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    frame.stack.append(InterpretedGenerator.throw(*args, **kwargs))
    return None


@special(InterpretedGenerator.close)
def _close(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    InterpretedGenerator.close(*args, **kwargs)
    frame.stack.append(None)
    return None


@special(isinstance, pure=True, keeps_numbers=True, orderless=True)
def _isinstance(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 2:
        return MISSING
    value, classes = args
    if type(value) not in ATOMS:
        machine.recorder.sources.guard_type(value)
    return _check_class(machine, frame, type(value), value, classes, "__instancecheck__", isinstance)


@special(importlib.import_module)
def _import_module(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """Gives a module that is there already, as an import statement does."""
    name = args[0] if len(args) == 1 and not kwargs else None
    if type(name) is not str or not is_a(sys.modules.get(name), types.ModuleType):
        return MISSING
    machine.recorder.sources.root(sys.modules)
    frame.stack.append(machine.recorder.contents.item(sys.modules, name, sys.modules[name]))
    return None


@special(issubclass, pure=True)
def _issubclass(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 2 or not is_a(args[0], type):
        return MISSING
    return _check_class(machine, frame, args[0], args[0], args[1], "__subclasscheck__", issubclass)


def _check_class(
    machine: Machine, frame: Frame, kind: type, value: Value, classes: Value, name: str, function: Callable[..., bool]
) -> Outcome:
    """Asks a class or a tuple of them whether ``value``, of class ``kind``, belongs to it."""
    LOOKUPS.note(kind)
    listed = list(_flat(machine, classes))
    for each in listed:
        method = python_method(type(each), name)
        if method is not None:
            if not is_a(classes, tuple):
                return machine.calls.call(frame, method, (classes, value), {}, PUSH_TRUTH)
            machine.recorder.kill("native-call", f"{type(each).__name__}.{name}")
        if is_a(each, abc.ABCMeta) and each not in kind.__mro__:
            answered(machine.recorder.sources, REGISTRATIONS)
            if getattr(each, "_is_protocol", False) and value is not kind:
                _has_members(machine, value, each)
    if function is isinstance and _may_name_a_class(kind):
        frame.stack.append(any(_belongs(machine, frame, value, each) for each in listed))
    else:
        frame.stack.append(function(value, classes))
    return None


def _may_name_a_class(kind: type) -> bool:
    """Whether the program gives what instances of ``kind`` name as their ``__class__``."""
    shown = type_get(kind, "__class__")
    return (type(shown) is property and runs_program(shown.fget)) or python_method(kind, "__getattribute__") is not None


def _belongs(machine: Machine, frame: Frame, value: Value, each: type) -> bool:
    """``isinstance`` of a value whose ``__class__`` the program may give."""
    if issubclass(type(value), each):
        return True
    shown = machine.attributes.attribute_now(frame, value, "__class__")
    return is_a(shown, type) and shown is not type(value) and issubclass(shown, each)


def _has_members(machine: Machine, value: Value, protocol: type) -> None:
    """A protocol is asked about an object, which may have the attributes of its own."""
    if any(python_method(type(value), name) for name in ("__getattr__", "__getattribute__")):
        machine.recorder.kill("native-call", f"{type(value).__name__}'s own way to attributes, asked by a protocol")
    if not is_plain(type(value)) or not hasattr(value, "__dict__"):
        return
    members = {
        name
        for base in protocol.__mro__
        if getattr(base, "_is_protocol", False)
        for name in (*vars(base), *vars(base).get("__annotations__", ()))
    }
    state, sources = vars(value), machine.recorder.sources
    for name in sorted(members.intersection(state)):
        sources.read(value, "attr", name, state[name])
    sources.guard_absent_names(value, tuple(sorted(members.difference(state))))


def _flat(machine: Machine, classes: Value) -> Iterator[Value]:
    if is_a(classes, tuple):
        machine.recorder.contents.guard_shallow_contents(classes)
        for each in classes:
            yield from _flat(machine, each)
    else:
        yield classes


def _answer(question: Question) -> Special:
    def ask(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        if args or kwargs:
            return MISSING
        frame.stack.append(answered(machine.recorder.sources, question))
        return None

    return ask


for _ask, _question in QUESTIONS.items():
    special(_ask)(_answer(_question))


@special(type, pure=True, keeps_numbers=True, orderless=True)
def _type(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 1 or kwargs:
        return MISSING
    kind = type(args[0])
    machine.recorder.sources.guard_type(args[0])
    frame.stack.append(args[0].__class__ if kind is InterpretedGenerator else OWN_KINDS.get(kind, kind))
    return None


OWN_KINDS: dict[type, type] = {
    **STANDS_FOR, FrameView: types.FrameType, RangeIterator: type(iter(range(0))),
}  # fmt: skip


@special(super, pure=True, keeps=True)
def _super(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if args:
        return MISSING
    names = frame.code.local_names
    if not frame.code.code.co_argcount:
        raise RuntimeError("super(): no arguments")
    owner = frame.locals[0]
    if type(owner) is types.CellType:
        (owner,) = cell_contents(owner) or (UNBOUND,)
    if owner is UNBOUND:
        raise RuntimeError("super(): arg[0] deleted")
    if "__class__" not in names:
        raise RuntimeError("super(): __class__ cell not found")
    held = cell_contents(frame.locals[names.index("__class__")])
    if not held:
        raise RuntimeError("super(): empty __class__ cell")
    frame.stack.append(super(held[0], owner))
    return None


@special(bool, pure=True, orderless=True)
def _bool(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 1:
        return MISSING
    if machine.operations.reads_value(args[0]):
        outcome = element_reads.expected(machine.recorder, frame, frame.step, args[0])
        if outcome is not None:
            frame.stack.append(outcome)
            return None
        machine.operations.decide(frame, args[0], None)
    asked = machine.operations.ask(frame, args[0], functools.partial(PushAsked, False))
    if asked is MISSING:
        frame.stack.append(machine.operations.truth(args[0]))
        return None
    return asked


def method_of(machine: Machine, frame: Frame, value: Value, name: str) -> Outcome:
    """Calls the Python method behind a builtin; MISSING where there is none."""
    method = python_method(type(value), name)
    if method is None or is_a(value, torch.Tensor):
        return MISSING
    continuation = PushChecked(name, type(value)) if name in BUILTINS else None
    return machine.calls.call(frame, method, (value,), {}, continuation)


def _unary_special(name: str) -> Special:
    def call(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        if len(args) != 1 or kwargs:
            return MISSING
        if name in ("__str__", "__repr__") and not is_a(args[0], torch.Tensor):
            kind, wanted = type(args[0]), name
            if kind in TRACKED:
                how = (1 if name == "__str__" else 2, "")
                frame.stack.append(made_of("format", formatted(bare(args[0]), *how), args, how))
                return None
            if name == "__str__" and type_get(kind, name) is object.__str__:
                wanted = "__repr__"
            if python_method(kind, wanted) is None:
                shown(machine, args[0])
            return method_of(machine, frame, args[0], wanted)
        return method_of(machine, frame, args[0], name)

    return call


special(str, pure=True, reads_value=True)(_unary_special("__str__"))
special(repr, pure=True, reads_value=True)(_unary_special("__repr__"))


@special(reversed, pure=True, shallow=True, keeps_numbers=True)
def _reversed(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 1 or kwargs:
        return MISSING
    kind = type(args[0])
    if type_get(kind, "__reversed__") is MISSING and python_method(kind, "__getitem__") is not None:
        machine.recorder.sources.guard_type(args[0])
        return machine.calls.call(frame, equivalents.reversed_, args, {})
    if _moves(machine, args[0]):
        return machine.calls.call(frame, equivalents.list_reversed_, args, {})
    return method_of(machine, frame, args[0], "__reversed__")


@special(format, pure=True, reads_value=True, asks=CONVERSIONS, shows=True)
def _format(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    method = python_method(type(args[0]), "__format__") if 1 <= len(args) <= 2 and not kwargs else None
    if method is None or is_a(args[0], torch.Tensor):
        return MISSING
    continuation = PushChecked("__format__", type(args[0]))
    return machine.calls.call(frame, method, (args[0], *(args[1:] or ("",))), {}, continuation)


def _extreme(name: str) -> Special:
    builtin = max if name == "max" else min

    def call(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        if not kwargs and len(args) > 1:
            value = extreme(name, args)
            if value is not NotImplemented:
                frame.stack.append(value)
                return None
        alone = machine.exits.points is None and not kwargs
        known = element_reads.all_known(machine.recorder, args) if not kwargs and len(args) > 1 else None
        if known is not None:
            frame.stack.append(_extreme_of_known(name, args, known))
            return None
        if alone and len(args) > 1 and any(is_a(a, torch.Tensor) for a in args):
            return _extreme_of_tensors(machine, frame, name, args)
        if kwargs.get("key") is not None or needs_python(args, "__gt__", "__lt__"):
            return machine.calls.call(frame, equivalents.max_ if name == "max" else equivalents.min_, args, kwargs)
        values = list(machine.operations.iterable(args[0])) if len(args) == 1 else args
        if values and all(type(value) in NUMBERS for value in values):
            frame.stack.append(_extreme_of_numbers(name, values))
            return None
        if len(args) == 1:
            args = (values,)
        if any(hides_moving(machine.recorder.sources, value) for value in values):
            detail = f"{name} of numbers and objects of C code"
            return machine.exits.opaque(frame, builtin, args, kwargs, None, "native-call", detail)
        if any(is_a(value, CONTAINERS) for value in values):
            compared(machine, *values, names=LESS if name == "min" else GREATER)
        frame.stack.append(builtin(*args, **kwargs))
        return None

    return call


def _extreme_of_numbers(name: str, values: Sequence[Value]) -> Value:
    """One of numbers of several classes, by the comparisons that C makes: of floats these would ask no tracked int."""
    best = values[0]
    for value in values[1:]:
        better, reflected = (operator.gt, "__lt__") if name == "max" else (operator.lt, "__gt__")
        if applied(better, value, best, reflected):
            best = value
    return best


def _extreme_of_known(name: str, args: Arguments, known: list[int]) -> Value:
    """One of ints of which some lie in tensors, by the elements that guards read."""
    best, most = args[0], known[0]
    for value, number in zip(args[1:], known[1:], strict=True):
        if number > most if name == "max" else number < most:
            best, most = value, number
    return best


def _extreme_of_tensors(machine: Machine, frame: Frame, name: str, args: Arguments) -> Outcome:
    """One of tensors of one element and numbers, where a break is no choice: each comparison is checked at each run."""
    if not all(type(part) in NUMBERS or (is_a(part, torch.Tensor) and part.numel() == 1) for part in args):
        return MISSING
    best = args[0]
    for value in args[1:]:
        better = value > best if name == "max" else value < best
        if element_reads.decided(machine.recorder, better) if is_a(better, torch.Tensor) else better:
            best = value
    frame.stack.append(best)
    return None


special(min, pure=True, compares=LESS, walks="alone")(_extreme("min"))
special(max, pure=True, compares=GREATER, walks="alone")(_extreme("max"))


@special(sorted, pure=True, compares=LESS, walks="alone", takes="keys")
def _sorted(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if kwargs.get("key") is not None or needs_python(args):
        return machine.calls.call(frame, equivalents.sorted_, args, kwargs)
    return MISSING


@special(equivalents.order_of)
def _order_of(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    asked = any(python_method(type(key), "__lt__") is not None for key in args[0])
    return machine.calls.call(frame, equivalents.order_by_less if asked else equivalents.order_by_pairs, args, kwargs)


@special(equivalents.measured)
def _measured(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if is_measured(type(args[0])):
        return machine.calls.call(frame, equivalents.measured_elements, args, kwargs)
    frame.stack.append(args[0])
    return None


@special(sum, pure=True, keeps_numbers=True, walks="alone", takes="keys")
def _sum(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if needs_python(args, "__add__", "__radd__"):
        return machine.calls.call(frame, equivalents.sum_, args, kwargs)
    if args and type(args[0]) in (list, tuple, torch.Size) and any(type(value) is Integer for value in args[0]):
        total: Value = args[1] if len(args) > 1 else kwargs.get("start", 0)
        machine.recorder.contents.guard_shallow_contents(args[0])
        for value in args[0]:
            total = applied(operator.add, total, value, "__radd__")
        frame.stack.append(total)
        return None
    return MISSING


@special(functools.reduce)
def _reduce(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if kwargs or not 2 <= len(args) <= 3:
        return MISSING
    return machine.calls.call(frame, equivalents.reduce_, args, kwargs)


@special(collections._count_elements)  # type: ignore[attr-defined]
def _count_elements(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    return machine.calls.call(frame, equivalents.count_elements, args, kwargs)


@special(torch.Size.numel)
def _numel(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 1 or kwargs or type(args[0]) is not torch.Size:
        return MISSING
    machine.recorder.contents.guard_shallow_contents(args[0])
    total: Value = 1
    for value in args[0]:
        total = total * value
    frame.stack.append(total)
    return None


@special(weakref.ref)
def _weak_reference(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    sources = machine.recorder.sources
    if len(args) > 1 and machine.recorder.was_made(args[0]):
        machine.recorder.kill("finalizer", "A callback of a weak reference")
    _watched(machine, args)
    if len(args) != 1 or kwargs or sources.knows(args[0]) or is_a(args[0], torch.Tensor):
        return MISSING
    reference = weakref.ref(args[0])  # to an object of this call, which ends as it does eagerly
    if machine.recorder.alive:
        sources.note_made(reference)
    frame.stack.append(reference)
    return None


def _watched(machine: Machine, args: Arguments) -> None:
    """Whether a tensor that the call made has ended can be seen: a recording would hold it, and so would compiled code.
    """
    if any(is_a(part, torch.Tensor) and machine.recorder.was_made(part) for part in args[:1]):
        machine.recorder.kill("finalizer", "A weak reference to a tensor of this call")


@special(weakref.proxy)
def _proxy(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if args and machine.recorder.was_made(args[0]):
        machine.recorder.kill("finalizer", "A proxy of an object of this call")
    return MISSING


@special(weakref.finalize)
def _finalize(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if args and machine.recorder.was_made(args[0]):
        machine.recorder.kill("finalizer", "A finalizer")
    return MISSING


@special(sys.exc_info)
def _exc_info(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    error = machine.current()
    if _of_caller(machine, error):
        return MISSING
    frame.stack.append((None, None, None) if error is None else (type(error), error, error.__traceback__))
    return None


@special(sys.exception)
def _exception(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    error = machine.current()
    if _of_caller(machine, error):
        return MISSING
    frame.stack.append(error)
    return None


def _of_caller(machine: Machine, error: BaseException | None) -> bool:
    """Whether the caller of compiled code handles this exception; that it handles none becomes a fact."""
    return error is machine.outer and not (error is None and answered(machine.recorder.sources, CALM))


@special(torch.autograd.profiler.record_function.__enter__, torch.autograd.profiler.record_function.__exit__)
def _record_function(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """Names a stretch of the program to a profiler: nothing while none listens. What torch's optimizers name, their
    steps, is a name of the compiled call as well, so that a profiler is no reason to compile anew.
    """
    context, entering = args[0], len(args) == 1
    if kwargs or type(context) is not torch.autograd.profiler.record_function:
        return MISSING
    if machine.attributes.attribute_now(frame, context, "record") is not None:
        return MISSING
    if entering and str(frame.globals.get("__name__")).startswith("torch.optim."):
        machine.ranges.append(context.name)
    elif entering and answered(machine.recorder.sources, PROFILER):
        return MISSING
    frame.stack.append(context if entering else None)  # what was entered in silence ends so
    return None


@special(torch._C._group_tensors_by_device_and_dtype)
def _group_tensors(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """Sorts the tensors of lists by device and element type, which guards hold; the tensors are those it was given."""
    sources = machine.recorder.sources
    if kwargs or not args or sources.knows(args[0]) or not all(type(part) is list for part in args[0]):
        return MISSING
    lists = [machine.natives.elements(part) if sources.knows(part) else part for part in args[0]]  # those over a break
    for tensor in (each for part in lists for each in part):
        if is_a(tensor, torch.Tensor):
            machine.recorder.number(tensor)
    frame.stack.append(torch._C._group_tensors_by_device_and_dtype(lists, *args[1:]))
    return None


@special(torch.is_tensor)
def _is_tensor(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """A run-time number is none, whatever its value."""
    if len(args) != 1 or kwargs or type(args[0]) not in OWN_KINDS:
        return MISSING
    frame.stack.append(False)
    return None


@special(torch.jit.annotate, typing.cast)
def _annotate(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if len(args) != 2 or kwargs:
        return MISSING
    frame.stack.append(args[1])
    return None


@special(dataclasses.is_dataclass, pure=True, holds=True)
def _is_dataclass(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """The class says it, whatever the object holds."""
    if len(args) != 1 or kwargs or type(args[0]) in OWN_KINDS:
        return MISSING
    kind = args[0] if is_a(args[0], type) else type(args[0])
    machine.recorder.sources.guard_type(args[0])
    machine.recorder.sources.guard_version(kind)
    frame.stack.append(dataclasses.is_dataclass(kind))
    return None


@special(callable, pure=True, keeps_numbers=True, orderless=True)
def _callable(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if args:
        machine.recorder.sources.guard_type(args[0])
        LOOKUPS.note(type(args[0]))
    return MISSING
