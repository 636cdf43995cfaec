"""Calls native code as its policy says: a call of the trace, a pure value, a container's change, or an opaque step."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import math
import types
from collections import defaultdict, deque

import torch

from framefuse.capture.callables.constant_calls import call_decided, is_in_vain
from framefuse.capture.callables.dict_views import copied, given, view
from framefuse.capture.callables.library_warnings import overheard
from framefuse.capture.callables.mutations import MUTATORS, insert_default, mutate
from framefuse.capture.callables.policy import Policy, policy_of, stop_of
from framefuse.capture.callables.random_calls import of_generator
from framefuse.capture.callables.steps import replayed
from framefuse.capture.callables.unseen import (
    HASHING,
    after_call,
    before_call,
    key_in,
    lacks,
    runs_methods,
    shown,
    walks,
)
from framefuse.capture.facts.atoms import ATOMS, CONTAINERS
from framefuse.capture.facts.code_like import CODE_LIKE
from framefuse.capture.facts.hidden_state import hides_moving, holds_moving_number, is_fixed_text
from framefuse.capture.facts.nested_numbers import pin_nested, reads_values, sought
from framefuse.capture.facts.numbers import TRACKED, bare, is_nan, key_of, plain_number
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.stacks import from_here, look, looks
from framefuse.capture.program import leaves
from framefuse.capture.program.bound import BOUND_KINDS, unbound
from framefuse.capture.program.equivalents import VIEWS_OF_DICTS
from framefuse.capture.program.frame import Frame, FrameView, Pending
from framefuse.capture.program.lookups import runs_program
from framefuse.capture.program.markers import MISSING
from framefuse.capture.program.methods import Method, row_of
from framefuse.capture.program.natives import known_as
from framefuse.capture.recording import collectives, element_reads, functional_collectives, number_results
from framefuse.capture.recording.call_names import call_name, makes_leaf
from framefuse.capture.recording.made_classes import enter_made
from framefuse.capture.recording.numpy_calls import heed_errors, numbers_of_numpy
from framefuse.capture.recording.repeated import call_repeated, is_repeatable, says_once
from framefuse.ir.classes import as_torch_does, immutable
from framefuse.ir.containers import elements
from framefuse.ir.own_class import is_a
from framefuse.ir.torch_calls import TABLE
from framefuse.ir.values import Arguments, Keywords, Value


def _holds(function: types.FunctionType) -> bool:
    """Whether a function calls nothing that it is given: a module of torch is an object that can be called, too."""
    return known_as(function).holds or function.__globals__.get("__name__") in leaves.HOLDING


# Policies of calls that can be made again: they change nothing, or the recorder knows what they did.
AGAIN = frozenset(("torch", "pure", "numbers"))
# Functions of the library that say how others are called.
SIGNATURES = (inspect.signature, inspect.getfullargspec, inspect.unwrap)
# C code that asks each object of a list for its truth or its number.
READERS = frozenset((all, any, sum, math.prod, math.fsum, math.dist, math.hypot, itertools.compress))


class Natives:
    """Calls of native code."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.recorder = machine.recorder
        self.refused = ""  # the row of the stops catalogue for the native call under way

    def call(
        self, frame: Frame, target: Value, args: Arguments, kwargs: Keywords, continuation: Pending | None = None
    ) -> None:
        """Calls native code and finishes with its result; what stands on no list is an opaque step."""
        recorder = self.recorder
        if type(target) is types.FunctionType and leaves.refers_weakly(target):
            if any(map(recorder.was_made, args[1:])):
                recorder.kill("finalizer", "A weak reference to an object of this call")
        if not recorder.alive:
            plain = strip_shallow(args)
            if looks(target) or says_once(target):
                value = self.handling(*from_here(self.machine, target, plain, kwargs))
            else:
                value = overheard(self.machine, target, lambda: self.handling(target, plain, kwargs))
            self.machine.finish(frame, value, continuation)
            return
        if recorder.moving or recorder.sources.volatile:
            args = given(self.machine, target, args)
        done = self._of_container(frame, target, args, kwargs, continuation)
        if done is not MISSING:
            self.machine.finish(frame, done, continuation)
            return
        if looks(target) or FrameView in map(type, (*args, *kwargs.values())):
            look(self.machine, frame, target, args, kwargs, continuation)
            return
        stop = stop_of(recorder, target)
        self.refused = stop or "native-call"
        policy = policy_of(recorder, target, args, kwargs) if stop is None else None
        hidden = policy not in (None, "decided") and self._unseen(target, args, kwargs)
        hidden = hidden or (policy == "pure" and self._reads_moving(target, args, kwargs))
        if hidden or (policy in ("pure", "new") and (runs_methods(target, args) or walks(self.machine, target, args))):
            policy = None
        elif (policy == "decided" or _computes(policy, target)) and is_in_vain(recorder, (*args, *kwargs.values())):
            if self.machine.exits.breakable():
                policy, self.refused = None, "value"
        elif policy == "torch":
            stopped = TABLE[call_name(target)].stop or ("tensor-attribute" if makes_leaf(kwargs) else "")
            straight = frame if continuation is None and self.machine.exits.breakable() else None
            settled = self._settled(straight, target, args, kwargs) if stopped else None
            if settled is not None:
                self.machine.finish(frame, settled, continuation)
                return
            if stopped and self.machine.exits.breakable():
                policy, self.refused = None, stopped
        elif kind_hashable(target) and known_as(target).reads_value:
            if any(is_a(part, torch.Tensor) for part in args):
                policy, self.refused = None, "item"
                if target in (int, float) and len(args) == 1 and not kwargs and as_torch_does(type(args[0])):
                    number = self._element(args[0], target is int)
                    if number is not None:
                        self.machine.finish(frame, number, continuation)
                        return
        if not callable(target):
            target(*args, **kwargs)  # raises what eager raises
        if policy is None:
            detail = leaves.title(target)
            self.machine.exits.opaque(frame, *unbound(target, args), kwargs, continuation, self.refused, detail)
            return
        self.machine.finish(frame, self._allowed(policy, target, args, kwargs), continuation)

    def _reads_moving(self, target: Value, args: Arguments, kwargs: Keywords) -> bool:
        """Whether C reads numbers of NumPy, also in lists, that may be others in each call; or such objects of C, where
        it adds them or asks for their truth.
        """
        hashable = kind_hashable(target)
        if hashable and known_as(target).keeps_numbers and target not in (math.prod, sum):
            return False
        moves = hides_moving if hashable and target in READERS else holds_moving_number
        given = (getattr(target, "__self__", None), *args, *kwargs.values())
        return any(moves(self.recorder.sources, part) for part in given)

    def _settled(self, frame: Frame | None, target: Value, args: Arguments, kwargs: Keywords) -> Value:
        """What a call of torch that is a step elsewhere gives here without one; None where it must be a step. ``frame``
        is where its next instruction takes the result.
        """
        name = call_name(target)
        row = TABLE[name]
        if row.resizes:
            return self._reshaped(target, name, args, kwargs)
        if name == "tolist" and self.machine.exits.points is None and not args and not kwargs:
            return element_reads.listed(self.recorder, target.__self__)
        if not (row.reads_element or name == "requires_grad_") or kwargs:
            return None
        holder = getattr(target, "__self__", None)
        given = (holder, *args) if is_a(holder, torch.Tensor) else args
        if not given or not is_a(given[0], torch.Tensor) or not as_torch_does(type(given[0])):
            return None
        if row.reads_element:
            whole = None if row.kind is None else row.kind is int
            if len(given) > 1:
                return None
            if given[0].dtype is torch.bool:  # what a branch does with it
                return element_reads.expected(self.recorder, frame, frame.step, given[0]) if frame is not None else None
            return self._element(given[0], whole)
        wanted = given[1] if len(given) > 1 else True
        if len(given) > 2 or type(wanted) is not bool or self.recorder.requires_grad(given[0]) is not wanted:
            return None
        return given[0]  # it stays as it is

    def _reshaped(self, target: Value, name: str, args: Arguments, kwargs: Keywords) -> Value:
        """An in-place change of the sizes of a tensor; None where it must be a step."""
        holder = getattr(target, "__self__", None)
        if is_a(holder, torch.Tensor):
            target, args = getattr(torch.Tensor, name), (holder, *args)
        if not args or not is_a(args[0], torch.Tensor):
            return None
        recorder = self.recorder
        number = recorder.number(args[0])
        if number is None or recorder.metas[number].view:
            return None
        memory = recorder.metas[number].storage
        if any(recorder.metas[given].storage == memory for given in recorder.inputs):  # which counts the change as well
            return None
        with torch._C.DisableTorchFunction():
            return recorder.reshaped(target, name, args, kwargs)

    def _element(self, tensor: torch.Tensor, whole: bool | None) -> Value:
        """The one element of a tensor as a run-time number; None where reading it must be a step."""
        number = element_reads.read(self.recorder, tensor, whole)
        if type(number) in TRACKED:
            self.machine.exits.watch()
        return number

    def value(self, frame: Frame, target: Value, args: Arguments, kwargs: Keywords) -> Value:
        """The result of native code, where the instruction goes on with it: no break is possible there."""
        self.machine.exits.sealed += 1
        try:
            self.call(frame, target, args, kwargs)
        finally:
            self.machine.exits.sealed -= 1
        return frame.stack.pop()

    def handling(self, target: Value, args: Arguments, kwargs: Keywords) -> Value:
        """Calls native code, which finds the exception that is handled where the program stands."""
        handled = self.machine.current() if self.machine.handled is not None else None
        if handled is None:
            return target(*args, **kwargs)
        traceback, context = handled.__traceback__, handled.__context__
        try:
            raise handled
        except BaseException:
            handled.__traceback__, handled.__context__ = traceback, context
            return target(*args, **kwargs)

    def _allowed(self, policy: Policy, target: Value, args: Arguments, kwargs: Keywords) -> Value:
        """Calls native code that stands on a list."""
        recorder = self.recorder
        if policy not in AGAIN:
            recorder.memory.lasting += 1
        if policy == "decided":
            return overheard(self.machine, target, lambda: call_decided(recorder, target, args, kwargs))
        if policy == "collective":
            return collectives.call(recorder, target, args, kwargs)
        if policy == "functional":
            return functional_collectives.call(recorder, target, args)
        if policy == "numbers":
            return number_results.call(recorder, target, call_name(target), args, kwargs)
        if policy == "wait":
            return collectives.wait(recorder, target, args[0])
        if policy == "generator":
            return of_generator(recorder, target, args, kwargs)
        if policy == "torch":
            before = recorder.mode_calls
            recorder.called = target if type(target) is types.FunctionType else None
            value = overheard(self.machine, target, lambda: self.handling(target, args, kwargs))
            unseen = recorder.mode_calls == before
            if unseen:
                stop = TABLE[call_name(target)].stop  # torch shows ``set_`` to no mode
                if stop:
                    recorder.kill(stop, call_name(target))
                recorder.memory.lasting += 1
                for part in (*args, *kwargs.values()):
                    pin_nested(part)
                    if type(part) not in ATOMS:  # whether it is a tensor, or what else it is
                        recorder.sources.guard_type(part)
            if type(target) is types.FunctionType:
                handed = () if unseen else recorder.mode_arguments
                for part in (*args, *kwargs.values()):
                    if is_a(part, CONTAINERS) and id(part) not in handed:  # its Python code looked into it
                        recorder.contents.guard_deep_contents(part)
            return value
        if type(target) in leaves.NATIVE_KINDS and row_of(target).shows:
            shown(self.machine, (getattr(target, "__self__", None), args, kwargs))
        elif type(target) is types.FunctionType and target in SIGNATURES:
            for part in (*args, *kwargs.values()):
                self._describe(getattr(part, "__func__", part) if type(part) is types.MethodType else part)
        elif type(target) is types.FunctionType and not known_as(target).holds:
            self._hand_over(target, args, kwargs)
            if target.__globals__.get("__name__") == "dataclasses":
                return self._of_dataclasses(target, args, kwargs)
        elif type(target) is not types.FunctionType:
            before_call(self.machine, target, args)
        value = self._value(policy, target, args, kwargs)
        after_call(self.machine, target, args, value)
        if target is dataclasses.fields and not any(map(recorder.sources.is_made, (*args, *map(type, args)))):
            for field in value:  # its default may be set anew
                recorder.sources.root(field)
        return value

    def _value(self, policy: Policy, target: Value, args: Arguments, kwargs: Keywords) -> Value:
        """What native code gives that keeps its arguments (``new``), or looks at them (``pure``)."""
        recorder = self.recorder
        if not recorder.alive:  # what was found out about the arguments ended it
            args, kwargs = recorder.released(args, kwargs)
        if policy == "new":
            return self.handling(target, *_kept(target, args, kwargs))
        for part in (*args, *kwargs.values()):
            if _looks_deeper(target, part):
                recorder.contents.guard_nested_contents(part)
            else:
                recorder.contents.guard_shallow_contents(part)
        keeps = kind_hashable(target) and known_as(target).keeps_numbers
        if not keeps or (target in (math.prod, sum) and reads_values((*args, *kwargs.values()))):
            pin_nested(getattr(target, "__self__", None))
            for part in (*args, *kwargs.values()):
                pin_nested(part)
        holder = getattr(target, "__self__", None)
        if any(type(part) in TRACKED or is_nan(part) for part in (*args, *kwargs.values())):
            args = tuple([sought(part, holder) for part in args])
            kwargs = {key: plain_number(part) for key, part in kwargs.items()}
        if numbers_of_numpy(target, args, kwargs):
            heed_errors(recorder.sources, target, args, kwargs)
        return overheard(self.machine, target, lambda: self.handling(target, args, kwargs))

    def _hand_over(self, target: Value, args: Arguments, kwargs: Keywords) -> None:
        """Python code of the library is about to look into its arguments."""
        home = target.__globals__.get("__name__", "")
        if home not in leaves.LOOKING_INSIDE:
            return
        sources, contents = self.recorder.sources, self.recorder.contents
        for part in (*args, *kwargs.values()):
            if home == "re" and is_fixed_text(sources, part):
                continue
            if sources.knows(part) and not immutable(type(part)) and not is_a(part, CODE_LIKE):
                self.recorder.kill("native-call", leaves.title(target))
            contents.guard_deep_contents(part)

    def _describe(self, function: Value) -> None:
        """States what the signature of a known function is made of."""
        sources, contents = self.recorder.sources, self.recorder.contents
        while type(function) is types.FunctionType and sources.knows(function):
            self.recorder.functions.guard(function)
            contents.guard_shallow_contents(
                sources.read(function, "getattr", "__annotations__", function.__annotations__)
            )
            state = sources.read(function, "getattr", "__dict__", function.__dict__)
            for name in ("__signature__", "__wrapped__"):
                if contents.guard_membership(state, name) and name in state:
                    contents.item(state, name, state[name])
            function = state.get("__wrapped__")

    def _of_dataclasses(self, target: Value, args: Arguments, kwargs: Keywords) -> Value:
        """What a function of dataclasses gives; the methods that it writes for a class of this call are of this call.
        """
        value = self.handling(target, args, kwargs)
        sources = self.recorder.sources
        classes = [part for part in (*args, value) if is_a(part, type) and not sources.knows(part)]
        if target is dataclasses.make_dataclass or any(sources.is_made(part) for part in classes):
            for part in classes:
                enter_made(self.recorder, part)
        if type(value) is types.FunctionType and not sources.knows(value):
            sources.note_made(value)
        return value

    def _unseen(self, target: Value, args: Arguments, kwargs: Keywords) -> bool:
        """Whether native code would run the user's function or advance an iterator that existed before the call."""
        try:
            sources = self.recorder.sources
            name = getattr(target, "__name__", "")
            is_python = type(target) is types.FunctionType
            hands = is_python and not name.startswith("_check") and not _holds(target)
            calls = row_of(target).calls
            owner = is_python and target.__code__.co_varnames[:1] == ("self",)  # whose method it is: not handed over
            given = (*args[owner:], *kwargs.values())
            if is_python and target.__globals__.get("__name__") == "re":  # of all but the pattern it reads the text
                given = (*args[:1], *(part for part in given[1:] if not is_fixed_text(sources, part)))
            if (hands or calls) and any(runs_program(part, classes=calls) for part in given):
                return True
            if target is iter and len(args) == 2:
                return True
            for part in args:
                if hasattr(type(part), "__next__") and sources.knows(part):
                    return True
            return False
        except Exception as fault:
            self.recorder.fault(fault)
            return True

    def _of_container(
        self, frame: Frame, target: Value, args: Arguments, kwargs: Keywords, continuation: Pending | None
    ) -> Value:
        """The value of a call that is replayed, or of a method that changes a known container or reads entries of it;
        MISSING for any other call.
        """
        done = replayed(self.machine, target, args, kwargs)
        if done is MISSING and says_once(target) and is_repeatable(target, args, kwargs, self.recorder.sources):
            done = call_repeated(self.recorder, target, args, kwargs)
        if done is not MISSING or type(target) not in leaves.NATIVE_KINDS:
            self.recorder.memory.lasting += done is not MISSING
            return done
        holder, name = getattr(target, "__self__", None), target.__name__
        if type(target) in (types.MethodDescriptorType, types.WrapperDescriptorType):
            if not args or not issubclass(target.__objclass__, leaves.MUTABLE_TYPES):
                return MISSING
            holder, args = args[0], args[1:]
        sources, contents = self.recorder.sources, self.recorder.contents
        reads_entry = name == "__getitem__" and is_a(holder, dict) and len(args) == 1 and not kwargs
        if reads_entry and is_a(holder, defaultdict):
            key = key_in(self.machine, holder, args[0])
            if not dict.__contains__(holder, key):
                return insert_default(self.machine, holder, key)
        if not is_a(holder, leaves.MUTABLE_TYPES) or not sources.knows(holder):
            defaults = type(holder) is dict and name in ("get", "pop", "setdefault") and len(args) == 2
            plain = defaults and not kwargs and type(args[0]) is str
            return getattr(holder, name)(*args) if plain else MISSING  # a default stays as free as it is
        if reads_entry and is_a(holder, dict):
            key = key_in(self.machine, holder, args[0])
            if not contents.guard_membership(holder, key):
                contents.guard_shallow_contents(holder)
            return self.entry(holder, key) if dict.__contains__(holder, key) else MISSING
        if name in MUTATORS:
            return mutate(self.machine, holder, name, args, kwargs)
        if name == "get" and is_a(holder, dict) and 1 <= len(args) <= 2 and not kwargs:
            if not frame.code.grows and lacks(self.machine, holder, args[0]):
                return args[1] if len(args) > 1 else None
            key = key_in(self.machine, holder, args[0])
            if not contents.guard_membership(holder, key):
                return MISSING
            if not dict.__contains__(holder, key):
                return args[1] if len(args) > 1 else None
            return self.entry(holder, key)
        if name in VIEWS_OF_DICTS and not args and not kwargs and continuation is None:
            return view(self.machine, frame, holder, name)
        if name == "copy" and not args and not kwargs:
            return copied(self.machine, holder)
        return MISSING

    def entry(self, holder: Value, key: Value) -> Value:
        """An entry that a dict has; a number is a run-time number where the code may write entries."""
        value = dict.__getitem__(holder, key)
        free = type(value) in (int, float) and self.machine.frames[-1].code.grows
        return self.recorder.contents.item(holder, key, value, free)

    def elements(self, values: Value) -> list[Value]:
        """The elements of a list or tuple as they are known, with their facts."""
        self.recorder.contents.guard_shallow_contents(values)
        return [self.recorder.contents.item(values, number, value) for number, value in enumerate(elements(values))]


KEEPING = (object, tuple, list, deque)  # whose makers keep what they are given


def _looks_deeper(target: Value, part: Value) -> bool:
    """Whether native code looks into the containers that lie in ``part``, or may: one that keeps what it is given
    leaves them alone, unless it calls a function with them, or takes pairs apart.
    """
    row = row_of(target)
    if is_a(row, Method):
        return not row.gives and not (target.__name__ == "__new__" and target.__self__ in KEEPING)
    if row.takes == "all" and is_a(part, dict):
        return False
    return not (row.keeps or row.shallow) or row.calls or row.takes == "all"


def _kept(target: Value, args: Arguments, kwargs: Keywords) -> tuple[Arguments, Keywords]:
    """The arguments of native code that keeps what it is given: run-time numbers stay such where it keeps them, and
    become plain ones where it takes their value.
    """
    if target in (enumerate, itertools.repeat):
        plain = {key: plain_number(part) for key, part in kwargs.items()}
        return (*args[:1], *map(plain_number, args[1:])), plain
    if type(target) not in leaves.NATIVE_KINDS:
        return args, kwargs
    row, holder = row_of(target), getattr(target, "__self__", None)
    if not is_a(row, Method) or not (row.gives or target.__name__ in MUTATORS):
        return args, kwargs
    valued = key_of if is_a(holder, HASHING) else plain_number
    place = None
    if row.keeps is not None and not is_a(holder, set):
        place = row.keeps + (not is_a(target, BOUND_KINDS))
    return tuple([part if number == place else valued(part) for number, part in enumerate(args)]), kwargs


def _computes(policy: Policy | None, target: Value) -> bool:
    """Whether this is a function of C, as ``math.gcd``, that takes the values of its arguments alone."""
    if policy != "pure" or type(target) is not types.BuiltinFunctionType:
        return False
    row = known_as(target)
    return row.pure and not (row.keeps_numbers or row.keeps or row.iterates)


def kind_hashable(target: Value) -> bool:
    """Whether a callable can be looked up in a set."""
    return type(target) in leaves.NATIVE_KINDS or is_a(target, type)




def strip_shallow(args: Arguments) -> Arguments:
    """Arguments with plain numbers at their top level."""
    return tuple([bare(part) for part in args])
