"""Calls that guards make again to see whether they give what they gave: cached functions and weak references."""

from __future__ import annotations

import functools
import gc
import types
import weakref

import torch

from framefuse.capture.facts.atoms import ATOMS
from framefuse.capture.facts.numbers import bare, plain_number
from framefuse.capture.facts.sources import Sources
from framefuse.capture.program.markers import MISSING
from framefuse.capture.recording.recipe import by_identity
from framefuse.capture.recording.recorder import Recorder
from framefuse.ir.facts import Source
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Function, Keywords, Value

# Cached functions of libraries that read nothing but their arguments, and whose results nobody changes.
PURE = frozenset(
    ("einops.einops", name)
    for name in ("_prepare_transformation_recipe", "_reconstruct_from_shape_uncached", "_compactify_pattern_for_einsum")
) | {("einops.packing", "analyze_pattern")}


class Repeated:
    """A call of native code that is made whenever the attribute ``value`` is read, and runs nothing of the program's:
    guards are asked before the program runs, and in an order of their own.
    """

    __slots__ = ("args", "function", "kept", "key", "kwargs")

    def __init__(self, function: Function, args: Arguments, kwargs: Keywords) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.kept: dict[Value, Value] | None = None
        self.key: Value = None
        if _is_cached(function):
            self.kept, self.key = _kept(function, args, kwargs)

    @property
    def lacks(self) -> bool:
        """Whether a cache would have to run its function for the call."""
        return self.kept is not None and self.key not in self.kept

    @property
    def value(self) -> Value:
        """What the call gives now; ``MISSING``, for which no fact holds, where a cache would have to run its function:
        the call is recorded anew, which runs it where the program does.
        """
        if self.lacks:
            return MISSING
        return self.function(*self.args, **self.kwargs)


def _is_cached(function: Function) -> bool:
    return type(function) is functools._lru_cache_wrapper


def _kept(function: Value, args: Arguments, kwargs: Keywords) -> tuple[dict[Value, Value], Value]:
    """What a cache keeps, and under which key the result of a call, as ``functools`` in C makes it. No public call
    tells it; with another CPython's layout or key the cache would seem to keep nothing, and each call be recorded.
    """
    kept, _, mark = gc.get_referents(function)[-6:-3]
    typed = function.cache_parameters()["typed"]
    if not typed and not kwargs:
        return kept, args[0] if len(args) == 1 and type(args[0]) in (int, str) else args
    given = (*args, *kwargs.values())
    key = (*args, *((mark,) if kwargs else ()), *(part for item in kwargs.items() for part in item))
    return kept, (*key, *map(type, given)) if typed else key


def is_repeatable(target: Value, args: Arguments, kwargs: Keywords, sources: Sources) -> bool:
    """Whether the outcome of a call may be a fact: it has no effect, or its effect is once for all and done, and what
    is called is the same object at each call. One that came out of a break may have been made by this call.

    The arguments must be known by value or identity, since nothing says when others change. A fact holds the object
    that it is about, so that a weak reference may give a tensor, which is known by its place, what is ``known`` by
    another place, or nothing.
    """
    if type(target) is not weakref.ReferenceType and not _is_cached(target):
        return False
    source = sources.source_of(target)
    if source is not None and source.is_argument and sources.resumed:
        return type(target) is weakref.ReferenceType and _wraps_method(source) and sources.knows(target())
    if type(target) is weakref.ReferenceType:
        return target() is None or is_a(target(), torch.Tensor) or sources.knows(target())
    if target.cache_parameters()["maxsize"] == 0:
        return False  # a cache that keeps nothing runs its function each time
    return all(_lasts(value, sources) for value in (*args, *kwargs.values()))


def _wraps_method(source: Source) -> bool:
    """Whether a place is in the closure of a function that an object has for an attribute, as schedules of rates wrap
    the step of an optimizer: what lies there outlives a call, on whichever side of a break it is met.
    """
    return source.kind == "cell" and source.base is not None and source.base.kind == "attr"


def is_pure(target: Value) -> bool:
    """Whether a cached function gives the same for the same arguments, so that no fact need hold what it gave."""
    function = getattr(target, "__wrapped__", None)
    if not _is_cached(target) or type(function) is not types.FunctionType:
        return False
    return (function.__module__, function.__name__) in PURE


def call_pure(recorder: Recorder, target: Value, args: Arguments, kwargs: Keywords) -> Value:
    """What a pure function gives for arguments that guards hold to what they are; ``MISSING`` where one is a run-time
    number or an object, so that its own code is to be recorded.
    """
    given = (*args, *kwargs.values())
    if not all(map(_is_constant, given)):
        return MISSING
    for value in given:
        recorder.contents.guard_nested_contents(value)
    with recorder.unseen():
        return target(*args, **kwargs)


def _is_constant(value: Value) -> bool:
    return all(map(_is_constant, value)) if type(value) is tuple else type(value) in ATOMS


def _lasts(value: Value, sources: Sources) -> bool:
    """Whether an argument is the same at each call: known by its value, or held to its identity and equal by that."""
    if type(bare(value)) in ATOMS or is_a(value, (type, types.FunctionType)):
        return True
    if type(value) in (tuple, torch.Size):
        return all(_lasts(part, sources) for part in value)
    return sources.holds(value) and by_identity(type(value))


def _plain(value: Value) -> Value:
    """An argument with its run-time numbers held to what they are."""
    return type(value)(map(_plain, value)) if type(value) in (tuple, torch.Size) else plain_number(value)


def call_repeated(recorder: Recorder, target: Value, args: Arguments, kwargs: Keywords) -> Value:
    """Makes the call and states its outcome; the outcome is that of a place which guards read by calling again."""
    for value in (*args, *kwargs.values()):
        recorder.contents.guard_nested_contents(value)
    args = tuple([_plain(value) for value in args])
    kwargs = {name: _plain(value) for name, value in kwargs.items()}
    sources = recorder.sources
    source = sources.source_of(target)
    if source is not None:
        sources.fact(source, "is", target, id(target))
    call = Repeated(target, args, kwargs)
    runs = call.lacks
    versions = recorder.memory.versions_now()
    with recorder.unseen():
        value = target(*args, **kwargs)
    if not recorder.alive:
        return value
    if runs:
        recorder.forget_readings()  # the function ran, out of sight: what it may have written is read afresh
        if recorder.memory.versions_now() != versions:
            recorder.kill("read-after-write", "a tensor")
    place = Source("getattr", sources.root(call), "value")
    return sources.guard_value(place, value)
