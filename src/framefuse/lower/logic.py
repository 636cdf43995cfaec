"""Lowers torch's comparisons, logic, bits and choices by a condition to pointwise primitives."""

from __future__ import annotations

import math
from collections.abc import Callable

from framefuse.ir.dtypes import BOOL
from framefuse.ir.graph import Node
from framefuse.ir.values import Value
from framefuse.lower import element as e
from framefuse.lower.binary import operands
from framefuse.lower.context import Lowering
from framefuse.lower.counted_shapes import positions
from framefuse.lower.element import Element, where
from framefuse.lower.promotion import is_number, result_dtype
from framefuse.lower.rules import Shapes, Unsupported, register, rule


def _comparison(op: str) -> Callable[..., Node]:
    def lowered(lo: Lowering, input: Value, other: Value, *, out: Value = None) -> Node:
        a, b = operands(lo, input, other)
        return lo.compute(lambda x, y: x.apply(op, y), a, b, narrow=True)

    return lowered


COMPARISONS = {
    "eq": (),
    "ne": ("not_equal",),
    "lt": ("less",),
    "le": ("less_equal",),
    "gt": ("greater",),
    "ge": ("greater_equal",),
}
for _name, _more in COMPARISONS.items():
    register((_name, f"__{_name}__", *_more), "pointwise", _comparison(_name))


def truth(lo: Lowering, node: Node) -> Node:
    """The node as bool: unequal zero."""
    if node.dtype is BOOL:
        return node
    return lo.pointwise("ne", node, lo.full(0, node.dtype, node.shape, node.device))


@rule("elements.decided")
def decided(lo: Lowering, tensor: Node, outcome: bool, branch: str = "") -> Node:
    """What a branch went by, in a kernel that fails where it is otherwise. On a GPU that would end the process's use of
    the device, so that the host asks.
    """
    if tensor.device != "cpu" or tensor.dtype.kind == "complex":
        raise Unsupported("a kernel that may not fail")
    holds = truth(lo, tensor)
    return lo.compute(lambda x: x.apply("checked", x if outcome else ~x), holds)


def _logical(formula: Callable[..., Element]) -> Callable[..., Node]:
    def lowered(lo: Lowering, input: Node, other: Node, *, out: Value = None) -> Node:
        return lo.compute(formula, truth(lo, input), truth(lo, other))

    return lowered


register(("logical_and",), "pointwise", _logical(lambda a, b: a & b))
register(("logical_or",), "pointwise", _logical(lambda a, b: a | b))
register(("logical_xor",), "pointwise", _logical(lambda a, b: a ^ b))


@rule("logical_not")
def logical_not(lo: Lowering, input: Node, *, out: Value = None) -> Node:
    return lo.pointwise("bit_not", truth(lo, input))


def _bits(op: str, swap: bool = False) -> Callable[..., Node]:
    def lowered(lo: Lowering, input: Value, other: Value, *, out: Value = None) -> Node:
        a, b = operands(lo, other, input) if swap else operands(lo, input, other)
        if result_dtype((a, b), lo.default).is_float:
            raise Unsupported("floats")
        return lo.compute(e.binary(op), a, b)

    return lowered


for _name in ("and", "or", "xor"):
    register((f"bitwise_{_name}", f"__{_name}__", f"__i{_name}__"), "pointwise", _bits(f"bit_{_name}"))
    register((f"__r{_name}__",), "pointwise", _bits(f"bit_{_name}", swap=True))
register(("bitwise_left_shift", "__lshift__", "__ilshift__"), "pointwise", _bits("shift_left"))
register(("bitwise_right_shift", "__rshift__", "__irshift__"), "pointwise", _bits("shift_right"))


@rule("bitwise_not", "__invert__")
def bitwise_not(lo: Lowering, input: Node, *, out: Value = None) -> Node:
    if input.dtype.is_float:
        raise Unsupported("floats")
    return lo.pointwise("bit_not", input)


@rule("where")
def where_(
    lo: Lowering, condition: Node, input: Value = None, other: Value = None, *, out: Value = None
) -> Node | Shapes:
    if input is None and other is None:
        return positions(condition)
    if condition.dtype is not BOOL or not (isinstance(input, Node) or isinstance(other, Node) or is_number(input)):
        raise Unsupported("condition is no bool")
    dtype = result_dtype((input, other), lo.default)
    return select_where(lo, condition, input, other, dtype)


def select_where(lo: Lowering, condition: Node, a: Value, b: Value, dtype: Value) -> Node:
    """``a`` where the condition holds, else ``b``, both converted to ``dtype``: no arithmetic, so no rounding."""
    shapes = [condition.shape] + [value.shape for value in (a, b) if isinstance(value, Node)]
    shape = lo.broadcast(*shapes)
    parts = [
        lo.expand(lo.cast(value, dtype), shape)
        if isinstance(value, Node)
        else lo.full(value, dtype, shape, condition.device)
        for value in (a, b)
    ]
    return lo.pointwise("where", lo.expand(condition, shape), *parts)


@rule("masked_fill")
def masked_fill(lo: Lowering, input: Node, mask: Node, value: Value) -> Node:
    if isinstance(value, Node) and value.shape:
        raise Unsupported("value has dimensions")
    if mask.dtype is not BOOL:
        raise Unsupported("mask is no bool")
    return select_where(lo, mask, value, input, input.dtype)


@rule("heaviside")
def heaviside(lo: Lowering, input: Node, values: Node, *, out: Value = None) -> Node:
    def formula(a: Element, v: Element) -> Element:
        return where(e.eq(a, 0), v, where(a > 0, a.number(1), 0))

    if lo.differentiable:  # a backward pass through it is torch's error
        raise Unsupported("torch has no derivative of it")
    if input.dtype is BOOL:
        return lo.compute(lambda a, v: a | v, input, values)
    return lo.compute(formula, input, values)


@rule("isclose")
def isclose(
    lo: Lowering, input: Node, other: Node, rtol: Value = 1e-05, atol: Value = 1e-08, equal_nan: bool = False
) -> Node:
    if input.dtype is not other.dtype or not input.dtype.is_float or input.dtype.compute != input.dtype.name:
        raise Unsupported("integers or 16-bit floats")

    def formula(a: Element, b: Element) -> Element:
        close: Element = e.eq(a, b) | ((abs(a - b) <= atol + abs(b * rtol)) & (abs(a - b) < math.inf))
        return close | (e.isnan(a) & e.isnan(b)) if equal_nan else close

    return lo.compute(formula, input, other)
