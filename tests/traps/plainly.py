"""Shows values with their exact types, so that a number or iterator of the recorder's own is seen; and calls programs
with numbers that change.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import torch
from tests.traps.trap import Table

ITERATORS = (
    enumerate, zip, map, types.GeneratorType, type(iter([])), type(iter(range(0))), type(reversed([])),
    type({}.keys()), type({}.values()), type({}.items()),
)  # fmt: skip
DEEPEST = 7
# The number of each call: compiled code meets a number that it was recorded with, and others.
NUMBERS = (3, 4, 5, 3, 4, 5, 3, 4, 5, 6)


def plainly(value: Any, depth: int = 0) -> Any:
    """Nested tuples of texts that say all about ``value`` but its address; a subclass is read as its builtin class."""
    kind = type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"

    def all_of(parts: Any) -> Any:
        return [plainly(part, depth + 1) for part in parts]

    if depth > DEEPEST:
        return name
    if isinstance(value, torch.Tensor):
        return (name, str(value.dtype), str(value.tolist()))
    if isinstance(value, (set, frozenset)):
        return (name, all_of(sorted(value, key=repr)))
    for base in (list, tuple, collections.deque):
        if isinstance(value, base):
            return (name, all_of(base.__iter__(value)))
    if isinstance(value, dict):
        return (name, all_of(dict.items(value)))
    if isinstance(value, BaseException):
        return (name, all_of((value.args, vars(value), value.__cause__)))
    if kind is types.FunctionType:
        cells = [cell.cell_contents for cell in value.__closure__ or () if cell.cell_contents is not value]
        return (name, value.__name__, all_of((value.__defaults__, value.__kwdefaults__, cells, vars(value))))
    if isinstance(value, ITERATORS):
        return (name, all_of(value))
    if kind is functools.partial:
        return (name, all_of((value.args, value.keywords)))
    if kind is types.BuiltinMethodType:
        return (name, value.__name__, plainly(value.__self__, depth + 1))
    if kind is types.SimpleNamespace or (dataclasses.is_dataclass(value) and not isinstance(value, type)):
        return (name, all_of(vars(value).items()))
    if "__slots__" in vars(kind):
        return (name, all_of(getattr(value, slot) for slot in kind.__slots__))
    text = repr(value)
    return (name, text if " at 0x" not in text else "")


def with_numbers(table: Table, hits: int = 3) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Adds ``function(x, n)`` to the table as a program that calls it with other tensors and numbers each time."""

    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        def program(compiled: Any) -> Iterator[Any]:
            f = compiled(function)
            for place, number in enumerate(NUMBERS):
                try:
                    found = f(torch.full((2,), float(place)), number)
                except Exception as error:
                    found = error
                yield plainly(found)

        program.__name__ = function.__name__
        table.trap(traces=60, hits=hits)(program)
        return function

    return add
