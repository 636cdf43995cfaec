"""Maps the name of a backend, or a user's backend function, to the passes that compile for it."""

from __future__ import annotations

import functools
import importlib
import sys
from types import ModuleType
from typing import Any

import torch.fx

from framefuse.errors import UserError, kind_of
from framefuse.ir.collector import collector_paused, made_to_last
from framefuse.ir.values import Function, FxBackend, Value
from framefuse.runtime.function import Compiler


def eager(gm: torch.fx.GraphModule, example_inputs: list[Value]) -> Function:
    """Runs the captured graph as it is: shows whether a fault lies in capture or in what comes after it."""
    return gm.forward


OWN = ("native", "python", "aot_eager")  # framefuse's own ways, each of which leaves out a stage more
_named: dict[str, FxBackend] = {"eager": eager}


def list_backends() -> list[str]:
    """The names that ``compile(backend=...)`` accepts."""
    return [*OWN, *sorted(_named)]


def specialises(backend: str | FxBackend) -> bool:
    """Whether a backend may make code for the very sizes of its example inputs, as any that users write."""
    return backend not in (*OWN, "eager")


def holds_sizes(backend: str | FxBackend) -> bool:
    """Whether a backend's code holds the sizes of its example inputs though it is asked not to: torch's own, which
    learn from fake tensors of torch.compile alone which sizes may change.
    """
    function = _named.get(backend) if isinstance(backend, str) else backend
    return type(function).__module__.startswith("torch._dynamo.backends")


def register_backend(function: FxBackend | None = None, *, name: str | None = None) -> Any:
    """Gives ``function(gm, example_inputs) -> callable`` a name for ``compile(backend=name)``; also a decorator.

    Raises:
        UserError: the name is taken by framefuse itself, or ``function`` is not callable.
    """
    if function is None:
        return lambda given: register_backend(given, name=name)
    if not callable(function):
        raise UserError(f"a backend must be callable, not {kind_of(function)}. Give (gm, inputs) -> callable")
    if name is not None and not isinstance(name, str):
        raise UserError(f"name is {kind_of(name)}. Give the text by which compile(backend=) is to know it")
    known = str(name or getattr(function, "__name__", type(function).__name__))
    if known in (*OWN, "eager"):
        raise UserError(f"the name {known!r} is framefuse's own. Choose another name=")
    _named[known] = function
    return function


def compiler_of(backend: str | FxBackend, soon: bool = False) -> Compiler:
    """The compiler for a backend, of which all is imported where it is needed ``soon``; raises UserError naming the
    choices for an unknown one.
    """
    compiler = _compiler_of(backend)
    if soon:
        importlib.import_module("framefuse.driver.wiring").load_stages()
    return compiler


def _compiler_of(backend: str | FxBackend) -> Compiler:
    if isinstance(backend, str) and backend in OWN:
        return own(backend)
    if isinstance(backend, str):
        if backend not in _named:
            raise UserError(f"unknown backend {backend!r}. Choose one of: {', '.join(list_backends())}, or a callable")
        backend = _named[backend]
    if not callable(backend):
        raise UserError(f"backend is {backend!r:.60}. Give a name or (gm, inputs) -> callable")
    compiler: Compiler = _driver().through(backend)
    return compiler


@functools.cache
def own(name: str) -> Compiler:
    """One of framefuse's own ways."""
    compiler: Compiler = _driver().own(name)
    return compiler


def _driver() -> ModuleType:
    """What finds and makes compiled code: imported for the first function that is compiled, not with the package. Its
    objects are old at once: the first call that finds its code would have them walked.
    """
    name = "framefuse.driver.tree"
    if name not in sys.modules:
        with collector_paused() as collecting, made_to_last(collecting):
            importlib.import_module(name)
    return importlib.import_module(name)  # which another thread may be importing
