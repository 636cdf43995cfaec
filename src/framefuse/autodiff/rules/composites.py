"""Gradients of functions that lowering builds of several primitives, by eager's own formulas where these differ."""

from __future__ import annotations

import re
from collections.abc import Sequence

import torch

from framefuse.autodiff.formulas import run
from framefuse.autodiff.library import call
from framefuse.autodiff.registry import DERIVED, FAINT, ZERO, Gradient, Vjp, vjp_derived
from framefuse.autodiff.rules.indexing import rows_of_table
from framefuse.autodiff.rules.views import summed
from framefuse.ir.builder import ONE, Builder
from framefuse.ir.dtypes import INT64
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr
from framefuse.ir.ops import TABLE, reads_result
from framefuse.ir.values import Value

# One formula for each operand a b c, over these, the result r, the gradient g and the parameters p q s. The sources
# are the backward kernels of ATen (native/cpu/Activation.cpp, BinaryOpsKernel.cpp) and derivatives.yaml, in which side
# NaN takes as well. ``beside`` is its first operand, and leads to the others with zeros, ``unmoved`` with nothing. A
# sixth is a float32 there.
GELU_INNER = "mul(0.7978845608028654, add(a, mul(0.044715, mul(a, mul(a, a)))))"
GELU_TANH = f"tanh({GELU_INNER})"
GELU_SLOPE = "mul(0.7978845608028654, add(1.0, mul(0.134145, mul(a, a))))"
SINC_ANGLE, SINC_SQUARE = "mul(a, 3.141592653589793)", "mul(mul(a, a), 3.141592653589793)"
MISH_TANH = "tanh(log1p(exp(a)))"  # its second gradient is nearer than one of the fraction that lowering takes
SMOOTH = "where(le(sub(a, b), neg(p)), neg(g), where(ge(sub(a, b), p), g, div(mul(sub(a, b), g), p)))"
HUBER = "where(le(sub(a, b), neg(p)), neg(mul(g, p)), where(ge(sub(a, b), p), mul(g, p), mul(sub(a, b), g)))"
FORMULAS: dict[str, tuple[str | None, ...]] = {
    "relu": ("beside(where(le(r, 0.0), zero, g), r)",),
    "log_softmax_of_one": ("sub(g, mul(exp(r), g))",),
    "hardtanh": ("beside(where(bit_and(gt(a, p), lt(a, q)), g, zero), a)",),
    "clamp": ("where(bit_and(ge(a, b), le(a, c)), g, zero)", "where(bit_and(lt(a, b), lt(b, c)), g, zero)",
              "where(bit_or(gt(a, c), lt(c, b)), g, zero)"),
    "clamp_min": ("where(ge(a, b), g, zero)", "where(lt(a, b), g, zero)"),
    "clamp_max": ("where(le(a, b), g, zero)", "where(gt(a, b), g, zero)"),
    "leaky_relu": ("beside(where(gt(a, 0.0), g, mul(g, p)), a)",),
    "leaky_relu_written": ("beside(where(gt(r, 0.0), g, mul(g, p)), r)",),
    "prelu": ("beside(where(gt(a, 0.0), g, mul(b, g)), a)", "beside(where(gt(a, 0.0), zero, mul(a, g)), b)"),
    "silu": ("mul(mul(g, sigmoid(a)), add(1.0, mul(a, sub(1.0, sigmoid(a)))))",),
    "mish": (f"mul(g, add({MISH_TANH}, mul(mul(a, sigmoid(a)), sub(1.0, mul({MISH_TANH}, {MISH_TANH})))))",),
    "gelu": ("mul(g, add(mul(0.5, add(1.0, erf(mul(a, 0.7071067811865476)))), "
             "mul(a, mul(0.3989422804014327, exp(mul(mul(a, a), -0.5))))))",),
    "gelu_tanh": (f"mul(g, add(mul(0.5, add(1.0, {GELU_TANH})), mul(mul(mul(0.5, a), "
                  f"sub(1.0, mul({GELU_TANH}, {GELU_TANH}))), {GELU_SLOPE})))",),
    "elu": ("where(gt(a, 0.0), mul(g, q), mul(mul(g, p), exp(mul(a, s))))",),
    "elu_written": ("where(le(r, 0.0), mul(mul(g, s), add(r, p)), mul(g, q))",),
    "softplus": ("where(gt(mul(a, p), q), g, mul(g, div(exp(mul(a, p)), add(exp(mul(a, p)), 1.0))))",),
    "log_sigmoid": ("mul(g, where(lt(a, 0.0), sub(1.0, div(b, add(1.0, b))), div(b, add(1.0, b))))", None),
    "hardswish": ("where(le(a, -3.0), zero, where(ge(a, 3.0), g, mul(g, add(div(a, 3.0), 0.5))))",),
    "erf": ("mul(g, mul(1.1283791670955126, exp(neg(mul(a, a)))))",),
    "shrink": ("beside(where(bit_or(lt(a, neg(p)), gt(a, p)), g, zero), a)",),
    "threshold": ("beside(where(le(a, p), zero, g), a)",),
    "logit": ("where(bit_or(lt(a, 0.0), gt(a, 1.0)), nan, div(g, mul(a, sub(1.0, a))))",),
    "logit_eps": ("where(bit_and(ge(a, p), le(a, sub(1.0, p))), div(g, mul(a, sub(1.0, a))), zero)",),
    "xlogy": ("where(bit_and(eq(a, 0.0), le(b, 0.0)), zero, where(isnan(b), b, where(eq(g, 0.0), zero, "
              "mul(g, log(b)))))", "div(mul(g, a), b)"),
    "logaddexp": ("div(g, add(1.0, exp(sub(b, a))))", "div(g, add(1.0, exp(sub(a, b))))"),
    "sinc": (f"where(eq({SINC_SQUARE}, 0.0), zero, mul(g, div(sub(mul({SINC_ANGLE}, cos({SINC_ANGLE})), "
             f"sin({SINC_ANGLE})), {SINC_SQUARE})))",),
    "nan_to_num": ("mul(g, where(lt(abs(a), inf), 1.0, zero))",),
    "present": ("mul(g, where(isnan(a), zero, 1.0))",),
    "power": ("mul(g, mul(p, pow(a, q)))",),
    "smooth_l1": (SMOOTH, f"neg({SMOOTH})"),
    "huber": (HUBER, f"neg({HUBER})"),
    "binary_cross_entropy": ("div(mul(g, sub(a, b)), maximum(mul(sub(1.0, a), a), 1e-12))",
                             "mul(g, sub(log(sub(1.0, a)), log(a)))"),
    # a root of a sum of powers: none where the sum is 0
    "norm": ("where(eq(r, 0.0), zero, div(g, add(r, r)))",),
    # eager's node of a norm gives all its gradients, so that of the shift requires grad where one of them does
    "shifted": ("g", "unmoved(g, a)"),
    # eager's gradient leads to the operand, of which it does not depend
    "aside": ("beside(g, a)",),
    # it requires grad where the operand does, to which nothing comes
    "unheard": ("unmoved(g, a)",),
    "straight": ("g",),
    "kept": ("g",),
    "remembered": ("g",),
    "anew": ("g",),
    "shown": ("g",),
    "own": ("g",),
    "replaced": ("g", "zero"),
    "nothing": ("zero", "zero", "zero"),
    "undefined": (None, None, None),
    "unmoved": ("g", None),
}  # fmt: skip


def _formula_rule(texts: Sequence[str | None]) -> Vjp:
    def rule(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
        letters: dict[str, Value] = {"r": node, "g": g, "inf": INF, "nan": NAN}
        letters |= zip("abc", node.inputs[1:], strict=False)
        letters |= zip("pqs", node.attr("parameters"), strict=False)
        parts: list[Gradient] = [None]
        for text, wanted in zip(texts, need[1:], strict=False):
            parts.append((run(builder, text, letters) or ZERO) if wanted and text is not None else None)
        return parts

    return rule


INF, NAN = float("inf"), float("nan")
HARDSIGMOID = _formula_rule(("where(bit_and(gt(a, -3.0), lt(a, 3.0)), mul(g, 0.1666666716337204), zero)",))
# Rules that are about more nodes where gradients are differentiated again.
# of which an operand gets zeros, which lead on where they are differentiated again
ZEROS = ("nothing", "replaced", "faint")
FURTHER = re.compile(r"(?:beside|unmoved)\((.*), (\w)\)")


def _leads_further(text: str | None) -> bool:
    """Whether a gradient leads to an operand that it does not read."""
    parts = FURTHER.fullmatch(text or "")
    return parts is not None and re.search(rf"\b{parts[2]}\b", parts[1]) is None


BY_RULES = ("max_pool", "average_pool", "group_norm")
ASIDE = (*(name for name, texts in FORMULAS.items() if any(map(_leads_further, texts))), *BY_RULES)
DERIVED.update({name: _formula_rule(texts) for name, texts in FORMULAS.items()})
# of what was written in place and is read where it lies
DERIVED.update({f"{n}_written": _formula_rule(row.derivative or ()) for n, row in TABLE.items() if reads_result(row)})


@vjp_derived("faint")
def faint(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    return [None, *(FAINT for _ in need[1:])]


@vjp_derived("hardsigmoid")
def hardsigmoid(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """Gradients that are differentiated again are eager's call, which refuses that."""
    if builder.differentiable:
        return [None, call(builder, torch.ops.aten.hardsigmoid_backward.default, (g, node.inputs[1]), like=g)]
    return HARDSIGMOID(builder, node, g, need)


# ---- rows ------------------------------------------------------------------------------------------------------------


def _total(builder: Builder, node: Node, axes: Sequence[int]) -> Node:
    """The sum over ``axes``, at each element."""
    kept = tuple(ONE if axis in axes else size for axis, size in enumerate(node.shape))
    return builder.expand(builder.reshape(summed(builder, node, axes), kept), node.shape)


def _row_total(builder: Builder, g: Node, axis: int) -> Node:
    """The sum over ``axis`` at each element. Where ``g`` holds one element of each row (the gradient of a gather), that
    element is the sum.
    """
    if g.op == "where" and g.inputs[0].op == "eq" and g.inputs[1].op == "expand":
        (places, read), one, rest = g.inputs[0].inputs, g.inputs[1].inputs[0], g.inputs[2]
        row = places.inputs[0].inputs[0] if places.op == "expand" and places.inputs[0].op == "reshape" else places
        whole = row.op == "iota" and row.attrs == (("start", 0), ("step", 1)) and row.shape == (g.shape[axis],)
        alone = len(one.shape) == len(g.shape) and one.shape[axis] is ONE and read.op == "expand"
        zeros = rest.op == "full" and rest.attr("value") == 0
        if whole and alone and zeros and read.inputs[0].shape == one.shape:
            others = [a is b for place, (a, b) in enumerate(zip(one.shape, g.shape, strict=True)) if place != axis]
            if all(others):
                return g.inputs[1]
    return _total(builder, g, (axis,))


@vjp_derived("softmax")
def softmax(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """The kernels of eager round in two ways: on the CPU a constant gradient gives zeros."""
    (axis,) = node.attr("parameters")
    weighted = builder.pointwise("mul", g, node)
    letters = {"g": g, "b": weighted, "r": node, "a": _total(builder, weighted, (axis,))}
    return [None, run(builder, "mul(r, sub(g, a))" if g.device == "cpu" else "sub(b, mul(r, a))", letters)]


@vjp_derived("log_softmax")
def log_softmax(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    (axis,) = node.attr("parameters")
    return [None, run(builder, "sub(g, mul(exp(r), a))", {"g": g, "r": node, "a": _row_total(builder, g, axis)})]


@vjp_derived("logsumexp")
def logsumexp(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """``g * exp(a - r)``; the result keeps its axes. A row of -inf has none, as in eager."""
    source = node.inputs[1]
    letters = {"g": builder.expand(g, source.shape), "a": source, "r": builder.expand(node, source.shape)}
    return [None, run(builder, "mul(g, exp(sub(a, r)))", letters)]


@vjp_derived("standardise")
def standardise(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """Of ``r = (a - mean) * b`` over axes, where ``b`` is one over the deviation:
    ``b * (g - mean(g) - r * mean(g * r))``.
    """
    source, scale = node.inputs[1:]
    axes = node.attr("parameters")
    count = builder.count(tuple(source.shape[axis] for axis in axes))
    size = count if count.constant is None else count.constant
    letters = {
        "g": g, "r": node, "s": builder.expand(scale, node.shape), "p": size,
        "a": _total(builder, g, axes), "b": _total(builder, builder.pointwise("mul", g, node), axes),
    }  # fmt: skip
    return [None, run(builder, "mul(s, sub(sub(g, div(a, p)), mul(r, div(b, p))))", letters), None]


@vjp_derived("group_norm")
def group_norm(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """Of ``(a - mean) * b * weight + bias``, where ``b`` is one over the deviation of groups of channels: all that it
    takes are two sums over each channel of a sample, as in eager. Operands are ``a``, ``a - mean``, ``b`` and what
    there is of weight and bias.
    """
    _, centred, scale, *factors = node.inputs[1:]
    weighted, shifted = node.attr("parameters")
    batch, channels, *rest = node.shape
    groups = scale.shape[1]
    by_group = (batch, groups, channels // groups)
    axes = tuple(range(2, len(node.shape)))

    def multiply(a: Node, b: Node) -> Node:
        return builder.pointwise("mul", a, b)

    def by_channel(group: Node) -> Node:
        spread = builder.expand(builder.reshape(group, (batch, groups, ONE)), by_group)
        return builder.reshape(spread, (batch, channels))

    deviation = by_channel(scale)
    plain = summed(builder, g, axes)
    along = multiply(summed(builder, multiply(g, centred), axes), deviation)
    parts: list[Gradient] = [None, None, None, None]
    if need[1]:
        weight = builder.expand(factors[0], (batch, channels)) if weighted else None
        count = builder.count((*by_group[2:], *rest))

        def mean(sums: Node) -> Node:
            """At each channel the mean over its group."""
            sums = sums if weight is None else multiply(sums, weight)
            total = by_channel(summed(builder, builder.reshape(sums, by_group), (2,)))
            return builder.pointwise("div", total, builder.full(count, total.dtype, total.shape, total.device))

        def wide(channel: Node) -> Node:
            kept = builder.reshape(channel, (batch, channels, *[ONE] * len(rest)))
            return builder.expand(kept, node.shape)

        slope = deviation if weight is None else multiply(deviation, weight)
        letters = {
            "g": g, "a": wide(slope), "b": wide(multiply(deviation, mean(plain))), "c": centred,
            "p": wide(multiply(deviation, multiply(deviation, mean(along)))),
        }  # fmt: skip
        parts[1] = run(builder, "sub(sub(mul(g, a), b), mul(c, p))", letters)
    gradients = [summed(builder, each, (0,)) for each, there in ((along, weighted), (plain, shifted)) if there]
    if weighted:  # it requires grad where the weight does, as from eager's node
        gradients[0] = builder.derived(gradients[0], "unmoved", (gradients[0], factors[0]))
    return [*parts, *gradients]


@vjp_derived("squares")
def squares(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """Of the sum of ``(a - mean(a)) ** 2`` over axes that are kept."""
    source, centre = node.inputs[1:]
    letters = {"g": builder.expand(g, source.shape), "a": source, "b": builder.expand(centre, source.shape)}
    return [None, run(builder, "mul(add(g, g), sub(a, b))", letters), None]


# ---- positions -------------------------------------------------------------------------------------------------------


@vjp_derived("extreme_at")
def extreme_at(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """Of the extreme along one axis, kept with size 1, that the position in operand b names."""
    source, index = node.inputs[1:]
    (axis,) = node.attr("parameters")
    lying = tuple(size if place == axis else ONE for place, size in enumerate(source.shape))
    row = builder.reshape(builder.iota(0, 1, INT64, source.shape[axis], g.device), lying)
    places = builder.expand(row, source.shape)
    letters = {"g": builder.expand(g, source.shape), "a": places, "b": builder.expand(index, source.shape)}
    return [None, run(builder, "where(eq(a, b), g, zero)", letters), None]


@vjp_derived("extreme_of_all")
def extreme_of_all(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """Of the extreme over axes: those that equal it share the gradient, and NaNs are equal."""
    source, axes = node.inputs[1], node.attr("parameters")
    kept = tuple(ONE if axis in axes else size for axis, size in enumerate(source.shape))

    def spread(value: Node) -> Node:
        return builder.expand(builder.reshape(value, kept), source.shape)

    hits = run(builder, "where(isnan(b), isnan(a), eq(a, b))", {"a": source, "b": spread(node), "g": source})
    assert hits is not None
    hit = builder.cast(hits, g.dtype)
    count = builder.reduce("sum", hit, axes)
    return [None, builder.pointwise("mul", hit, spread(builder.pointwise("div", g, count)))]


@vjp_derived("length")
def length(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """Of the root of the sum of squares over axes, which are kept: the operand over it, none where it is 0. Eager
    divides each element, which tells where gradients are differentiated again; else a division of each row will do.
    """
    source = node.inputs[1]
    if builder.differentiable:
        formula, letters = "mul(g, where(eq(r, 0.0), zero, div(a, r)))", {
            "a": source, "r": builder.expand(node, source.shape), "g": builder.expand(g, source.shape)
        }  # fmt: skip
        return [None, run(builder, formula, letters) or ZERO]
    share = run(builder, "where(eq(r, 0.0), zero, div(g, r))", {"r": node, "g": g})
    return [None, ZERO if share is None else builder.pointwise("mul", source, builder.expand(share, source.shape))]


@vjp_derived("power_norm")
def power_norm(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """Of the p-norm of sizes over axes, which are kept: a row of length 0 has none, and below order 1 a zero has none
    unless the length is infinite or NaN.
    """
    source, (p,) = node.inputs[1], node.attr("parameters")
    by_row = run(builder, "pow(r, q)" if p < 1 else "where(eq(r, 0.0), zero, div(g, pow(r, p)))",
                 {"g": g, "r": node, "p": p - 1.0, "q": 1.0 - p})  # fmt: skip
    assert by_row is not None
    letters = {"a": source, "g": builder.expand(g, source.shape), "b": builder.expand(by_row, source.shape)}
    if p < 1:
        return [None, run(builder, "mul(mul(where(eq(a, 0.0), zero, pow(a, p)), g), b)", {**letters, "p": p - 1.0})]
    return [None, run(builder, "mul(mul(a, a), b)" if p == 3 else "mul(pow(a, p), b)", {**letters, "p": p - 1.0})]


@vjp_derived("embedding")
def embedding(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """Of rows read from a table: one row's gradient is not counted, or each is divided by how often it was read."""
    table, index = node.inputs[1:]
    padding, by_count = node.attr("parameters")
    count: Expr = builder.count(index.shape)
    line = builder.reshape(builder.cast(index, INT64), (count,))
    return [None, rows_of_table(builder, g, line, table, padding, by_count), None]
