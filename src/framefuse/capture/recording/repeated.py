"""Calls that guards make again to see whether they give what they gave: cached functions and weak references."""

from __future__ import annotations

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
from framefuse.ir.repeated_calls import Repeated, is_cached
from framefuse.ir.values import Arguments, Keywords, Value

# Cached functions of libraries that read nothing but their arguments, and whose results nobody changes.
PURE = frozenset(
    ("einops.einops", name)
    for name in ("_prepare_transformation_recipe", "_reconstruct_from_shape_uncached", "_compactify_pattern_for_einsum")
) | {("einops.packing", "analyze_pattern")}

MODELS = "transformers.models."
LOGGING = ("logging", "transformers.utils.logging", "diffusers.utils.logging")


def is_repeatable(target: Value, args: Arguments, kwargs: Keywords, sources: Sources) -> bool:
    """Whether the outcome of a call may be a fact: it has no effect, or its effect is once for all and done, and what
    is called is the same object at each call. One that came out of a break may have been made by this call.

    The arguments must be known by value or identity, since nothing says when others change. A fact holds the object
    that it is about, so that a weak reference may give a tensor, which is known by its place, what is ``known`` by
    another place, or nothing.
    """
    if type(target) is not weakref.ReferenceType and not is_cached(target):
        return False
    source = sources.source_of(target)
    if source is not None and source.is_argument and sources.resumed:
        if type(target) is not weakref.ReferenceType:
            return False
        return _is_weight(source) or (_wraps_method(source) and sources.knows(target()))
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


def _is_weight(source: Source) -> bool:
    """Whether a place is among the references that a recurrent layer of torch keeps to its weights."""
    holder = source.base
    return source.kind == "item" and holder is not None and holder.kind == "attr" and holder.key == "_flat_weight_refs"


def says_once(target: Value) -> bool:
    """Whether this is a cached function of a logging module, such as transformers' ``warning_once``: another process
    has to say it again.
    """
    if not is_cached(target):
        return False
    return getattr(target.__wrapped__, "__module__", "") in LOGGING and target.__name__.endswith("_once")


def is_pure(target: Value, args: Arguments, kwargs: Keywords, sources: Sources) -> bool:
    """Whether a cached function gives the same for the same arguments, so that no fact need hold what it gave. Those of
    transformers' models, which a compiler is to pass by, are never found for a tensor that this call made.
    """
    function = getattr(target, "__wrapped__", None)
    if not is_cached(target) or type(function) is not types.FunctionType:
        return False
    if str(function.__module__).startswith(MODELS):
        made = (is_a(value, torch.Tensor) and not sources.knows(value) for value in (*args, *kwargs.values()))
        return any(made)
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
    if type(bare(value)) in ATOMS or is_a(value, (type, types.FunctionType, torch.device)):
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
