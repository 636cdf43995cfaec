"""Registers lowering rules under the names of torch's functions and finds the rule of a recorded call's target."""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias, TypeVar

import torch

from framefuse.ir import elements
from framefuse.ir.builder import Shape
from framefuse.ir.collectives import Started
from framefuse.ir.graph import Node
from framefuse.ir.native_warnings import Telling
from framefuse.ir.numbers import Expr
from framefuse.ir.values import Value
from framefuse.ir.wrapped_calls import WithKernels

OVERLOADS = (torch._ops.OpOverload, torch._ops.OpOverloadPacket)


class Unsupported(Exception):
    """This call's arguments are outside what the rule expresses: the call stays a library call."""


@dataclass(frozen=True, slots=True)
class Counted:
    """A size that is known once the call has run: how many elements of ``of`` are not zero, or a size of the call's own
    where that is None.
    """

    of: Node | None = None


OpenShape: TypeAlias = tuple[Expr | Counted, ...]


@dataclass(frozen=True, slots=True)
class Shapes:
    """A rule's answer for a call that stays with the library but whose results' sizes are known: one shape each."""

    shapes: tuple[OpenShape, ...]


Lowered: TypeAlias = Node | Shapes | tuple[Node, ...]  # what a rule makes of a call
Rule: TypeAlias = Callable[..., Lowered]
R = TypeVar("R", bound=Rule)

# Where a plain name is looked up. A name that a version of torch lacks is skipped.
NAMESPACES: dict[str, Value] = {
    "torch": torch,
    "Tensor": torch.Tensor,
    "F": torch.nn.functional,
    "nn": torch._C._nn,
    "special": torch.special,
    "linalg": torch.linalg,
    "fft": torch.fft,
    "elements": elements,
}
PLAIN = ("torch", "Tensor", "F", "nn")
# Where the function lies that an operator of torch.ops.aten implements, with the same parameters.
OPERATOR_HOLDERS = (torch._C._VariableFunctions, torch.Tensor, torch._C._nn)


@dataclass(frozen=True, slots=True)
class Entry:
    """One rule: ``names`` as registered, its ``family`` (the file), and ``function(lowering, *args, **kwargs)``."""

    names: tuple[str, ...]
    family: str
    function: Rule


ENTRIES: list[Entry] = []
_BY_TARGET: dict[Value, Entry] = {}
_EXPLICIT: set[Value] = set()
_BY_OPERATOR: dict[str, Entry] = {}


def register(names: tuple[str, ...], family: str, function: Rule) -> None:
    """Makes ``function`` the rule of ``names``: ``"relu"`` is that name in torch, Tensor, torch.nn.functional and
    torch._C._nn (and its in-place form ``relu_``), ``"special.expit"`` or ``"F.embedding"`` that function only,
    ``"aten.index"`` an operator that no function of torch stands for, ``"collective.all_reduce"`` a functional
    collective.
    """
    entry = Entry(names, family, function)
    ENTRIES.append(entry)
    for name in names:
        space, _, last = name.rpartition(".")
        if space == "aten":
            _BY_OPERATOR[last] = entry
            continue
        if space == "collective":
            _BY_TARGET[Started(last)] = entry
            continue
        for place in (space,) if space else PLAIN:
            for form in (last, f"{last}_"):
                _bind(NAMESPACES[place], form, entry, bool(space))
        if not space and last.startswith("__") and hasattr(operator, last):
            _bind(operator, last, entry, False)


def _bind(holder: Value, name: str, entry: Entry, explicit: bool) -> None:
    target: Value = getattr(holder, name, None)
    if type(target).__name__ in ("getset_descriptor", "property"):
        target = target.__get__
    if target is None or not callable(target):
        return
    if explicit:
        _EXPLICIT.add(target)
    elif target in _EXPLICIT:
        return
    _BY_TARGET[target] = entry


def rule(*names: str) -> Callable[[R], R]:
    """Decorator form of :func:`register`; the family is the function's module."""

    def keep(function: R) -> R:
        register(names, function.__module__.rpartition(".")[2], function)
        return function

    return keep


def find(target: Value) -> Rule | None:
    """The rule of a recorded call's target, or None; of one that warned in C, which torch is to call, its sizes."""
    if isinstance(target, Telling):
        found = find(target.target)
        return None if found is None else partial(_sizes, found)
    if isinstance(target, WithKernels):
        target = target.target
    try:
        entry = _BY_TARGET.get(target)
    except TypeError:  # a target that cannot be hashed is no function of torch
        return None
    if entry is None and isinstance(target, OVERLOADS):
        entry = _of_operator(target)
    return entry.function if entry is not None else None


def _sizes(rule: Rule, *args: Value, **kwargs: Value) -> Shapes:
    result = rule(*args, **kwargs)
    if not isinstance(result, Shapes):
        raise Unsupported("a warning")
    return result


def _of_operator(target: Value) -> Entry | None:
    """The rule of an operator that is called by its name in torch.ops.aten."""
    space, _, name = target._schema.name.partition("::") if isinstance(target, OVERLOADS[0]) else _qualified(target)
    if space != "aten":
        return None
    functions = [getattr(holder, name) for holder in OPERATOR_HOLDERS if hasattr(holder, name)]
    native = [function for function in functions if not isinstance(function, types.FunctionType)]
    entries = (_BY_TARGET.get(function) for function in native)
    return _BY_OPERATOR.get(name) or next((entry for entry in entries if entry is not None), None)


def _qualified(packet: torch._ops.OpOverloadPacket) -> tuple[str, str, str]:
    return packet._qualified_op_name.partition("::")


def shapes_of(result: Value) -> Iterator[Shape]:
    """The shapes in a rule's answer, without the sizes that only the call tells."""
    if isinstance(result, Node):
        yield result.shape
    elif isinstance(result, Shapes):
        for shape in result.shapes:
            yield tuple(size for size in shape if not isinstance(size, Counted))
    elif isinstance(result, (tuple, list)):
        for part in result:
            yield from shapes_of(part)
    elif isinstance(result, dict):
        yield from shapes_of(tuple(result.values()))


def only_shapes(result: Value, paths: Sequence[tuple[int, ...]]) -> Shapes:
    """What a rule's answer says of sizes."""
    if isinstance(result, Shapes):
        return result
    nodes = [follow(result, path) for path in paths]
    return Shapes(tuple(node.shape for node in nodes if isinstance(node, Node)))


def follow(result: Value, path: tuple[int, ...]) -> Value:
    for step in path:
        result = result[step]
    return result
