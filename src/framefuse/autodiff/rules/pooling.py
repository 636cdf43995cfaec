"""Gradients of max pooling: the forward keeps which element won."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from framefuse.autodiff.library import arguments, calls, order_in, order_of
from framefuse.autodiff.registry import CallVjp, DifferentiableForm, Given, Gradient, differentiable_form, vjp_call
from framefuse.autodiff.rules.convolution import each
from framefuse.ir.builder import Builder
from framefuse.ir.dtypes import INT64
from framefuse.ir.graph import Node
from framefuse.ir.values import Value

MAXIMUM = "input kernel_size stride=None padding=0 dilation=1 ceil_mode=False return_indices=False"


def _numbers(args: dict[str, Value], rank: int) -> tuple[Value, ...]:
    """Kernel, stride, padding and dilation of each dimension, and whether the last window may be cut."""
    kernel = each(args["kernel_size"], rank)
    stride = kernel if args["stride"] in (None, (), []) else each(args["stride"], rank)
    return kernel, stride, each(args["padding"], rank), each(args["dilation"], rank), args["ceil_mode"]


def _form(rank: int) -> DifferentiableForm:
    forward = getattr(torch.ops.aten, f"max_pool{rank}d_with_indices").default

    def rule(
        builder: Builder, node: Node, results: Sequence[Node], need: Sequence[bool]
    ) -> dict[Node, Node] | None:
        args = arguments(node, MAXIMUM)
        if args is None or any(part.attr("path") not in ((), (0,), (1,)) for part in results):
            return None
        value = next((part for part in results if part.attr("path") in ((), (0,))), None)
        if value is None or not value.dtype.is_float:
            return None
        input, order = args["input"], order_of(builder, value)
        outputs = calls(
            builder,
            forward,
            (input, *_numbers(args, rank)),
            [((0,), value.dtype, value.shape), ((1,), INT64, value.shape)],
            name=f"max_pool{rank}d_kept",
            orders={input: order_in(builder, node, input)},
            given=[order, order],
        )
        return {part: outputs[part.attr("path") == (1,)] for part in results}

    return rule


def _backward(rank: int) -> CallVjp:
    backward = getattr(torch.ops.aten, f"max_pool{rank}d_with_indices_backward").default

    def rule(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient] | None:
        input, g = node.inputs[0], given[(0,)]
        parts = builder.results(node)
        places = parts[(1,)]
        order, own = order_of(builder, places), order_in(builder, node, input)
        return calls(
            builder,
            backward,
            (g, input, *node.attr("args")[1:], places),
            [((), input.dtype, input.shape)],
            orders={g: order, places: order, input: own},
            given=[own],
        )

    return rule


for _rank in (2, 3):
    differentiable_form(f"max_pool{_rank}d", f"max_pool{_rank}d_with_indices")(_form(_rank))
    vjp_call(f"max_pool{_rank}d_kept")(_backward(_rank))
