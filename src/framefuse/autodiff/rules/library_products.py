"""Gradients of matrix products that stay with the library: those of 16-bit floats and of complex numbers."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from framefuse.autodiff.library import arguments, call, calls, order_in
from framefuse.autodiff.registry import Given, Gradient, vjp_call
from framefuse.autodiff.rules.views import stretched, summed
from framefuse.ir.backward_calls import (
    adjoint_times,
    adjoint_times_by_columns,
    rows_adjoint_times,
    rows_adjoint_times_by_columns,
    rows_summed,
    times_adjoint,
    times_adjoint_by_columns,
    times_conjugate,
    times_conjugate_by_columns,
    times_transposed,
    transposed_times,
    transposed_times_conjugate,
)
from framefuse.ir.builder import ONE, Builder
from framefuse.ir.dtypes import BY_NAME
from framefuse.ir.graph import Node
from framefuse.ir.values import Value


def _rows(builder: Builder, node: Node) -> Node:
    """All but the last dimension as one."""
    return builder.reshape(node, (builder.count(node.shape[:-1]), node.shape[-1]))


def _of_complex_rows(node: Node) -> bool:
    """Whether all operands are complex, and there are rows."""
    args = arguments(node, "input weight bias=None")
    if args is None or any(operand.dtype is not node.dtype for operand in node.inputs):
        return False
    return len(set(node.inputs)) == 2 + (args["bias"] is not None) and len(args["input"].shape) > 1


@vjp_call("linear", of_complex=_of_complex_rows)
def linear(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient] | None:
    args, ((_, g),) = arguments(node, "input weight bias=None"), given.items()
    if args is None or len(args["weight"].shape) != 2 or len(set(node.inputs)) != 2 + (args["bias"] is not None):
        return None
    input, weight, bias = args["input"], args["weight"], args["bias"]
    if g.dtype.kind == "complex":
        return _of_complex(builder, node, input, weight, bias, g, need)
    rows = _rows(builder, g)
    by_operand: dict[Node, Node] = {}
    if need[node.inputs.index(input)]:
        by_operand[input] = call(builder, torch.matmul, (g, weight), like=input)
    if need[node.inputs.index(weight)]:
        by_operand[weight] = call(builder, transposed_times, (rows, _rows(builder, input)), like=weight)
    if isinstance(bias, Node) and need[node.inputs.index(bias)]:
        by_operand[bias] = summed(builder, rows, (0,))
    return [by_operand.get(operand) for operand in node.inputs]


def _of_complex(
    builder: Builder, node: Node, input: Node, weight: Node, bias: Value, g: Node, need: Sequence[bool]
) -> Sequence[Gradient]:
    made: dict[Value, tuple[Value, tuple[Node, ...]]] = {
        weight: (transposed_times_conjugate, (g, input)),
        bias: (rows_summed, (g,)),
    }
    gradients: list[Gradient] = []
    for operand, asked in zip(node.inputs, need, strict=True):
        if not asked:
            gradients.append(None)
        elif operand is input:
            ways = times_conjugate, times_conjugate_by_columns
            gradients.append(_lying(builder, node, input, (g, weight), ways))
        else:
            target, operands = made[operand]
            gradients.append(call(builder, target, operands, like=operand))
    return gradients


def _of_matrices(node: Node) -> bool:
    """Whether both operands are as many matrices of complex numbers, or the second is one: kernels, which would sum,
    know none.
    """
    two = len(node.inputs) == 2 and all(operand.dtype is node.dtype for operand in node.inputs)
    if not two or len(node.attr("args")) != 2 or node.attr("kwargs"):
        return False
    left, right = (operand.shape for operand in node.inputs)
    return len(left) > 1 and (len(right) == 2 or (len(right) > 2 and left[:-2] == right[:-2]))


@vjp_call("matmul", "__matmul__", "mm", "bmm", "mv", "dot", of_complex=_of_matrices)
def matmul(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient] | None:
    args, ((_, g),) = arguments(node, "a b"), given.items()
    if args is None or len(node.inputs) != 2:
        return None
    if any(len(operand.shape) < 2 for operand in node.inputs):
        return _of_vectors(builder, node, args["a"], args["b"], g, need)
    return _of_product(builder, args["a"], args["b"], g, [need[node.inputs.index(args[name])] for name in "ab"], node)


def _times(builder: Builder, a: Node, b: Node) -> Node:
    wide = BY_NAME[a.dtype.compute]
    return builder.cast(builder.pointwise("mul", builder.cast(a, wide), builder.cast(b, wide)), a.dtype)


def _of_vectors(
    builder: Builder, node: Node, a: Node, b: Node, g: Node, need: Sequence[bool]
) -> Sequence[Gradient] | None:
    """Of a product with a vector: the gradient of a matrix is a product for each of its elements."""
    if len(b.shape) > 2 or (len(a.shape) > 2 and len(b.shape) > 1) or not a.dtype is b.dtype is g.dtype:
        return None

    def outer(operand: Node, down: Node, along: Node) -> Node:
        column = builder.reshape(down, (*down.shape, ONE))
        return _times(builder, builder.expand(column, operand.shape), builder.expand(along, operand.shape))

    by_operand: dict[Node, Node] = {}
    for operand, other in ((a, b), (b, a)):
        if not need[node.inputs.index(operand)]:
            continue
        if len(operand.shape) > 1:
            by_operand[operand] = outer(operand, *((g, other) if operand is a else (other, g)))
        elif len(other.shape) == 1:
            by_operand[operand] = _times(builder, builder.expand(g, operand.shape), other)
        elif operand is a:
            by_operand[operand] = call(builder, torch.matmul, (b, g), like=operand)
        else:
            rows = _rows(builder, a), builder.reshape(g, (builder.count(g.shape),))
            by_operand[operand] = call(builder, transposed_times, rows, like=operand)
    return [by_operand.get(operand) for operand in node.inputs]


def _of_product(builder: Builder, a: Node, b: Node, g: Node, need: Sequence[bool], node: Node) -> Sequence[Gradient]:
    by_operand: dict[Node, Node] = {}
    shared = len(b.shape) == 2 and len(a.shape) > 2
    batch, is_complex = g.shape[:-2], g.dtype.kind == "complex"
    if is_complex:
        second = adjoint_times, adjoint_times_by_columns
        if shared:
            second = rows_adjoint_times, rows_adjoint_times_by_columns
        targets = (times_adjoint, times_adjoint_by_columns), second
        sides = zip((a, b), ((g, b), (a, g)), targets, need, strict=True)
        by_operand = {x: _lying(builder, node, x, both, ways) for x, both, ways, wanted in sides if wanted}
        return [by_operand.get(operand) for operand in node.inputs]
    if need[0]:
        by_operand[a] = _summed_to(builder, times_transposed, g, b, a, batch)
    if need[1]:
        if shared:
            by_operand[b] = call(builder, transposed_times, (_rows(builder, a), _rows(builder, g)), like=b)
        else:
            by_operand[b] = _summed_to(builder, transposed_times, a, g, b, batch)
    return [by_operand.get(operand) for operand in node.inputs]


def _lying(builder: Builder, node: Node, operand: Node, both: tuple[Node, Node], ways: tuple[Value, Value]) -> Node:
    """The gradient of one operand, which eager makes to lie as the operand does where that is a matrix."""
    order = order_in(builder, node, operand)
    by_columns = order == (1, 0)
    lies = [order] if by_columns else None
    return calls(builder, ways[by_columns], both, [((), operand.dtype, operand.shape)], given=lies)[0]


def _summed_to(builder: Builder, target: Value, left: Node, right: Node, operand: Node, batch: Value) -> Node:
    """The product, summed over the batch dimensions along which the operand was repeated."""
    whole = (*batch, *operand.shape[-2:])
    if whole == operand.shape:
        return call(builder, target, (left, right), like=operand)
    whole_product = call(builder, target, (left, right), like=builder.expand(operand, whole))
    return builder.reshape(summed(builder, whole_product, stretched(builder, operand.shape, whole)), operand.shape)


@vjp_call("addmm", "baddbmm")
def addmm(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient] | None:
    args, ((_, g),) = arguments(node, "input a b"), given.items()  # beta and alpha are 1
    if args is None or len(node.inputs) != 3:
        return None
    wanted = [need[node.inputs.index(args[name])] for name in ("a", "b", "input")]
    by_operand = dict(zip(node.inputs, _of_product(builder, args["a"], args["b"], g, wanted, node), strict=True))
    input = args["input"]
    if wanted[2]:
        axes = stretched(builder, input.shape, g.shape)
        by_operand[input] = builder.reshape(summed(builder, g, axes), input.shape)
    return [by_operand.get(operand) for operand in node.inputs]
