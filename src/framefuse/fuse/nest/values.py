"""Turns one graph operation on values into loop-nest values, with the casts that 16-bit floats and indices need."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from framefuse.errors import CompilerBug
from framefuse.fuse.nest.parameters import Parameters
from framefuse.ir.dtypes import BOOL, BY_NAME, FLOAT64, INT64, DType
from framefuse.ir.graph import Node
from framefuse.ir.loops import Apply, Const, Index, Value
from framefuse.ir.numbers import Expr, Real

# Where a 16-bit float that was kept in float32 may decide differently from the rounded one.
JUMPS = frozenset(
    "eq ne lt le gt ge floor ceil trunc round floordiv remainder fmod isnan signbit sign nextafter".split()
)


@dataclass(frozen=True, slots=True)
class Computed:
    """A value in the dtype of arithmetic; ``rounded`` is the node's dtype if the value may hold more digits than it."""

    value: Value
    rounded: DType | None = None


def compute(dtype: DType) -> DType:
    """The dtype in which kernels hold values of ``dtype``."""
    return BY_NAME[dtype.compute]


def cast(value: Value, dtype: DType) -> Value:
    """``value`` converted; nothing where it has the dtype, and constants at once where that is exact."""
    if value.dtype is dtype:
        return value
    return Apply("cast", (value,), dtype)


def loaded(value: Value) -> Computed:
    """A loaded element, widened."""
    return Computed(cast(value, compute(value.dtype)))


def exact(computed: Computed) -> Value:
    """The value with exactly the digits of its node's dtype, still in the dtype of arithmetic."""
    if computed.rounded is None:
        return computed.value
    return cast(cast(computed.value, computed.rounded), computed.value.dtype)


def stored(computed: Computed, dtype: DType) -> Value:
    """The value as it goes to memory of ``dtype``; one that was widened from there is not rounded again."""
    narrow = before_widening(computed.value)
    return narrow if narrow is not None and narrow.dtype is dtype else cast(computed.value, dtype)


def before_widening(value: Value) -> Value | None:
    """The 16-bit float of which ``value`` is the widened form, if it is one."""
    if isinstance(value, Apply) and value.op == "cast":
        (narrow,) = value.args
        if narrow.dtype is not value.dtype and compute(narrow.dtype) is value.dtype:
            return narrow
    return None


def chosen(test: Value, one: Computed, other: Computed, narrow: bool) -> Computed:
    """One of two values; with ``narrow`` 16-bit floats are chosen as they are in memory, and widened once or never."""
    digits, wide = one.rounded or other.rounded, one.value.dtype
    first, second = before_widening(one.value), before_widening(other.value)
    if narrow and first is not None and second is not None and first.dtype is second.dtype:
        return Computed(cast(Apply("where", (test, first, second), first.dtype), wide), digits)
    return Computed(Apply("where", (test, one.value, other.value), wide), digits)


def operate(node: Node, args: Sequence[Computed]) -> Computed:
    """A pointwise primitive."""
    if node.dtype.llvm is None or any(operand.dtype.llvm is None for operand in node.inputs):
        raise CompilerBug(f"{node.op} of {node.dtype.name} cannot be in a kernel")
    target = compute(node.dtype)
    narrow = node.dtype if target is not node.dtype else None
    if node.op == "cast":
        return _cast(node, args[0])
    if node.op == "where":
        return chosen(args[0].value, args[1], args[2], node.device == "cpu")
    values = tuple(exact(arg) if node.op in JUMPS else arg.value for arg in args)
    return Computed(Apply(node.op, values, target), narrow)


def _cast(node: Node, arg: Computed) -> Computed:
    """A conversion: to a 16-bit float it rounds, as the stored tensor of eager was rounded, unless it is loose."""
    dtype, source = node.dtype, arg.value.dtype
    if node.attr("loose"):
        if compute(dtype) is source and dtype is not source:
            return Computed(arg.value, dtype)
        if dtype is source:
            return arg
    if dtype.is_float and compute(dtype) is not dtype:
        return Computed(cast(cast(exact(arg), dtype), compute(dtype)))
    if dtype is source and arg.rounded is None:
        return arg
    return Computed(cast(exact(arg), dtype))


def constant(node: Node, parameters: Parameters) -> Computed:
    """A ``full`` node's value."""
    value = node.attr("value")
    target = compute(node.dtype)
    if isinstance(value, Expr) and value.constant is not None:
        value = value.constant
    if isinstance(value, (Expr, Real)):
        number: Value = parameters.scalar(value, target)
        return loaded(cast(number, node.dtype)) if node.dtype is not target else Computed(number)
    plain: Value = Const(_as_kind(value, target), target)
    if node.dtype is not target:
        plain = cast(cast(plain, node.dtype), target)
    return Computed(plain)


def _as_kind(value: bool | int | float, dtype: DType) -> bool | int | float:
    if dtype.is_float:
        return float(value)
    if dtype.kind == "bool":
        return bool(value)
    whole = int(value)
    bits = 8 * dtype.size
    wrapped = whole % (1 << bits)
    return wrapped - (1 << bits) if dtype.kind == "int" and wrapped >= 1 << (bits - 1) else wrapped


def progression(node: Node, position: Expr, parameters: Parameters) -> Computed:
    """An ``iota`` node's value: exact in integers, in double precision for floats as eager computes it."""
    start, step = node.attr("start"), node.attr("step")
    if all(isinstance(part, (int, Expr)) for part in (start, step)):
        value: Value = Index(parameters.index(position * step + start), INT64)
        return loaded(cast(cast(value, node.dtype), node.dtype))
    place = cast(Index(parameters.index(position), INT64), FLOAT64)
    moved = Apply("mul", (place, _real(step, parameters)), FLOAT64)
    return loaded(cast(Apply("add", (_real(start, parameters), moved), FLOAT64), node.dtype))


def _real(value: int | float | Expr | Real, parameters: Parameters) -> Value:
    if isinstance(value, (Expr, Real)) and getattr(value, "constant", None) is None:
        return parameters.scalar(value, FLOAT64)
    return Const(float(value if not isinstance(value, Expr) else value.constant or 0), FLOAT64)  # type: ignore[arg-type]


def every(tests: Sequence[Expr], parameters: Parameters) -> Value:
    """Whether each expression is at least 0."""
    value: Value | None = None
    for test in tests:
        term = Apply("ge", (Index(parameters.index(test), INT64), Const(0, INT64)), BOOL)
        value = term if value is None else Apply("bit_and", (value, term), BOOL)
    return value if value is not None else Const(True, BOOL)
