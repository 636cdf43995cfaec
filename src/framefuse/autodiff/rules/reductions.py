"""Gradients of reductions."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from framefuse.autodiff.formulas import Operand, run
from framefuse.autodiff.library import call, calls
from framefuse.autodiff.registry import Gradient, vjp, vjp_derived
from framefuse.ir.backward_calls import products_backward
from framefuse.ir.builder import ONE, Builder
from framefuse.ir.graph import Node
from framefuse.ir.numbers import expr
from framefuse.ir.taped_calls import Hole, Others, Vjp


def spread(builder: Builder, node: Node, reduce: Node) -> Node:
    """A node of a reduction's shape, repeated over what was reduced."""
    source, axes = reduce.inputs[0], reduce.attr("axes")
    kept = tuple(ONE if axis in axes else size for axis, size in enumerate(source.shape))
    return builder.expand(builder.reshape(node, kept), source.shape)


@vjp("sum")
def sum_(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    return [spread(builder, g, node)]


@vjp("amax", "amin")
def extreme(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """Equal extremes share the gradient; where none equals the result, which is NaN, 0 / 0 says so."""
    source = node.inputs[0]
    hit = builder.cast(builder.pointwise("eq", source, spread(builder, node, node)), source.dtype)
    count = spread(builder, builder.reduce("sum", hit, node.attr("axes")), node)
    return [run(builder, "div(mul(g, a), b)", {"g": spread(builder, g, node), "a": hit, "b": count})]


@vjp("cumsum")
def cumsum(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """The sum of the gradients from each element on."""
    axis = node.attr("axis")
    return [_turned(builder, builder.scan("cumsum", _turned(builder, g, axis), axis), axis)]


@vjp("logcumsumexp")
def logcumsumexp(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """The sum of the gradients from each element on, by the exponential of how much less than each result it is:
    positive and negative ones apart, by logarithms, as eager has it.
    """
    axis, zero = node.attr("axis"), builder.full(0.0, g.dtype, g.shape, g.device)
    size = builder.pointwise("log", builder.pointwise("abs", g))
    nothing = builder.full(-math.inf, g.dtype, g.shape, g.device)

    def share(sign: str) -> Node:
        part = builder.pointwise("where", builder.pointwise(sign, g, zero), size, nothing)
        part = _turned(builder, builder.pointwise("sub", part, node), axis)
        from_each = _turned(builder, builder.scan("logcumsumexp", part, axis), axis)
        return builder.pointwise("exp", builder.pointwise("add", from_each, node.inputs[0]))

    return [builder.pointwise("sub", share("gt"), share("lt"))]


@vjp_derived("cumprod")
def cumprod(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    (axis,) = node.attr("parameters")
    return [None, call(builder, products_backward, (g, node.inputs[1], axis, node), like=g)]


def _turned(builder: Builder, node: Node, axis: int) -> Node:
    """From the end to the start of an axis."""
    starts = [size - 1 if place == axis else expr(0) for place, size in enumerate(node.shape)]
    return builder.slice(node, starts, [-1 if place == axis else 1 for place in range(len(starts))], node.shape)


# The product of the other elements of a row, by the product ``b`` of what is neither zero nor infinite nor NaN and the
# counts of those: an element's own zero, infinity or NaN is none of the others'.
OTHER_ZEROS, OTHER_INFINITIES, OTHER_NANS = "sub(q, x)", "sub(u, y)", "sub(v, z)"
OTHERS = (
    f"where(bit_or(gt({OTHER_NANS}, 0.0), bit_and(gt({OTHER_ZEROS}, 0.0), gt({OTHER_INFINITIES}, 0.0))), nan, "
    f"where(gt({OTHER_ZEROS}, 0.0), zero, where(gt({OTHER_INFINITIES}, 0.0), copysign(inf, div(b, c)), div(b, c))))"
)


@vjp("prod")
def prod(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """Eager's two formulas: the result over the element where the operand has no zero at all, and else the product of
    the others, which is the only one that holds beside a zero. A product of all elements with several zeros has no
    gradient, whatever else is among them, unless it is differentiated again.
    """
    source, axes = node.inputs[0], node.attr("axes")
    letters: dict[str, Operand] = {"a": source, "g": source, "inf": float("inf"), "nan": float("nan")}
    marks = {"x": "eq(a, 0.0)", "y": "eq(abs(a), inf)", "z": "isnan(a)"}
    counts = {}
    for letter, text in marks.items():
        letters[letter] = marked = builder.cast(_formula(builder, text, letters), source.dtype)
        counts[letter] = builder.reduce("sum", marked, axes)
    plain = "where(y, copysign(1.0, a), where(bit_or(x, z), 1.0, a))"
    found = {letter: _formula(builder, text, letters) for letter, text in marks.items()}
    safe = _formula(builder, plain, {**letters, **found})
    rest = builder.reduce("prod", safe, axes)
    zeros = counts["x"]
    total = builder.reduce("sum", zeros, tuple(range(len(zeros.shape)))) if zeros.shape else zeros
    letters |= {"b": spread(builder, rest, node), "c": safe, "g": spread(builder, g, node)}
    letters |= {to: spread(builder, counts[of], node) for to, of in zip("quv", "xyz", strict=True)}
    letters |= {"r": spread(builder, node, node), "t": builder.expand(_whole(builder, total, source), source.shape)}
    beside = f"mul(g, {OTHERS})"
    if not zeros.shape and not builder.differentiable:
        beside = f"where(gt(t, 1.0), zero, {beside})"
    gradient = _formula(builder, f"where(eq(t, 0.0), mul(g, div(r, a)), {beside})", letters)
    return [builder.derived(gradient, "others", (source, g), *axes)]


def _formula(builder: Builder, text: str, letters: Mapping[str, Operand]) -> Node:
    made = run(builder, text, letters)
    assert made is not None
    return made


def _whole(builder: Builder, number: Node, like: Node) -> Node:
    """One number with a dimension of size 1 for each of ``like``."""
    return builder.reshape(number, (ONE,) * len(like.shape))


@vjp_derived("others")
def others(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """What zeros hide from the formula above shows where it is differentiated again."""
    wanted = tuple(place for place in (0, 1) if need[1 + place])
    operands = node.inputs[1:]
    target = Vjp(Others(node.attr("parameters")), wanted, ((),))
    results = [((place,), operands[index].dtype, operands[index].shape) for place, index in enumerate(wanted)]
    gradients = calls(builder, target, (operands, (Hole(0), Hole(1)), {}, (g,)), results)
    parts: list[Gradient] = [None, None, None]
    for index, part in zip(wanted, gradients, strict=True):
        parts[1 + index] = part
    return parts
