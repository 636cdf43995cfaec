"""Gradients of batch normalisation in training: the forward keeps each channel's mean and deviation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from framefuse.autodiff.library import arguments, calls, order_in, order_of
from framefuse.autodiff.registry import Given, Gradient, differentiable_form, vjp_call
from framefuse.autodiff.rules.views import summed
from framefuse.ir.builder import ONE, Builder
from framefuse.ir.dtypes import FLOAT32, DType
from framefuse.ir.graph import Arg, Node
from framefuse.ir.numbers import product

FUNCTION = "input running_mean running_var weight=None bias=None training=False momentum=0.1 eps=1e-05"
BUILTIN = "input weight bias running_mean running_var training momentum eps cudnn_enabled"


@differentiable_form("batch_norm")
def batch_norm(
    builder: Builder, node: Node, results: Sequence[Node], need: Sequence[bool]
) -> dict[Node, Node] | None:
    """native_batch_norm, which is what eager calls; on copies of the running statistics where these are written."""
    target = node.attr("target")
    written = hasattr(target, "places")
    builtin = (target.target if written else target) is torch.batch_norm
    args = arguments(node, BUILTIN if builtin else FUNCTION)
    if args is None or args["training"] is not True or not isinstance(args["momentum"], float):
        return None
    input, statistics = args["input"], (args["running_mean"], args["running_var"])
    inner = _inner(input, node.inputs)
    # Elsewhere statistics that are written stand at other places.
    if written != (statistics[0] is not None) or len(set(statistics)) != len(statistics) - (not written):
        return None
    named = (input, args["weight"], args["bias"], *statistics, True, args["momentum"], args["eps"])
    value = next((part for part in results if part.attr("path") == ((0,) if written else ())), None)
    if inner is None or value is None or len(input.shape) < 2:
        return None
    if not builtin:  # the function of torch.nn.functional looks before it calls
        batch, _, *rest = input.shape
        builder.require("!=", batch * product(rest), ONE, "more than one value in a channel")
    channels = (input.shape[1],)
    start = (0,) if written else ()
    order = order_of(builder, value)
    shown = [((*start, 0), value.dtype, value.shape), *(((*start, place), inner, channels) for place in (1, 2))]
    copies = [part for part in results if part is not value]
    shown += [(part.attr("path"), part.dtype, part.shape) for part in copies]
    outputs = calls(
        builder,
        replace(target, target=torch.native_batch_norm, places=(3, 4)) if written else torch.native_batch_norm,
        named,
        shown,
        name="batch_norm_kept",
        orders={input: order_in(builder, node, input)},
        given=[order, *[(0,)] * (len(shown) - 1)],
    )
    return {value: outputs[0], **dict(zip(copies, outputs[3:], strict=True))}


def _inner(input: Node, operands: Sequence[Node]) -> DType | None:
    """The dtype of weights and statistics, in which the library takes moments: that of the input, or float32 for one of
    16 bits. None for other mixtures.
    """
    others = {operand.dtype for operand in operands if operand is not input}
    if input.dtype.size == 2 and input.dtype.is_float:
        return FLOAT32 if others == {FLOAT32} else None
    return input.dtype if input.dtype.is_float and others <= {input.dtype} else None


@vjp_call("batch_norm_kept")
def batch_norm_kept(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient] | None:
    """Two sums over a channel, and arithmetic: all of it fuses with what is around.

    The mean and the inverse deviation are functions of the input too: gradients of this gradient come to them.
    """
    start = (0,) if hasattr(node.attr("target"), "places") else ()
    value, mean, deviation = ((*start, place) for place in range(3))
    if not set(given) <= {value, mean, deviation} or not node.attr("args")[5]:
        return None
    operands = [node.inputs[arg.index] if isinstance(arg, Arg) else None for arg in node.attr("args")[:3]]
    input, weight, bias = operands
    assert input is not None
    parts = builder.results(node)
    inner = parts[mean].dtype
    shape, scale = input.shape, parts[deviation]
    axes = [axis for axis in range(len(shape)) if axis != 1]

    def wide(channel: Node) -> Node:
        row = tuple(size if axis == 1 else ONE for axis, size in enumerate(shape))
        return builder.expand(builder.reshape(channel, row), shape)

    def multiply(a: Node, b: Node) -> Node:
        return builder.pointwise("mul", a, b)

    def shared(channel: Node) -> Node:
        count = builder.count(tuple(shape[axis] for axis in axes))
        return builder.pointwise("div", channel, builder.full(count, channel.dtype, channel.shape, channel.device))

    centred = builder.pointwise("sub", builder.cast(input, inner), wide(parts[mean]))
    by_operand: dict[Node, Node] = {}
    wanted = need[node.inputs.index(input)]
    terms: list[Node] = []
    if value in given:
        g = builder.cast(given[value], inner)
        total, weighted = summed(builder, g, axes), multiply(summed(builder, multiply(g, centred), axes), scale)
        if bias is not None:
            # eager's node gives all gradients, so that of the shift leads to the input too, by zeros
            by_operand[bias] = total
            if builder.differentiable:
                again = builder.derived(given[value], "replaced", (given[value], input))
                by_operand[bias] = summed(builder, builder.cast(again, inner), axes)
        if weight is not None:
            by_operand[weight] = weighted
        if wanted:
            away = builder.pointwise("sub", g, wide(shared(total)))
            away = builder.pointwise("sub", away, multiply(centred, wide(multiply(shared(weighted), scale))))
            factor = scale if weight is None else multiply(scale, builder.resized(weight, scale.shape))
            terms.append(multiply(away, wide(factor)))
    if mean in given and wanted:
        terms.append(wide(shared(given[mean])))
    if deviation in given and wanted:
        cube = multiply(multiply(scale, scale), scale)
        slope = builder.pointwise("neg", shared(multiply(given[deviation], cube)))
        terms.append(multiply(centred, wide(slope)))
    for term in terms:
        by_operand[input] = builder.pointwise("add", by_operand[input], term) if input in by_operand else term
    if input in by_operand:
        by_operand[input] = builder.cast(by_operand[input], input.dtype)
    return [by_operand.get(operand) for operand in node.inputs]
