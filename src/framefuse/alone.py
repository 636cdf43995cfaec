"""Makes a user's function of one of torch's that is compiled alone, as in ``framefuse.compile(flex_attention)``."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

# Whose Python functions are one call in a graph, so that by themselves they have no code to record.
MODULES = ("torch.functional", "torch.nn.functional", "torch._jit_internal", "torch.nn.attention.flex_attention")


def is_of_torch(function: Callable[..., Any]) -> bool:
    """Whether what is to be compiled is such a function; what torch's decorators make of a user's function is none."""
    return isinstance(function, FunctionType) and function.__globals__.get("__name__") in MODULES


def calling(function: FunctionType) -> FunctionType:
    """A function that calls ``function``; it has its name, signature and place, for reports and errors."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    given = function.__code__
    code = call.__code__.replace(
        co_name=function.__name__, co_qualname=function.__qualname__, co_filename=given.co_filename,
        co_firstlineno=given.co_firstlineno,
    )  # fmt: skip
    # Its globals say whose code it is: not ours, which is not recorded.
    made = FunctionType(code, {"__name__": "torch alone"}, function.__name__, None, call.__closure__)
    functools.update_wrapper(made, function)
    return made
