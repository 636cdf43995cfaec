"""Makes a user's function of torch's that is compiled alone: ``compile(torch.softmax)``, ``compile(grad(f))``."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType, MethodDescriptorType
from typing import Any

import torch

# Whose Python functions are one call in a graph, so that by themselves they have no code to record.
MODULES = ("torch.functional", "torch.nn.functional", "torch._jit_internal", "torch.nn.attention.flex_attention")
# Whose functions are what a transform makes of a user's function, or of another transform.
TRANSFORMS = ("torch._functorch.apis", "torch._functorch.vmap", "torch._functorch.eager_transforms")

# What holds those that are C.
HOLDERS = ("torch._C._nn", "torch._C._linalg", "torch._C._fft", "torch._C._special")


def is_of_torch(function: Callable[..., Any]) -> bool:
    """Whether what is to be compiled is such a function; what torch's decorators make of a user's function is none."""
    if isinstance(function, FunctionType):
        return function.__globals__.get("__name__") in (*MODULES, *TRANSFORMS)
    if isinstance(function, BuiltinFunctionType):
        return function.__module__ in HOLDERS or vars(torch).get(function.__name__) is function
    if isinstance(function, MethodDescriptorType):
        return function.__objclass__ is torch._C.TensorBase
    return isinstance(function, (torch._ops.OpOverload, torch._ops.OpOverloadPacket))


def calling(function: Callable[..., Any]) -> FunctionType:
    """A function that calls ``function``; it has its name, signature and place, for reports and errors: of a transform
    those of what it transforms.
    """

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    given, name = getattr(inspect.unwrap(function), "__code__", None), function.__name__
    code = call.__code__.replace(
        co_name=name, co_qualname=name,
        co_filename=given.co_filename if given else "<torch>", co_firstlineno=given.co_firstlineno if given else 1,
    )  # fmt: skip
    # Its globals say whose code it is: not ours, which is not recorded.
    made = FunctionType(code, {"__name__": "torch alone"}, name, None, call.__closure__)
    functools.update_wrapper(made, function)
    made.__qualname__ = name  # some have that of what made them
    return made
