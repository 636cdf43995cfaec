"""Lowers activation functions to the formulas that eager's kernels compute."""

from __future__ import annotations

import math
from collections.abc import Callable

from framefuse.ir.dtypes import BOOL
from framefuse.ir.graph import Node
from framefuse.ir.values import Value
from framefuse.lower import element as e
from framefuse.lower.binary import clamp
from framefuse.lower.context import Lowering
from framefuse.lower.element import Element, where
from framefuse.lower.pointwise import absolute
from framefuse.lower.promotion import row
from framefuse.lower.rules import Unsupported, register, rule

# ---- one formula of the operand each; floats only --------------------------------------------------------------------


def _sixth(a: Element) -> Element:
    """As eager: a quotient on a CPU, a product elsewhere."""
    return a / 6.0 if a.node.device == "cpu" else a * (1.0 / 6.0)


def log_sigmoid_of(a: Element) -> Element:
    """log(sigmoid(a)) without overflow."""
    return _log_sigmoid(a, e.exp(-abs(a)))


def _log_sigmoid(a: Element, power: Element) -> Element:
    return (e.minimum(a, 0.0) - e.log1p(power)).derived("log_sigmoid", a, power)


def mish_of(a: Element) -> Element:
    """a * tanh(log(1 + exp(a))) by one exponential E: tanh(log(1 + E)) is E (E + 2) / (E (E + 2) + 2), which is 1 to
    any float from exp(20) on.
    """
    power = e.exp(e.minimum(a, 20.0))
    above = power * (power + 2.0)
    return (a * (above / (above + 2.0))).derived("mish", a)


FORMULAS: dict[str, Callable[[Element], Element]] = {
    "silu": lambda a: (a / (1.0 + e.exp(-a))).derived("silu", a),
    "mish": mish_of,
    "hardswish": lambda a: _sixth(a * e.minimum(e.maximum(a + 3.0, 0.0), 6.0)).derived("hardswish", a),
    "hardsigmoid": lambda a: _sixth(e.minimum(e.maximum(a + 3.0, 0.0), 6.0)).derived("hardsigmoid", a),
}


def _activation(formula: Callable[[Element], Element]) -> Callable[..., Node]:
    def lowered(lo: Lowering, input: Node, inplace: bool = False, *, out: Value = None) -> Node:
        _need_float(input)
        return lo.compute(formula, input)

    return lowered


def _need_float(node: Node) -> None:
    if not node.dtype.is_float:
        raise Unsupported("integers")


for _name, _formula in FORMULAS.items():
    register((_name,), "activations", _activation(_formula))


@rule("logsigmoid")
def log_sigmoid(lo: Lowering, input: Node, inplace: bool = False, *, out: Value = None) -> Node:
    _need_float(input)

    def formula(a: Element) -> Element:
        power = e.exp(-abs(a))
        if input.device == "cpu":  # eager's call keeps it there
            lo.held.add(power.node)
        return _log_sigmoid(a, power)

    return lo.compute(formula, input)


@rule("relu")
def relu(lo: Lowering, input: Node, inplace: bool = False) -> Node:
    if input.dtype is BOOL:
        raise Unsupported("bool")
    # Its gradient reads the result as it is in memory, where what comes next reads it too.
    return lo.derived(lo.compute(lambda a: e.maximum(a.number(0), a), input), "relu", (input,))


@rule("F.relu6", "nn.relu6")
def relu6(lo: Lowering, input: Node, inplace: bool = False) -> Node:
    return _between(lo, input, 0.0, 6.0)


def _between(lo: Lowering, input: Node, low: Value, high: Value) -> Node:
    """clamp that keeps the dtype of integers, and has no slope at its bounds."""
    if input.dtype.is_integral:
        return clamp(lo, input, int(low), int(high))
    return lo.compute(
        lambda a: e.minimum(a.number(high), e.maximum(a.number(low), a)).derived("hardtanh", a, numbers=(low, high)),
        input,
    )


@rule("F.hardtanh", "nn.hardtanh")
def hard_tanh(lo: Lowering, input: Node, min_val: Value = -1.0, max_val: Value = 1.0, inplace: bool = False) -> Node:
    return _between(lo, input, min_val, max_val)


@rule("gelu")
def gelu(lo: Lowering, input: Node, approximate: str = "none") -> Node:
    _need_float(input)
    if approximate == "tanh":
        slope = math.sqrt(2.0) * (2.0 / math.sqrt(math.pi)) * 0.5

        def formula(a: Element) -> Element:
            inner = slope * e.fma(a * a * a, 0.044715, a)
            return (0.5 * a * (1.0 + e.tanh(inner))).derived("gelu_tanh", a)

        return lo.compute(formula, input)
    return lo.compute(lambda a: (a * 0.5 * (1.0 + e.erf(a * math.sqrt(0.5)))).derived("gelu", a), input)


def _elu(lo: Lowering, input: Node, alpha: float, scale: float = 1.0, input_scale: float = 1.0) -> Node:
    _need_float(input)

    def formula(a: Element) -> Element:
        negative = e.expm1(a * input_scale if input_scale != 1.0 else a) * (alpha * scale)
        result = where(a <= 0.0, negative, a if scale == 1.0 else a * scale)
        if lo.writes:
            return _of_result(result, "elu_written", a, alpha * scale, scale, input_scale)
        return result.derived("elu", a, numbers=(alpha * scale * input_scale, scale, input_scale))

    return lo.compute(formula, input)


def _of_result(result: Element, name: str, a: Element, falling: Value, *numbers: Value) -> Element:
    """The result of a call in place, by which eager differentiates it; that refuses to where there is no way back."""
    if isinstance(falling, (int, float)) and falling < 0:
        raise Unsupported("the result does not tell the operand")
    return result.derived(name, a, numbers=(falling, *numbers))


@rule("F.elu")
def elu(lo: Lowering, input: Node, alpha: float = 1.0, inplace: bool = False) -> Node:
    return scaled_elu(lo, input, alpha)


@rule("nn.elu")
def scaled_elu(lo: Lowering, input: Node, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Node:
    """The operator, whose arguments behind ``alpha`` are not those of the function."""
    return _elu(lo, input, float(alpha), float(scale), float(input_scale))


@rule("selu")
def selu(lo: Lowering, input: Node, inplace: bool = False) -> Node:
    return _elu(lo, input, 1.6732632423543772848170429916717, 1.0507009873554804934193349852946)


@rule("celu")
def celu(lo: Lowering, input: Node, alpha: float = 1.0, inplace: bool = False) -> Node:
    return _elu(lo, input, float(alpha), 1.0, 1.0 / alpha)


@rule("leaky_relu")
def leaky_relu(lo: Lowering, input: Node, negative_slope: Value = 0.01, inplace: bool = False) -> Node:
    _need_float(input)

    def formula(a: Element) -> Element:
        result = where(a > 0.0, a, a * negative_slope)
        if lo.writes:
            return _of_result(result, "leaky_relu_written", a, negative_slope)
        return result.derived("leaky_relu", a, numbers=(negative_slope,))

    return lo.compute(formula, input)


@rule("prelu")
def prelu(lo: Lowering, input: Node, weight: Node) -> Node:
    _need_float(input)
    if weight.dtype is not input.dtype or len(weight.shape) > 1:
        raise Unsupported("weight")
    if len(weight.shape) == 1 and weight.shape[0].constant != 1:
        if len(input.shape) < 2:
            raise Unsupported("channels")
        weight = lo.along(weight, 1, len(input.shape))
    elif len(weight.shape) == 1:
        weight = lo.reshape(weight, ())
    return lo.compute(lambda a, w: where(a > 0.0, a, a * w).derived("prelu", a, w), input, weight, dtype=input.dtype)


@rule("softplus")
def softplus(lo: Lowering, input: Node, beta: Value = 1.0, threshold: Value = 20.0) -> Node:
    _need_float(input)

    def formula(a: Element) -> Element:
        if type(beta) in (int, float) and beta == 1:  # as it mostly is: a division takes as long as exp
            result = where(a > threshold, a, e.log1p(e.exp(a)))
        else:
            result = where(a * beta > threshold, a, e.log1p(e.exp(a * beta)) / beta)
        return result.derived("softplus", a, numbers=(beta, threshold))

    return lo.compute(formula, input)


@rule("softsign")
def softsign(lo: Lowering, input: Node) -> Node:
    bottom = lo.settled(lo.compute(lambda a: a + 1, absolute(lo, input)))
    return lo.compute(lambda a, b: a / b, input, bottom, floating=True)


@rule("tanhshrink")
def tanhshrink(lo: Lowering, input: Node) -> Node:
    """What eager rounds in between shows: little is left of the difference."""
    return lo.compute(lambda a, t: a - t, input, lo.settled(lo.compute(e.tanh, input, floating=True)))


@rule("hardshrink")
def hardshrink(lo: Lowering, input: Node, lambd: Value = 0.5) -> Node:
    _need_float(input)
    return lo.compute(
        lambda a: where((a >= -lambd) & (a <= lambd), 0.0, a).derived("shrink", a, numbers=(lambd,)), input
    )


@rule("softshrink")
def softshrink(lo: Lowering, input: Node, lambd: Value = 0.5) -> Node:
    _need_float(input)

    def formula(a: Element) -> Element:
        result = where(a > lambd, a - lambd, where(a < -lambd, a + lambd, a - a))
        return result.derived("shrink", a, numbers=(lambd,))

    return lo.compute(formula, input)


@rule("threshold")
def threshold(lo: Lowering, input: Node, threshold: Value, value: Value, inplace: bool = False) -> Node:
    if input.dtype is BOOL:
        raise Unsupported("bool")
    return lo.compute(lambda a: where(a <= threshold, value, a).derived("threshold", a, numbers=(threshold,)), input)


@rule("glu")
def glu(lo: Lowering, input: Node, dim: int = -1) -> Node:
    _need_float(input)
    axis = lo.axis(dim, len(input.shape))
    half = input.shape[axis] // 2
    lo.require("==", half * 2, input.shape[axis], "halves of glu")
    value, gate = lo.narrow(input, axis, 0, half), lo.narrow(input, axis, half, half)
    return lo.compute(lambda a, b: a * e.sigmoid(b), value, gate)


# ---- softmax ---------------------------------------------------------------------------------------------------------


def _softmax_operand(lo: Lowering, input: Node, dim: Value, dtype: Value) -> tuple[Node, int, Value]:
    if dim is None:
        raise Unsupported("no dimension")
    result = row(dtype) if dtype is not None else input.dtype
    if not result.is_float:
        raise Unsupported("integers")
    return lo.widen(lo.cast(input, result)), lo.axis(dim, len(input.shape)), result


@rule("softmax", "special.softmax")
def softmax(lo: Lowering, input: Node, dim: Value = None, _stacklevel: Value = 3, dtype: Value = None) -> Node:
    if not isinstance(_stacklevel, int):  # torch.softmax has the dtype in third place
        dtype = _stacklevel
    node, axis, result = _softmax_operand(lo, input, dim, dtype)
    if not node.shape:
        return lo.cast(lo.compute(lambda a: e.exp(a - a), node), result)
    high = lo.reduce("amax", node, (axis,), True)
    top = lo.compute(lambda a, m: e.exp(a - m), node, high)
    share = lo.compute(lambda a, s: a / s, top, lo.reduce("sum", top, (axis,), True))
    return lo.cast(lo.derived(share, "softmax", (node,), axis), result)


@rule("F.softmin")
def softmin(lo: Lowering, input: Node, dim: Value = None, _stacklevel: int = 3, dtype: Value = None) -> Node:
    return softmax(lo, lo.compute(lambda a: -a, input), dim, 3, dtype)


@rule("log_softmax", "special.log_softmax")
def log_softmax(lo: Lowering, input: Node, dim: Value = None, _stacklevel: Value = 3, dtype: Value = None) -> Node:
    if not isinstance(_stacklevel, int):
        dtype = _stacklevel
    node, axis, result = _softmax_operand(lo, input, dim, dtype)
    return lo.cast(log_softmax_of(lo, node, axis), result)


def log_softmax_of(lo: Lowering, node: Node, axis: int) -> Node:
    """log_softmax in the node's own dtype."""
    if not node.shape:
        return lo.derived(lo.compute(lambda a: a - a, node), "log_softmax_of_one", (node,))
    high = lo.reduce("amax", node, (axis,), True)
    shifted = lo.compute(lambda a, m: a - m, node, high)
    total = lo.compute(e.log, lo.reduce("sum", lo.compute(e.exp, shifted), (axis,), True))
    return lo.derived(lo.compute(lambda a, s: a - s, shifted, total), "log_softmax", (node,), axis)
