"""Gradients of fused attention: the forward keeps the logarithms of the rows' sums, as eager does."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from framefuse.autodiff.accumulate import add
from framefuse.autodiff.library import Order, arguments, calls, order_in, order_of
from framefuse.autodiff.registry import Given, Gradient, differentiable_form, vjp_call
from framefuse.ir.builder import ONE, ZERO, Builder
from framefuse.ir.dtypes import BOOL, BY_NAME
from framefuse.ir.graph import Node
from framefuse.ir.values import Value
from framefuse.ir.wrapped_calls import WithKernels, kernel_allowed

ATTENTION = (
    "query key value attn_mask=None dropout_p=0.0 is_causal=False scale=None enable_gqa=False"
)
INFINITY = float("inf")
FORWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
BACKWARD = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default
# How the kernels lay out what they give: the heads of the kept logarithms innermost, those of gradients within a row.
ROWS, HEADS_INSIDE = (0, 2, 1), (0, 2, 1, 3)


@differentiable_form("scaled_dot_product_attention")
def attention(
    builder: Builder, node: Node, results: Sequence[Node], need: Sequence[bool]
) -> dict[Node, Node] | None:
    """The kernel that eager chooses on the CPU, where it chooses it."""
    args = arguments(node, ATTENTION)
    if not _may_be_flash(node.attr("target")):
        return None  # the program forbids the kernel: what eager takes instead has second gradients
    if args is None or args["enable_gqa"] or args["dropout_p"] != 0.0 or len(results) != 1:
        return None
    query, key, value, mask = (args[name] for name in ("query", "key", "value", "attn_mask"))
    shapes = [part.shape for part in (query, key, value)]
    if any(len(shape) != 4 for shape in shapes) or query.device != "cpu" or not query.dtype.is_float:
        return None
    if not all(_in_rows(builder, node, part) for part in (query, key, value)):
        return None  # eager takes another way then: the kernel reads rows that lie together
    same = [(query.shape[0], key.shape[0]), (query.shape[1], key.shape[1]), (query.shape[3], value.shape[3])]
    if not all(builder.known_equal(a, b) or builder.size(a) == builder.size(b) for a, b in same):
        return None
    for a, b in same:
        builder.require("==", a, b, "heads of attention")
    for size in (query.shape[2], key.shape[2]):
        builder.require("!=", size, ZERO, "rows of attention")
    if isinstance(mask, Node):
        if need[node.inputs.index(mask)]:  # the kernel has no gradient for it
            return None
        if len(mask.shape) not in (2, 4) or (mask.dtype is not BOOL and mask.dtype is not query.dtype):
            return None
        if mask.dtype is BOOL:
            low = builder.full(-INFINITY, query.dtype, mask.shape, mask.device)
            mask = builder.pointwise("where", mask, builder.full(0.0, query.dtype, mask.shape, mask.device), low)
    inner = BY_NAME[query.dtype.compute]
    kept = query.shape[:3]
    old = results[0]
    named = {"attn_mask": mask, "scale": args["scale"]}
    outputs = calls(
        builder,
        FORWARD,
        (query, key, value, 0.0, args["is_causal"]),
        [((0,), old.dtype, old.shape), ((1,), inner, kept)],
        named,
        name="flash_attention",
        orders={operand: order_in(builder, node, operand) for operand in (query, key, value)},
        given=[order_of(builder, old), ROWS],
    )
    return {old: outputs[0]}


def _may_be_flash(target: Value) -> bool:
    """Whether eager may take the kernel for this call; the trace holds what is allowed around the function."""
    while target is not None and not isinstance(target, WithKernels):
        target = getattr(target, "target", None)
    allowed = {} if target is None else dict(target.allowed)
    return allowed.get("flash", kernel_allowed("flash"))


def _in_rows(builder: Builder, call: Node, operand: Node) -> bool:
    """Whether the last dimension of a call's operand is innermost in memory, now and at later calls."""
    if order_in(builder, call, operand)[-1] != 3:
        return False
    if call.attr("orders")[call.inputs.index(operand)] is not None or operand.strides is None:
        return True
    step = operand.strides[-1]  # what is expanded, or every other element, has no order
    if builder.size(step) != 1:
        return False
    builder.require("==", step, ONE, "rows of attention")
    return True


@vjp_call("flash_attention")
def flash_attention(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient] | None:
    g = given.get((0,))  # the logarithms, which the kernel of the gradients reads, have no history in eager
    if g is None:
        return [None] * len(node.inputs)
    query, key, value = (node.inputs[node.attr("args")[place].index] for place in range(3))
    named: dict[str, Value] = dict(node.attr("kwargs"))
    mask = named["attn_mask"]
    if mask is not None:
        mask = node.inputs[mask.index]
    parts = builder.results(node)
    out, logarithms = parts[(0,)], parts[(1,)]
    orders: dict[Node, Order] = {operand: order_in(builder, node, operand) for operand in (query, key, value)}
    orders |= {g: order_of(builder, out), out: order_of(builder, out), logarithms: ROWS}
    operands = (query, key, value)
    gradients = calls(
        builder,
        BACKWARD,
        (g, query, key, value, out, logarithms, *node.attr("args")[3:]),
        [((place,), operand.dtype, operand.shape) for place, operand in enumerate(operands)],
        {"attn_mask": mask, "scale": named["scale"]},
        name="flash_attention_backward",
        orders=orders,
        given=[HEADS_INSIDE] * 3,
    )
    sums: dict[Node, Node] = {}
    for operand, part in zip(operands, gradients, strict=True):  # one node may be several of the three
        sums[operand] = add(builder, sums[operand], part) if operand in sums else part
    return [sums.get(operand) for operand in node.inputs]
