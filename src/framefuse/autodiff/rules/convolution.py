"""Gradients of convolutions and of average pooling, by the library's own backward calls."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from framefuse.autodiff.library import arguments, calls, order_in, order_of
from framefuse.autodiff.registry import CallVjp, Given, Gradient, vjp_call
from framefuse.ir.builder import ONE, ZERO, Builder
from framefuse.ir.dtypes import BY_NAME
from framefuse.ir.graph import Node
from framefuse.ir.target import type_of
from framefuse.ir.values import Value

FORWARD = "input weight bias=None stride=1 padding=0 dilation=1 groups=1"
TRANSPOSED = "input weight bias=None stride=1 padding=0 output_padding=0 groups=1 dilation=1"
BACKWARD = torch.ops.aten.convolution_backward.default


# Devices on which a kernel sums up the gradient of a bias, with what computes what it sums up. On an H100 the library
# took 0.23 ms of a step of 2.8 for it, channels-last.
BIAS_APART = {"cpu": False}


def _channel_sums(builder: Builder, g: Node, bias: Node) -> Node:
    """The gradient of a bias: the sums over all but the channels, rounded once."""
    wide = builder.cast(g, BY_NAME[bias.dtype.compute])
    return builder.cast(builder.reduce("sum", wide, [0, *range(2, len(g.shape))]), bias.dtype)


def each(value: Value, rank: int) -> list[Value]:
    """One number for each of ``rank`` dimensions."""
    values = list(value) if isinstance(value, (tuple, list)) else [value]
    return values * rank if len(values) == 1 else values


def _padding(builder: Builder, given: dict[str, Value], rank: int) -> list[Value] | None:
    """Numbers of padding on both sides; None when the sides differ."""
    if given["padding"] == "valid":
        return [0] * rank
    if given["padding"] != "same":
        return each(given["padding"], rank)
    holes = each(given["dilation"], rank)
    totals = [(size - 1) * hole for size, hole in zip(given["weight"].shape[2:], holes, strict=True)]
    if any(builder.size(total) % 2 for total in totals):
        return None
    for total in totals:
        builder.require("==", total % 2, ZERO, "padding on both sides")
    return [total // 2 for total in totals]


def _convolution(rank: int, transposed: bool) -> CallVjp:
    def rule(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient] | None:
        ((_, g),) = given.items()
        args = arguments(node, TRANSPOSED if transposed else FORWARD)
        padding = _padding(builder, args, rank) if args is not None else None
        if args is None or padding is None or len(node.inputs) != 2 + isinstance(args["bias"], Node):
            return None
        input, weight, bias = args["input"], args["weight"], args["bias"]
        extra = each(args["output_padding"], rank) if transposed else [0] * rank
        wanted = {node.inputs[number] for number, here in enumerate(need) if here}
        mask = [operand in wanted for operand in (input, weight, bias)]
        orders = {operand: order_in(builder, node, operand) for operand in (input, weight)}
        lies = dict(orders)
        source = input
        if len(input.shape) == rank + 1:  # one sample
            source = builder.reshape(input, (ONE, *input.shape))
            g = builder.reshape(g, (ONE, *g.shape))
        else:
            result = next(iter(builder.results(node).values()))
            orders[g] = order_of(builder, result)
            if any(builder.size(size) != 1 for size in result.shape[2:]):
                lies[input] = orders[g]  # the library chooses one layout for both, by the operands
        totals = {}
        if isinstance(bias, Node) and mask[2] and BIAS_APART.get(type_of(bias.device), True):
            # Eager's node gives all gradients, so that of the bias requires grad with them; nothing flows back from it.
            leads = builder.derived(g, "unmoved", (g, source))
            leads = builder.derived(leads, "unmoved", (leads, weight))
            totals, mask[2] = {bias: _channel_sums(builder, leads, bias)}, False
        sizes = [bias.shape[0]] if isinstance(bias, Node) else None
        numbers = (each(args["stride"], rank), padding, each(args["dilation"], rank))
        like = [(part, operand) for part, operand in enumerate((source, weight, bias)) if mask[part]]
        gradients: Sequence[Node] = ()
        if like:
            gradients = calls(
                builder,
                BACKWARD,
                (g, source, weight, sizes, *numbers, transposed, extra, args["groups"], mask),
                [((part,), operand.dtype, operand.shape) for part, operand in like],
                name="convolution_backward",
                orders=orders,
                given=[lies.get(operand) or tuple(range(len(operand.shape))) for _, operand in like],
            )
        by_operand = {(input, weight, bias)[part]: result for (part, _), result in zip(like, gradients, strict=True)}
        by_operand |= totals
        if source is not input and mask[0]:
            by_operand[input] = builder.reshape(by_operand[input], input.shape)
        return [by_operand.get(operand) for operand in node.inputs]

    return rule


for _rank in (1, 2, 3):
    vjp_call(f"conv{_rank}d")(_convolution(_rank, False))
    vjp_call(f"conv_transpose{_rank}d")(_convolution(_rank, True))


# ---- pooling ---------------------------------------------------------------------------------------------------------

AVERAGE = "input kernel_size stride=None padding=0 ceil_mode=False count_include_pad=True divisor_override=None"


def _average(rank: int) -> CallVjp:
    backward = getattr(torch.ops.aten, f"avg_pool{rank}d_backward").default

    def rule(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient] | None:
        args, ((_, g),) = arguments(node, AVERAGE), given.items()
        if args is None:
            return None
        input, kernel = args["input"], each(args["kernel_size"], rank)
        stride = kernel if args["stride"] in (None, (), []) else each(args["stride"], rank)
        rest = (args["ceil_mode"], args["count_include_pad"], args["divisor_override"])
        return [_pooled(builder, backward, node, g, input, (kernel, stride, each(args["padding"], rank), *rest))]

    return rule


def _pooled(builder: Builder, target: Value, node: Node, g: Node, input: Node, numbers: tuple[Value, ...]) -> Node:
    """A backward call that takes the gradient and the operand, both in the memory order of the operand."""
    order = order_in(builder, node, input)
    results = [((), input.dtype, input.shape)]
    return calls(builder, target, (g, input, *numbers), results, orders={input: order, g: order}, given=[order])[0]


vjp_call("avg_pool2d")(_average(2))
vjp_call("avg_pool3d")(_average(3))


def _adaptive(rank: int) -> CallVjp:
    backward = getattr(torch.ops.aten, f"_adaptive_avg_pool{rank}d_backward").default

    def rule(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient] | None:
        ((_, g),) = given.items()
        return [_pooled(builder, backward, node, g, node.inputs[0], ())]

    return rule


vjp_call("adaptive_avg_pool2d")(_adaptive(2))
vjp_call("adaptive_avg_pool3d")(_adaptive(3))


# ---- interpolation ---------------------------------------------------------------------------------------------------

RESIZED = (
    "input size=None scale_factor=None mode='nearest' align_corners=None recompute_scale_factor=None antialias=False"
)
UPSAMPLED = {
    ("nearest", 1): "upsample_nearest1d", ("nearest", 2): "upsample_nearest2d", ("nearest", 3): "upsample_nearest3d",
    ("linear", 1): "upsample_linear1d", ("bilinear", 2): "upsample_bilinear2d", ("bicubic", 2): "upsample_bicubic2d",
    ("trilinear", 3): "upsample_trilinear3d",
}  # fmt: skip


@vjp_call("interpolate", "upsample")
def interpolate(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient] | None:
    """Reads sizes only: the operand need not be kept."""
    args, ((_, g),) = arguments(node, RESIZED), given.items()
    if args is None or args["antialias"] or args["recompute_scale_factor"]:
        return None
    input = args["input"]
    rank = len(input.shape) - 2
    name = UPSAMPLED.get((args["mode"], rank))
    if name is None:
        return None
    scales = [None] * rank if args["scale_factor"] is None else each(args["scale_factor"], rank)
    corners = () if args["mode"] == "nearest" else (bool(args["align_corners"]),)
    order = order_in(builder, node, input)
    numbers = (list(g.shape[2:]), list(input.shape), *corners, *scales)
    target = getattr(torch.ops.aten, f"{name}_backward").default
    results = [((), input.dtype, input.shape)]
    return [calls(builder, target, (g, *numbers), results, orders={g: order}, given=[order])[0]]


# ---- copies ----------------------------------------------------------------------------------------------------------


@vjp_call("clone", "contiguous")
def clone(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient]:
    return [next(iter(given.values()))]
