"""Lowers operators that no function of torch stands for: what autograd and function transforms call themselves."""

from __future__ import annotations

import math

from framefuse.ir.graph import Node
from framefuse.ir.values import Value
from framefuse.lower import activations
from framefuse.lower import element as e
from framefuse.lower.casts import to
from framefuse.lower.context import Lowering
from framefuse.lower.element import Element, where
from framefuse.lower.promotion import row
from framefuse.lower.rules import Shapes, Unsupported, rule


@rule("aten._to_copy")
def to_copy(lo: Lowering, input: Node | float, *, dtype: Value = None, **kwargs: Value) -> Node | Shapes:
    if isinstance(input, Node):
        return to(lo, input, dtype=dtype, device=kwargs.get("device"))
    return lo.full(input, row(dtype), (), "cpu")  # of a number, in whose place C++ has a tensor


@rule("aten._log_softmax")
def log_softmax(lo: Lowering, input: Node, dim: int, half_to_float: bool) -> Node:
    return activations.log_softmax(lo, _operand(input, half_to_float), dim)


@rule("aten._softmax")
def softmax(lo: Lowering, input: Node, dim: int, half_to_float: bool) -> Node:
    return activations.softmax(lo, _operand(input, half_to_float), dim)


@rule("aten._safe_softmax")
def safe_softmax(lo: Lowering, input: Node, dim: int, dtype: Value = None) -> Node:
    """softmax that is zero in rows of nothing but minus infinity."""
    if dtype is not None or not input.shape or not input.dtype.is_float:
        raise Unsupported("a number, or another dtype")
    high = lo.reduce("amax", input, (lo.axis(dim, len(input.shape)),), True)
    known = lo.compute(lambda a, m: where(e.eq(m, -math.inf), 0.0, a), input, high)
    return lo.compute(lambda a, m: where(e.eq(m, -math.inf), 0.0, a), activations.softmax(lo, known, dim), high)


def _operand(input: Node, half_to_float: bool) -> Node:
    if half_to_float:
        raise Unsupported("a result in another dtype")
    return input


@rule("aten._log_softmax_backward_data")
def log_softmax_backward(lo: Lowering, grad: Node, output: Node, dim: int, input_dtype: Value) -> Node:
    grad, output = _alike(grad, output, input_dtype)
    total = _sum(lo, grad, dim)
    return lo.compute(lambda g, y, s: g - e.exp(y) * s, grad, output, total)


@rule("aten._softmax_backward_data")
def softmax_backward(lo: Lowering, grad: Node, output: Node, dim: int, input_dtype: Value) -> Node:
    grad, output = _alike(grad, output, input_dtype)
    product = lo.compute(lambda g, y: g * y, grad, output)
    return lo.compute(lambda p, y, s: p - y * s, product, output, _sum(lo, product, dim))


def _alike(grad: Node, output: Node, dtype: Value) -> tuple[Node, Node]:
    if not grad.dtype is output.dtype is row(dtype) or grad.dtype.compute != grad.dtype.name:
        raise Unsupported("dtypes")
    return grad, output


def _sum(lo: Lowering, node: Node, dim: int) -> Node:
    return lo.reduce("sum", node, (lo.axis(dim, len(node.shape)),), True) if node.shape else node


@rule("aten.threshold_backward")
def threshold_backward(lo: Lowering, grad: Node, input: Node, threshold: Value) -> Node:
    return lo.compute(lambda g, a: where(a <= threshold, 0.0, g), grad, input)


@rule("aten.tanh_backward")
def tanh_backward(lo: Lowering, grad: Node, output: Node) -> Node:
    return lo.compute(lambda g, y: g * (1.0 - y * y), grad, output)


@rule("aten.sigmoid_backward")
def sigmoid_backward(lo: Lowering, grad: Node, output: Node) -> Node:
    return lo.compute(lambda g, y: g * (1.0 - y) * y, grad, output)


@rule("aten.silu_backward")
def silu_backward(lo: Lowering, grad: Node, input: Node) -> Node:
    def formula(g: Element, a: Element) -> Element:
        share = 1.0 / (1.0 + e.exp(-a))
        return g * share * (1.0 + a * (1.0 - share))

    return lo.compute(formula, grad, input)


@rule("aten.gelu_backward")
def gelu_backward(lo: Lowering, grad: Node, input: Node, *, approximate: str = "none") -> Node:
    if approximate != "none":
        raise Unsupported("tanh")

    def formula(g: Element, a: Element) -> Element:
        share = 0.5 * (1.0 + e.erf(a * math.sqrt(0.5)))
        return g * (share + a * e.exp(a * a * -0.5) * (1.0 / math.sqrt(2.0 * math.pi)))

    return lo.compute(formula, grad, input)


@rule("aten.leaky_relu_backward")
def leaky_relu_backward(lo: Lowering, grad: Node, input: Node, slope: Value, is_result: bool) -> Node:
    return lo.compute(lambda g, a: where(a > 0.0, g, g * slope), grad, input)
