"""Lets a formula written with Python's operators build pointwise nodes: one Element is a node and its builder."""

from __future__ import annotations

from collections.abc import Callable

from framefuse.ir.builder import Builder
from framefuse.ir.dtypes import DType
from framefuse.ir.graph import Node, Scalar
from framefuse.ir.values import Value


class Element:
    """A node inside a formula. Python numbers beside it take its dtype; all operands have its shape."""

    __slots__ = ("builder", "node")

    def __init__(self, builder: Builder, node: Node) -> None:
        self.builder = builder
        self.node = node

    def apply(self, op: str, *others: Element | Scalar) -> Element:
        """The primitive ``op`` on this and ``others``."""
        inputs = [self.node]
        for other in others:
            inputs.append(other.node if isinstance(other, Element) else self._full(other))
        return Element(self.builder, self.builder.pointwise(op, *inputs))

    def derived(self, name: str, *operands: Element, numbers: tuple[Scalar, ...] = ()) -> Element:
        """This element; its gradient goes to ``operands`` by the rule ``name``, where gradients are asked for."""
        nodes = [operand.node for operand in operands]
        return Element(self.builder, self.builder.derived(self.node, name, nodes, *numbers))

    def number(self, value: Scalar) -> Element:
        """A constant of this element's dtype and shape."""
        return Element(self.builder, self._full(value))

    def cast(self, dtype: DType) -> Element:
        """This element in another dtype."""
        return Element(self.builder, self.builder.cast(self.node, dtype))

    def _full(self, value: Scalar | Node) -> Node:
        if isinstance(value, Node):  # a tensor of one element in the place of a number
            return self.builder.expand(self.builder.cast(value, self.node.dtype), self.node.shape)
        return self.builder.full(value, self.node.dtype, self.node.shape, self.node.device)

    def __add__(self, other: Element | Scalar) -> Element:
        return self.apply("add", other)

    def __radd__(self, other: Scalar) -> Element:
        return self.number(other).apply("add", self)

    def __sub__(self, other: Element | Scalar) -> Element:
        return self.apply("sub", other)

    def __rsub__(self, other: Scalar) -> Element:
        return self.number(other).apply("sub", self)

    def __mul__(self, other: Element | Scalar) -> Element:
        return self.apply("mul", other)

    def __rmul__(self, other: Scalar) -> Element:
        return self.number(other).apply("mul", self)

    def __truediv__(self, other: Element | Scalar) -> Element:
        return self.apply("div", other)

    def __rtruediv__(self, other: Scalar) -> Element:
        return self.number(other).apply("div", self)

    def __neg__(self) -> Element:
        return self.apply("neg")

    def __abs__(self) -> Element:
        return self.apply("abs")

    def __lt__(self, other: Element | Scalar) -> Element:
        return self.apply("lt", other)

    def __le__(self, other: Element | Scalar) -> Element:
        return self.apply("le", other)

    def __gt__(self, other: Element | Scalar) -> Element:
        return self.apply("gt", other)

    def __ge__(self, other: Element | Scalar) -> Element:
        return self.apply("ge", other)

    def __and__(self, other: Element) -> Element:
        return self.apply("bit_and", other)

    def __or__(self, other: Element) -> Element:
        return self.apply("bit_or", other)

    def __xor__(self, other: Element) -> Element:
        return self.apply("bit_xor", other)

    def __invert__(self) -> Element:
        return self.apply("bit_not")


def unary(op: str) -> Callable[[Element], Element]:
    """The primitive as a function of one element."""
    return lambda a: a.apply(op)


def binary(op: str) -> Callable[[Value, Value], Element]:
    """The primitive as a function of two elements, one of which may be a number."""

    def apply(a: Value, b: Value) -> Element:
        return a.apply(op, b) if isinstance(a, Element) else b.number(a).apply(op, b)

    return apply


exp, expm1, log, log1p, log2 = (unary(name) for name in ("exp", "expm1", "log", "log1p", "log2"))
sqrt, rsqrt, reciprocal, tanh, erf = (unary(name) for name in ("sqrt", "rsqrt", "reciprocal", "tanh", "erf"))
sin, cos, sigmoid, trunc, isnan = (unary(name) for name in ("sin", "cos", "sigmoid", "trunc", "isnan"))
maximum, minimum, eq, ne = (binary(name) for name in ("maximum", "minimum", "eq", "ne"))


def where(condition: Element, a: Value, b: Value) -> Element:
    """``a`` where the condition holds, else ``b``; one of them may be a number."""
    model = a if isinstance(a, Element) else b
    first, second = (value if isinstance(value, Element) else model.number(value) for value in (a, b))
    return condition.apply("where", first, second)


def fma(a: Element, b: Value, c: Element) -> Element:
    """``a * b + c`` rounded once."""
    return a.apply("fma", b, c)


def held_as(value: Element, dtype: DType) -> Element:
    """The value as eager's tensor of ``dtype`` holds it between two steps of one operation."""
    return value if dtype is value.node.dtype else value.cast(dtype).cast(value.node.dtype)
