"""Compiles the backward that users wrote for custom autograd functions, each once."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable

from framefuse.ir.values import Value
from framefuse.options import resolve
from framefuse.runtime.function import CompiledFunction, Compiler

KEPT = 256  # functions that are remembered


@functools.lru_cache(KEPT)
def compiled(compiler: Callable[[], Compiler], function: Value) -> Value:
    """The compiled form of a backward, or itself where it is no Python function of the user's."""
    if type(function) is not types.FunctionType or str(function.__globals__.get("__name__")).startswith("torch."):
        return function
    return CompiledFunction(function, None, resolve(None), compiler()).dispatch
