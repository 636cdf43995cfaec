"""Gradients of batch normalisation in training: the forward keeps each channel's mean and deviation."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from framefuse.autodiff.library import arguments, calls, order_in, order_of
from framefuse.autodiff.registry import Given, Gradient, differentiable_form, vjp_call
from framefuse.autodiff.rules.views import summed
from framefuse.ir.builder import ONE, ZERO, Builder
from framefuse.ir.dtypes import FLOAT32, DType
from framefuse.ir.graph import Arg, Node
from framefuse.ir.numbers import Expr, product

FUNCTION = "input running_mean running_var weight=None bias=None training=False momentum=0.1 eps=1e-05"
KEPT_NORM = "batch_norm_kept"  # the call that gives what its gradients need too
BUILTIN = "input weight bias running_mean running_var training momentum eps cudnn_enabled"


@differentiable_form("batch_norm")
def batch_norm(
    builder: Builder, node: Node, results: Sequence[Node], need: Sequence[bool]
) -> dict[Node, Node] | None:
    """native_batch_norm, which is what eager calls, without the running statistics."""
    target = node.attr("target")
    written = hasattr(target, "places")
    builtin = (target.target if written else target) is torch.batch_norm
    args = arguments(node, BUILTIN if builtin else FUNCTION)
    if args is None or args["training"] is not True or not isinstance(args["momentum"], float):
        return None
    input, weight, bias = args["input"], args["weight"], args["bias"]
    running = [args[name] for name in ("running_mean", "running_var") if args[name] is not None]
    inner = _inner(input, [operand for operand in (weight, bias) if operand is not None])
    # Elsewhere statistics that are written stand at other places.
    if inner is None or len(set(running)) != (2 if written else 0) or any(old.dtype is not inner for old in running):
        return None
    value = next((part for part in results if part.attr("path") == ((0,) if written else ())), None)
    if value is None or len(input.shape) < 2:
        return None
    batch, channels, *rest = input.shape
    for operand in (weight, bias, *running):  # the library that takes moments does not see them all
        if operand is not None:
            builder.require("==", operand.shape[0], channels, "a number for each channel")
    builder.require("!=", product(input.shape), ZERO, "elements to normalise")
    if written or not builtin:  # the function of torch.nn.functional looks before it calls
        builder.require("!=", batch * product(rest), ONE, "more than one value in a channel")
    if inner is not input.dtype and weight is None and bias is None:
        weight = builder.full(1.0, inner, (channels,), input.device)  # by which the library knows the dtype of moments
    order = order_of(builder, value)
    outputs = calls(
        builder,
        torch.native_batch_norm,
        (input, weight, bias, None, None, True, args["momentum"], args["eps"]),
        [((0,), value.dtype, value.shape), *(((place,), inner, (channels,)) for place in (1, 2))],
        name=KEPT_NORM,
        orders={input: order_in(builder, node, input)},
        given=[order, (0,), (0,)],
    )
    count = batch * product(rest)
    blended = _running(builder, running, outputs[1:], count, args["momentum"], args["eps"])
    return {value: outputs[0], **{part: blended[part.attr("path")[0] - 1] for part in results if part is not value}}


def _running(
    builder: Builder, running: Sequence[Node], moments: Sequence[Node], count: Expr, momentum: float, eps: float
) -> list[Node]:
    """The running statistics after the call, which no gradient flows to: the library reads them for nothing else, and
    kernels write them in place.
    """
    if not running:
        return []
    mean, deviation = (builder.detach(moment) for moment in moments)

    def number(value: float | Expr) -> Node:
        return builder.full(value, mean.dtype, mean.shape, mean.device)

    one = builder.pointwise("div", number(1.0), builder.pointwise("mul", deviation, deviation))
    variance = builder.pointwise("sub", one, number(eps))
    share = number(momentum)
    unbiased = builder.pointwise("mul", share, builder.pointwise("div", number(count), number(count - 1)))
    blended = []
    for old, new, factor in zip(running, (mean, variance), (share, unbiased), strict=True):
        kept = builder.pointwise("mul", builder.resized(old, mean.shape), number(1.0 - momentum))
        sum_ = builder.pointwise("add", kept, builder.pointwise("mul", new, factor))
        blended.append(builder.resized(sum_, old.shape))
    return blended


def _inner(input: Node, scaling: Sequence[Node]) -> DType | None:
    """The dtype in which the library takes moments: that of the input, or float32 for one of 16 bits. None where
    weight and bias (``scaling``) are of another.
    """
    others = {operand.dtype for operand in scaling}
    if input.dtype.size == 2 and input.dtype.is_float:
        return FLOAT32 if others <= {FLOAT32} else None
    return input.dtype if input.dtype.is_float and others <= {input.dtype} else None


@vjp_call(KEPT_NORM)
def batch_norm_kept(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient] | None:
    """Two sums over a channel, and arithmetic: all of it fuses with what is around.

    The mean and the inverse deviation are functions of the input too: gradients of this gradient come to them.
    """
    value, mean, deviation = (0,), (1,), (2,)
    if not set(given) <= {value, mean, deviation}:
        return None
    operands = [node.inputs[arg.index] if isinstance(arg, Arg) else None for arg in node.attr("args")[:3]]
    input, weight, bias = operands
    assert input is not None
    parts, inner, shape = builder.results(node), _inner(input, ()), input.shape
    assert inner is not None
    axes = [axis for axis in range(len(shape)) if axis != 1]

    def wide(channel: Node) -> Node:
        row = tuple(size if axis == 1 else ONE for axis, size in enumerate(shape))
        return builder.expand(builder.reshape(channel, row), shape)

    def multiply(a: Node, b: Node) -> Node:
        return builder.pointwise("mul", a, b)

    def shared(channel: Node) -> Node:
        count = builder.count(tuple(shape[axis] for axis in axes))
        return builder.pointwise("div", channel, builder.full(count, channel.dtype, channel.shape, channel.device))

    def led(gradient: Node) -> Node:
        """Eager's node gives all gradients, so that each leads to the weight where one of them does."""
        if weight is None or not builder.differentiable:
            return gradient
        return builder.derived(gradient, "unmoved", (gradient, weight))

    by_operand: dict[Node, Node] = {}
    if bias is not None and value in given:
        g = given[value]
        if builder.differentiable:  # and to the input, by zeros
            g = builder.derived(g, "replaced", (g, input))
        by_operand[bias] = led(summed(builder, builder.cast(g, inner), axes))
    if not {mean, deviation} <= parts.keys():  # where all else is frozen nobody keeps these
        return [by_operand.get(operand) for operand in node.inputs]
    scale = parts[deviation]
    centred = builder.pointwise("sub", builder.cast(input, inner), wide(parts[mean]))
    wanted = need[node.inputs.index(input)]
    terms: list[Node] = []
    if value in given:
        g = builder.cast(given[value], inner)
        total = summed(builder, g, axes) if bias is None or builder.differentiable else by_operand[bias]
        weighted = multiply(summed(builder, multiply(g, centred), axes), scale)
        if weight is not None:  # beside what it gets as the shift, where one tensor is both
            slope = led(weighted)
            by_operand[weight] = builder.pointwise("add", slope, by_operand[bias]) if weight is bias else slope
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
