"""Decides what a call of native code is in a recording: one question for each kind of callable.

What is known of single callables stands in their rows (``capture/program/natives.py``, ``methods.py``).
"""

from __future__ import annotations

import enum
import operator
import types
import weakref
from collections import OrderedDict, deque
from typing import Literal, TypeAlias

import torch
from torch.utils.hooks import BackwardHook

from framefuse.capture.callables.constant_calls import is_decided
from framefuse.capture.callables.mutations import MUTATORS
from framefuse.capture.callables.random_calls import records_generator
from framefuse.capture.facts.atoms import ATOMS
from framefuse.capture.program import leaves
from framefuse.capture.program.lookups import type_get
from framefuse.capture.program.methods import METHODS, NOTHING
from framefuse.capture.program.natives import known_as
from framefuse.capture.recording import collectives, functional_collectives, number_results
from framefuse.capture.recording.numpy_calls import numbers_of_numpy
from framefuse.capture.recording.recorder import Recorder
from framefuse.capture.recording.replaced_functions import calls_program
from framefuse.ir.classes import written_in_c
from framefuse.ir.numpy_numbers import is_numpy_number
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Keywords, Value

# torch: a call of the trace, in which numbers stay run-time values; numbers: one that gives such. pure: looks at its
# arguments, which are taken by value. new: keeps what it is given, in something that the call made. collective,
# functional (one of those), wait, generator: calls of the trace that have an order of their own. decided: of the
# standard library, with arguments that are known by value.
Policy: TypeAlias = Literal[
    "torch", "numbers", "pure", "new", "decided", "collective", "functional", "wait", "generator"
]
# They look for the node of autograd that they hang a module's backward hooks on.
HANGS_HOOKS = frozenset((BackwardHook.setup_input_hook, BackwardHook.setup_output_hook))
GETTERS = (operator.itemgetter, operator.attrgetter)
VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
STATES = (int, float, complex, str, bytes, tuple, frozenset, *VIEWS)
READ_ONLY = (*leaves.PURE_TYPES, *leaves.ITERATOR_TYPES)
# Of ``object`` itself, bound to an instance; and of classes: what only tells of them.
OF_OBJECT = frozenset(("__init__", "__repr__", "__str__", "__eq__", "__ne__", "__hash__"))
TELLING_OF_CLASSES = frozenset(("mro", "__instancecheck__", "__subclasscheck__", "fromkeys", "__prepare__"))


def stop_of(recorder: Recorder, target: Value) -> str | None:
    """The row of the stops catalogue that refuses a function or class of torch, whatever it is given."""
    try:
        if type(target) is types.FunctionType:
            if leaves.is_disabled(target):
                return "disabled"
            module = target.__globals__.get("__name__", "")
            of_torch = module.partition(".")[0] == "torch" and not module.startswith("torch.distributed")
            return leaves.torch_function_stop(target) if of_torch else None
        return leaves.class_stop(target) if is_a(target, type) else None
    except Exception as fault:
        recorder.fault(fault)
        return None


def policy_of(recorder: Recorder, target: Value, args: Arguments, kwargs: Keywords) -> Policy | None:
    """How a call of native code is recorded; None where it is an opaque step."""
    try:
        kind = type(target)
        if is_decided(recorder, target, args, kwargs):
            return "decided"
        if kind is types.FunctionType:
            return _of_python(recorder, target, args, kwargs)
        if kind in leaves.NATIVE_KINDS:
            return _of_c(recorder, target, args, kwargs)
        if is_a(target, type):
            return _of_class(recorder, target, args, kwargs)
        if is_a(target, (torch._ops.OpOverloadPacket, torch._ops.OpOverload)):
            if functional_collectives.is_one(target):
                return "functional" if functional_collectives.may_record(recorder, target, args, kwargs) else None
            if number_results.gives_numbers(target):
                return "numbers" if number_results.is_recorded(recorder, target) else None
            return "torch"
        if kind is weakref.ReferenceType and recorder.sources.is_made(target):
            return "new"
        if kind in GETTERS:  # no fact holds what one looks for
            return "pure" if recorder.sources.holds(target) or not recorder.sources.knows(target) else None
        return "pure" if numbers_of_numpy(target, args, kwargs) else None
    except Exception as fault:
        recorder.fault(fault)
        return None


def _of_python(
    recorder: Recorder, target: types.FunctionType, args: Arguments, kwargs: Keywords
) -> Policy | None:
    """Of a library's function that is not interpreted."""
    module = target.__globals__.get("__name__", "")
    if module.startswith("torch.distributed"):
        if not collectives.may_record(recorder, target, args, kwargs):
            return None
        return "collective" if id(target) in collectives.COLLECTIVES else "torch"
    if module.partition(".")[0] == "torch":
        if target in HANGS_HOOKS and _may_hang(recorder, target, args):
            return None
        return None if calls_program(recorder, target) else "torch"
    return "pure" if module in leaves.PURE_MODULES and target not in leaves.READING_ELSEWHERE else None


def _may_hang(recorder: Recorder, target: Value, args: Arguments) -> bool:
    """Whether gradients may flow to a tensor among the arguments or in a tuple there; that of inputs notes how many
    there are for that of outputs, whether or not gradients flow to them.
    """
    if target is BackwardHook.setup_input_hook:
        return torch.is_grad_enabled()
    parts = [part for given in args for part in (given if is_a(given, tuple) else (given,))]
    tensors = [part for part in parts if is_a(part, torch.Tensor)]
    return torch.is_grad_enabled() and any(recorder.requires_grad(tensor) is not False for tensor in tensors)


def _of_c(recorder: Recorder, target: Value, args: Arguments, kwargs: Keywords) -> Policy | None:
    """Of a function or method of C."""
    holder = getattr(target, "__self__", None)
    if is_numpy_number(holder):
        held = recorder.sources.is_fixed_number(holder)
        return "pure" if held and numbers_of_numpy(target, args, kwargs) else None
    if recorder.waits.works and collectives.is_wait(recorder, target, args, kwargs):
        return "wait"
    if leaves.is_torch_native(target):
        return "torch"
    if known_as(target).pure:
        return "pure"
    if holder is None:
        return _of_descriptor(recorder, target, args)
    return _of_method(recorder, holder, target, args, kwargs)


def _of_descriptor(recorder: Recorder, target: Value, args: Arguments) -> Policy | None:
    """Of a method that lies on its class and takes its owner as the first argument."""
    owner = getattr(target, "__objclass__", None)
    if owner is None:
        return None
    if issubclass(owner, leaves.MUTABLE_TYPES) and args:
        return _of_container(recorder, args[0], target.__name__, args[1:])
    return "pure" if owner is object or issubclass(owner, READ_ONLY) else None


def _of_method(
    recorder: Recorder, holder: Value, target: Value, args: Arguments, kwargs: Keywords
) -> Policy | None:
    """Of a method that is bound to its owner."""
    if is_a(holder, (BaseException, types.MappingProxyType)):  # others may change what it shows
        return "pure" if not recorder.sources.knows(holder) else None
    if is_a(holder, torch.Generator):
        return "generator" if records_generator(recorder, target, args, kwargs) else None
    if is_a(holder, leaves.MUTABLE_TYPES):
        return _of_container(recorder, holder, target.__name__, args)
    if is_a(holder, type):
        return _of_classes_method(holder, target, args)
    if is_a(holder, READ_ONLY):
        if is_a(holder, STATES):  # what the method tells lies in its owner; of some no fact tells it
            recorder.contents.guard_shallow_contents(holder)
        return "pure"
    if type(target) is types.MethodWrapperType and target.__name__ in OF_OBJECT:
        return "pure" if target.__objclass__ is object else None
    return None


def _of_classes_method(holder: type, target: Value, args: Arguments) -> Policy | None:
    """Of a method that is bound to a class."""
    if known_as(holder).pure or target.__name__ in TELLING_OF_CLASSES:
        return "pure"
    plain = holder in (object, dict, list, tuple, set, float, int, str)
    return "new" if target.__name__ == "__new__" and (not args or known_as(args[0]).pure or plain) else None


def _of_container(recorder: Recorder, holder: Value, name: str, args: Arguments) -> Policy:
    """Of a method of a list, dict, set or deque. One that changes what existed before the call ends the recording
    here: what can be journalled was, by ``capture/callables/mutations.py``.
    """
    contents, row = recorder.contents, METHODS.get(name, NOTHING)
    known = recorder.sources.knows(holder)
    if known and name in MUTATORS:
        recorder.kill("write", f"a {type(holder).__name__} ({name})")
    elif not known:
        spread = name == "__setitem__" and type(args[0]) is slice if args else False
        for place, part in enumerate(args):
            if place != row.keeps or spread:
                contents.guard_shallow_contents(part)
        return "new" if row.gives or name in MUTATORS else "pure"
    elif name == "__len__":
        contents.guard_length(holder)
    elif name != "__contains__" or not args or not contents.guard_membership(holder, args[0]):
        contents.guard_shallow_contents(holder)
    return "pure"


def _of_class(recorder: Recorder, target: type, args: Arguments, kwargs: Keywords) -> Policy | None:
    """Of a class whose instances are made by C."""
    if numbers_of_numpy(target, args, kwargs) or _names_member(target, args, kwargs):
        return "pure"
    row = known_as(target)
    if row.pure:
        return "new" if row.keeps and not any(recorder.sources.knows(part) for part in args) else "pure"
    if issubclass(target, BaseException):
        return "new"
    if issubclass(target, torch.Tensor):
        return "torch"
    makes, fills = type_get(target, "__new__"), type_get(target, "__init__")
    plain = makes is object.__new__ and fills is object.__init__
    if plain or (leaves.is_index_mode(target) and not args and not kwargs):
        return "new"
    if issubclass(target, tuple) and not written_in_c(target):
        return "pure" if any(recorder.sources.knows(part) for part in args) else "new"
    # Else it calls own methods; and one that keeps its entries in a way of its own, by keys of its own say, may come to
    # hold what no graph makes again.
    ordered = fills in (OrderedDict.__init__, deque.__init__) and not args and not kwargs
    if ordered and type_get(target, "__setitem__") in (OrderedDict.__setitem__, deque.__setitem__):
        return "pure"
    return "pure" if issubclass(target, (dict, list)) and fills in (dict.__init__, list.__init__) else None


def _names_member(target: type, args: Arguments, kwargs: Keywords) -> bool:
    """Whether an enumeration is asked for one of its members, by its value or by itself."""
    if not is_a(target, enum.EnumMeta) or type(target).__call__ is not enum.EnumMeta.__call__:
        return False
    kind = type(args[0]) if len(args) == 1 and not kwargs else None
    return kind is target or (kind in ATOMS and args[0] in target._value2member_map_)
