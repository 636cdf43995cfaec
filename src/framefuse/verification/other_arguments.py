"""Changes arguments and state of a program: what a trace was made for, or must hold for as well."""

from __future__ import annotations

import inspect
import math
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from framefuse.ir.values import Function, Value
from framefuse.verification.program_state import Place
from framefuse.verification.runs import Program, copied, mapped, tensors

VALUES = object()  # in the place of an argument: tensors have other values
APART, ONE = object(), object()  # two arguments are tensors apart, and one tensor
ROWS, COLUMNS = object(), object()  # how matrices lie in memory
STATES = 8  # attributes and variables that are changed, the outermost first


@dataclass(frozen=True, slots=True)
class Variant:
    """The program on other arguments: ``text`` says what is another, from ``was`` to ``now``, as
    :func:`framefuse.verification.guard_case.guard_case` takes them.
    """

    text: str
    program: Program
    was: Value = VALUES
    now: Value = VALUES


def variants(program: Program) -> Iterator[Variant]:
    """The program on other arguments, each with what is another: tensors of other values, one number, truth, text,
    container or missing argument at a time, sizes, one tensor for two, kinds of arguments, then modes and attributes.
    Guards must tell them apart, or the trace hold for both.
    """
    args, kwargs = program.args, program.kwargs
    names, words = _parameters(program.function), tuple(_words(_code(program.function)))
    beside = next(iter(tensors((args, kwargs))), None)
    others = replace(program, args=mapped(args, _reversed), kwargs=mapped(kwargs, _reversed))
    yield Variant("other values", others)
    limits = tuple(_numbers(_code(program.function)))
    for place, value in enumerate(args):
        for other in _others(value, words, limits, beside):
            name = names[place] if place < len(names) else f"args[{place}]"
            text = f"{name} was {_shown(value)}, is {_shown(other)}"
            changed = replace(program, args=(*args[:place], other, *args[place + 1 :]))
            yield Variant(text, changed, value, other)
    for key, value in kwargs.items():
        for other in _others(value, words, limits, beside):
            changed = replace(program, kwargs={**kwargs, key: other})
            yield Variant(f"{key} was {_shown(value)}, is {_shown(other)}", changed, value, other)
    for size in sorted({size for tensor in tensors((args, kwargs)) for size in tensor.shape if size > 1}):
        changed = replace(
            program,
            args=mapped(args, lambda tensor, size=size: _grown(tensor, size)),  # type: ignore[misc]
            kwargs=mapped(kwargs, lambda tensor, size=size: _grown(tensor, size)),  # type: ignore[misc]
        )
        text = f"sizes of {size} are {size + 1}"
        yield Variant(text, changed, torch.Size((size,)), torch.Size((size + 1,)))
    yield from _one_for_two(program, names)
    yield from _other_kinds(program, names)
    yield from _other_states(program, words)


def _one_for_two(program: Program, names: Sequence[str]) -> Iterator[Variant]:
    """The first two tensors of one kind among the arguments are one tensor."""
    args = program.args
    for place, value in enumerate(args):
        for before, other in enumerate(args[:place]):
            if isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor) and _alike(value, other):
                first, second = (names[n] if n < len(names) else f"args[{n}]" for n in (before, place))
                changed = replace(program, args=(*args[:place], other, *args[place + 1 :]))
                yield Variant(f"{second} is {first}", changed, APART, ONE)
                return


def _other_kinds(program: Program, names: Sequence[str]) -> Iterator[Variant]:
    """A tuple in place of a list or the other way round, matrices that lie otherwise, and floats of another width."""
    args, kwargs = program.args, program.kwargs
    for place, value in enumerate(args):
        if type(value) in (list, tuple):
            other = tuple(value) if type(value) is list else list(value)
            name = names[place] if place < len(names) else f"args[{place}]"
            text = f"{name} was a {type(value).__name__}, is a {type(other).__name__}"
            yield Variant(text, replace(program, args=(*args[:place], other, *args[place + 1 :])), value, other)
            break
    found = list(tensors((args, kwargs)))
    if any(_turned(tensor) is not tensor for tensor in found):
        changed = replace(program, args=mapped(args, _turned), kwargs=mapped(kwargs, _turned))
        yield Variant("matrices lie by columns", changed, ROWS, COLUMNS)
    if any(tensor.dtype is torch.float32 for tensor in found):
        changed = replace(program, args=mapped(args, _wide), kwargs=mapped(kwargs, _wide))
        yield Variant("float32 is float64", changed, torch.float32, torch.float64)


def _turned(tensor: torch.Tensor) -> torch.Tensor:
    """A matrix of the same elements whose columns are neighbours; others as they are."""
    if tensor.ndim < 2 or min(tensor.shape[-2:]) < 2 or not tensor.is_contiguous():
        return tensor
    return tensor.detach().mT.contiguous().mT.requires_grad_(tensor.requires_grad)


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype is not torch.float32:
        return tensor
    return tensor.detach().double().requires_grad_(tensor.requires_grad)


def _alike(value: torch.Tensor, other: torch.Tensor) -> bool:
    return value is not other and (value.shape, value.dtype) == (other.shape, other.dtype)


def _other_states(program: Program, words: Sequence[str]) -> Iterator[Variant]:
    """Modules train that did not or the other way round; attributes and variables hold another value."""
    modes = [Place(f"{type(part).__name__}.training", vars(part), "training") for part in program.state.modules]
    if modes:
        was = modes[0].value
        changed = replace(program, other=tuple((mode, not mode.value) for mode in modes))
        yield Variant(f"training was {was}, is {not was}", changed, was, not was)
    places = [place for place in program.state.places if not isinstance(place.holder, list)]
    for place in places[:STATES]:
        was, other = place.value, _other(place.value, words, None)
        if other is not None:
            text = f"{place.text} was {_shown(was)}, is {_shown(other)}"
            yield Variant(text, replace(program, other=((place, other),)), was, other)


def _parameters(function: Function) -> list[str]:
    try:
        return list(inspect.signature(getattr(function, "forward", function)).parameters)
    except (TypeError, ValueError):
        return []


def _reversed(tensor: torch.Tensor) -> torch.Tensor:
    """The elements in the opposite order."""
    twin = copied(tensor)
    if 0 in tensor.stride():
        return twin
    with torch.no_grad():
        return twin.copy_(tensor.detach().flatten().flip(0).reshape(tensor.shape))


def _grown(tensor: torch.Tensor, size: int) -> torch.Tensor:
    """With one more wherever a dimension has ``size``: the last entries once more."""
    found = tensor.detach()
    for axis in [axis for axis, each in enumerate(tensor.shape) if each == size]:
        found = torch.cat([found, found.narrow(axis, size - 1, 1)], axis)
    return copied(found.requires_grad_(tensor.requires_grad))


def _shown(value: Value) -> str:
    """An argument in one line: of a tensor its kind, of a container what tells it from another."""
    if isinstance(value, torch.Tensor):
        return "a tensor"
    if isinstance(value, dict):
        return f"a dict of {', '.join(map(repr, value))}" if value else "an empty dict"
    return f"{type(value).__name__} of length {len(value)}" if isinstance(value, (list, tuple)) else repr(value)


def _other(value: Value, words: Sequence[str], beside: torch.Tensor | None) -> Value:
    """Another number, truth or text of the same type, a container with one element less or more, a tensor as the one
    ``beside`` for None; None for other arguments. A text is one of the program's own ``words`` where it has another,
    since it may branch on that.
    """
    if value is None:
        return None if beside is None else torch.ones_like(beside.detach())
    if type(value) is dict and value:
        return dict(list(value.items())[:-1])
    if type(value) in (list, tuple) and value:
        return type(value)((*value, value[-1]))
    if isinstance(value, bool):
        return not value
    if type(value) is str:
        return next((word for word in words if word != value), value + "_")
    return value + 1 if type(value) in (int, float) else None


def _others(
    value: Value, words: Sequence[str], limits: Sequence[float], beside: torch.Tensor | None
) -> Iterator[Value]:
    """What :func:`_other` gives; for a number also one beyond the nearest of the program's own numbers, since it may
    branch on that.
    """
    other = _other(value, words, beside)
    if other is not None:
        yield other
    if type(value) in (int, float) and limits:
        limit = min(limits, key=lambda each: abs(each - value))
        beyond = type(value)(limit + (1 if limit > value else -1))
        if beyond != other:
            yield beyond


def _code(function: Function) -> Value:
    function = getattr(function, "forward", function)
    return getattr(inspect.unwrap(function), "__code__", None)


def _words(code: Value) -> Iterator[str]:
    """The words that stand in code, those of the functions in it behind."""
    if isinstance(code, types.CodeType):
        yield from (each for each in code.co_consts if type(each) is str and len(each.split()) == 1)
        for each in code.co_consts:
            yield from _words(each)


def _numbers(code: Value) -> Iterator[float]:
    """The numbers that stand in code and are finite, those of the functions in it behind."""
    if isinstance(code, types.CodeType):
        yield from (each for each in code.co_consts if type(each) in (int, float) and math.isfinite(each))
        for each in code.co_consts:
            yield from _numbers(each)
