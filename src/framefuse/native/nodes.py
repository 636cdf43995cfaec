"""Makes the classes behind one kind of autograd node out of a name and two bodies written in C."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd.function import BackwardCFunction, FunctionMeta


def node_classes(name: str, forward: Callable[..., Any], backward: Callable[..., Any]) -> tuple[FunctionMeta, type]:
    """``(function, node)``: the function to apply, and the class of its nodes, printed as ``<name>Backward``.

    A node has a slot ``_held``, at an offset that C reads, in place of an attribute in a dict. What torch looks up on
    the function at each call stands in its own dict, since torch's look-ups miss CPython's cache of attributes.
    """
    base = torch.autograd.Function
    near = {
        key: getattr(base, key) for key in ("clear_saved_tensors_on_access", "boxed_grads_call") if hasattr(base, key)
    }
    members = {
        **near, "forward": staticmethod(forward), "backward": staticmethod(backward),
        "setup_context": staticmethod(base.setup_context), "__module__": __name__,
    }  # fmt: skip
    function = FunctionMeta(name, (base,), members)
    made: Any = function._backward_cls
    more = {"_forward_cls": function, "_autograd_function_id": made._autograd_function_id, "__module__": __name__}
    node = type(made.__name__, (BackwardCFunction,), {**more, "__slots__": ("_held",)})
    function._backward_cls = node
    return function, node


def hooks_active() -> bool:
    """Whether tensors saved now go through somebody's saved_tensors_hooks."""
    return torch._C._autograd._top_saved_tensors_default_hooks(False) is not None


class _Twice(torch.autograd.Function):
    """What the probe applies."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def raw_apply() -> Any:
    """The descriptor of torch's own ``apply`` below autograd.Function's, None where it does not apply a function."""
    found: Any = vars(torch._C._FunctionBase).get("apply")
    try:
        with torch.enable_grad():  # no backward: an engine that has run may stand in the way of a fork
            made = found.__get__(None, _Twice)(torch.ones(2, requires_grad=True))
    except (AttributeError, TypeError, RuntimeError):
        return None
    return found if made.tolist() == [2, 2] and type(made.grad_fn) is _Twice._backward_cls else None
