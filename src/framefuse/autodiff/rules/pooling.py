"""Gradients of max pooling: the forward keeps which element won."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from framefuse.autodiff.library import arguments, calls, order_in, order_of
from framefuse.autodiff.registry import CallVjp, DifferentiableForm, Given, Gradient, differentiable_form, vjp_call
from framefuse.autodiff.rules.convolution import each
from framefuse.ir.builder import Builder
from framefuse.ir.dtypes import INT64
from framefuse.ir.graph import Node
from framefuse.ir.values import Value

ADAPTIVE = "input output_size return_indices=False"
Numbers = Callable[[dict[str, Value], int], tuple[Value, ...] | None]
MAXIMUM = "input kernel_size stride=None padding=0 dilation=1 ceil_mode=False return_indices=False"


def _numbers(args: dict[str, Value], rank: int) -> tuple[Value, ...]:
    """Kernel, stride, padding and dilation of each dimension, and whether the last window may be cut."""
    kernel = each(args["kernel_size"], rank)
    stride = kernel if args["stride"] in (None, (), []) else each(args["stride"], rank)
    return kernel, stride, each(args["padding"], rank), each(args["dilation"], rank), args["ceil_mode"]


def _sizes(args: dict[str, Value], rank: int) -> tuple[Value, ...] | None:
    """The sizes of an adaptive pooling; None where one is that of the input."""
    sizes = each(args["output_size"], rank)
    return None if None in sizes else (sizes,)


def _form(name: str, rank: int, signature: str, numbers: Numbers) -> DifferentiableForm:
    forward = getattr(torch.ops.aten, name).default
    kept = f"{name.removesuffix('_with_indices')}_kept"

    def rule(
        builder: Builder, node: Node, results: Sequence[Node], need: Sequence[bool]
    ) -> dict[Node, Node] | None:
        args = arguments(node, signature)
        if args is None or any(part.attr("path") not in ((), (0,), (1,)) for part in results):
            return None
        given = numbers(args, rank)
        if given is None:
            return None
        value = next((part for part in results if part.attr("path") in ((), (0,))), None)
        if value is None or not value.dtype.is_float:
            return None
        input, order = args["input"], order_of(builder, value)
        outputs = calls(
            builder,
            forward,
            (input, *given),
            [((0,), value.dtype, value.shape), ((1,), INT64, value.shape)],
            name=kept,
            orders={input: order_in(builder, node, input)},
            given=[order, order],
        )
        return {part: outputs[part.attr("path") == (1,)] for part in results}

    return rule


def _backward(name: str, forward_numbers: bool) -> CallVjp:
    backward = getattr(torch.ops.aten, f"{name}_backward").default

    def rule(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient] | None:
        input, g = node.inputs[0], given[(0,)]
        parts = builder.results(node)
        places = parts[(1,)]
        order, own = order_of(builder, places), order_in(builder, node, input)
        numbers = node.attr("args")[1:] if forward_numbers else ()
        return calls(
            builder,
            backward,
            (g, input, *numbers, places),
            [((), input.dtype, input.shape)],
            orders={g: order, places: order, input: own},
            given=[own],
        )

    return rule


for _rank in (2, 3):
    _name = f"max_pool{_rank}d_with_indices"
    differentiable_form(f"max_pool{_rank}d", _name)(_form(_name, _rank, MAXIMUM, _numbers))
    vjp_call(f"max_pool{_rank}d_kept")(_backward(_name, True))
    _name = f"adaptive_max_pool{_rank}d"
    differentiable_form(_name, f"{_name}_with_indices")(_form(_name, _rank, ADAPTIVE, _sizes))
    vjp_call(f"{_name}_kept")(_backward(_name, False))
