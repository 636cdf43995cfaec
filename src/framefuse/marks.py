"""The public functions that tell the compiler what it cannot know: sizes that vary, functions to keep whole or skip."""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable
from types import ModuleType
from typing import Any, TypeVar

import torch

from framefuse.errors import UserError, kind_of
from framefuse.ir.marks import DIMENSIONS, graph_break
from framefuse.runtime.function import compiled_function
from framefuse.runtime.switch import Switch

__all__ = [
    "allow_in_graph", "assume_constant_result", "disable", "enable", "graph_break", "mark_dynamic", "mark_static",
    "nonstrict_trace",
]  # fmt: skip
F = TypeVar("F", bound=Callable[..., Any])


def mark_dynamic(tensor: torch.Tensor, dim: int | Iterable[int]) -> None:
    """Says that the size of these dimensions of an argument varies, also under ``dynamic=False`` and for buffers.

    Args:
        tensor: an argument of a compiled function, or a buffer of a module; the mark is an attribute of this object.
        dim: one dimension or several; negative ones count from the end.

    Raises:
        UserError: ``tensor`` is no tensor, or has no such dimension.
    """
    _mark(tensor, dim, True)


def mark_static(tensor: torch.Tensor, dim: int | Iterable[int] | None = None) -> None:
    """Says that the size of these dimensions (None: of all) is a constant of the code: another size compiles anew.

    Raises:
        UserError: ``tensor`` is no tensor, or has no such dimension.
    """
    _mark(tensor, range(tensor.ndim) if dim is None and isinstance(tensor, torch.Tensor) else dim, False)


def _mark(tensor: Any, dim: Any, varies: bool) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise UserError(f"{kind_of(tensor)} has no dimensions. Mark a tensor")
    dimensions = dict(getattr(tensor, DIMENSIONS, {}))
    numbers = (dim,) if isinstance(dim, int) else tuple(dim) if isinstance(dim, Iterable) else (dim,)
    for number in numbers:
        if not isinstance(number, int):
            raise UserError(f"a dimension is {number!r}. Give a whole number, or several")
        if not -tensor.ndim <= number < tensor.ndim:
            raise UserError(f"dimension {number} of a tensor of {tensor.ndim} dimensions. Give one that it has")
        dimensions[number % tensor.ndim] = varies
    setattr(tensor, DIMENSIONS, dimensions)


def allow_in_graph(function: F) -> F:
    """Keeps calls of ``function`` as one call in the graph: its Python code is run as it is and not looked into.

    What it computes must follow from its arguments (tensors, numbers and containers of them) and have no effect;
    nothing checks that. It gets and gives tensors of real values, never symbols. A decorator.

    Raises:
        UserError: ``function`` is not callable.
    """
    _recorder().keep_in_graph(_callable(function))
    return function


def nonstrict_trace(function: F) -> F:
    """Gives a function that calls ``function``, whose Python code runs as it is while a call is recorded and is not
    looked into: what torch computes in it becomes part of the graph, and later calls run that alone.

    For libraries that compute by torch behind much Python, as simulators do. What torch computes must follow from the
    arguments (tensors, numbers and containers of them; numbers and sizes are constants of the code) and from what never
    changes, and nothing else may have an effect; nothing checks that. Where the code looks at values of tensors, the
    call runs as it is at each call. A decorator.

    Raises:
        UserError: ``function`` is not callable.
    """
    recorder = importlib.import_module("framefuse.capture.callables.operator_traces")
    traced: F = recorder.trace_operators(_callable(function))
    return traced


def assume_constant_result(function: F) -> F:
    """Takes what ``function`` gives while a call is recorded for what it always gives; nothing checks that. A
    decorator.

    Raises:
        UserError: ``function`` is not callable.
    """
    _recorder().take_as_constant(_callable(function))
    return function


def disable(function: Callable[..., Any] | None = None) -> Any:
    """Marks ``function`` to run eagerly, with all that it calls, wherever compiled code reaches it; a decorator.

    Without a function it turns compiled code off in the whole process: ``framefuse.disable()`` until
    :func:`enable`, ``with framefuse.disable():`` until the end of the block. Nothing compiled is lost.
    ``FRAMEFUSE_DISABLE=1`` in the environment does so from the start.
    """
    if function is None:
        return Switch(True, disable)
    state = compiled_function(_callable(function))
    if state is not None:
        return state.owner if isinstance(function, torch.nn.Module) else state.function

    @functools.wraps(function)
    def eager(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    eager.__framefuse_disabled__ = True  # type: ignore[attr-defined]
    return eager


def enable(function: Callable[..., Any] | None = None) -> Any:
    """Turns compiled code on again in the whole process: until :func:`disable`, or the end of a ``with`` block. As a
    decorator, ``@framefuse.enable``: in each call of ``function``.
    """
    return Switch(False, _with_compiled_code) if function is None else _with_compiled_code(function)


def _with_compiled_code(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, in whose calls compiled code is on."""

    @functools.wraps(_callable(function))
    def call(*args: Any, **kwargs: Any) -> Any:
        with enable():
            return function(*args, **kwargs)

    return call


def _recorder() -> ModuleType:
    """What the recorder makes of marked functions; the recorder is imported when it is first needed."""
    return importlib.import_module("framefuse.capture.callables.marks")


def _callable(function: Any) -> Any:
    if not callable(function):
        raise UserError(f"{kind_of(function)} is not callable. Give a function")
    return function
