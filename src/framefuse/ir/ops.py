"""The table of primitives: one row each, with everything that the stages derive from it."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

# Kinds of rows
#   pointwise  same-shape operands (after explicit ``expand``), one element each; ``formula`` is the reference in torch
#   check      likewise, the first operand's element: the kernel fails where the second operand, a condition, is false
#   create     no tensor operand
#   view       moves indices only; fuse turns it into index arithmetic
#   index      reads at computed positions
#   scatter    adds at computed positions, in memory of its own, in any order
#   scan       of each element: the reduction of those up to it along the axis in attr ``axis``
#   reduce     removes or keeps (as size 1) the axes in attr ``axes``
#   call       runs torch or BLAS
POINTWISE, CREATE, VIEW, INDEX, REDUCE, CALL = "pointwise", "create", "view", "index", "reduce", "call"
SCATTER, SCAN, CHECK = "scatter", "scan", "check"
ELEMENTWISE = POINTWISE, CHECK  # each element is computed from the operands' elements at the same place


@dataclass(frozen=True, slots=True)
class Op:
    """One primitive.

    ``arity`` is the number of tensor operands (-1: any). ``dtype`` says the result's: ``same`` (all operands have one
    dtype, the result too), ``bool``, ``attr`` (attr ``dtype``), ``second`` (that of the second operand, for
    ``where``), ``first`` (that of the first), ``index`` (int64). ``domain`` names the kinds of operands allowed: any,
    float, integral (ints and bool), number (all but bool). ``formula`` is the reference as Python over torch with
    operands ``a b c``; ``derivative`` gives, for each operand, the vector-Jacobian product in primitives over
    operands ``a b c``, result ``r`` and incoming gradient ``g`` (None: no gradient flows; ``zero``: eager gives zeros;
    on rows that are not pointwise it names what the rule of stage autodiff does). ``cost`` is the rough time
    of one float32 element in a vector loop, in nanoseconds. ``attrs`` are the names of its attributes. ``fails`` names
    what of the second operand makes eager raise: ``divisor`` (an integer zero), ``position`` (out of bounds) or
    ``condition`` (false).
    ``commutes`` says that the two operands may change places without another bit.
    """

    name: str
    kind: str
    arity: int
    dtype: str = "same"
    domain: str = "any"
    formula: str = ""
    derivative: tuple[str | None, ...] | None = None
    cost: float = 0.05
    attrs: tuple[str, ...] = ()
    fails: str = ""
    commutes: bool = False


# Eager's own conventions: pow has no slope where the exponent is 0, nor in the exponent where 0 is raised to it; of two
# equal operands of maximum each takes half, and where one is NaN each takes all; atan2 has no slope at the origin.
POW = (
    "where(eq(b, 0.0), zero, mul(g, mul(b, pow(a, sub(b, 1.0)))))",
    "mul(g, where(bit_and(eq(a, 0.0), ge(b, 0.0)), zero, mul(r, log(a))))",
)
SQUARES = "add(mul(a, a), mul(b, b))"
ATAN2 = (
    f"where(eq({SQUARES}, 0.0), zero, mul(mul(g, b), reciprocal({SQUARES})))",
    f"where(eq({SQUARES}, 0.0), zero, mul(mul(g, neg(a)), reciprocal({SQUARES})))",
)
INVERSES = {
    "asin": "mul(g, rsqrt(sub(1.0, mul(a, a))))",
    "acos": "neg(mul(g, rsqrt(sub(1.0, mul(a, a)))))",
    "atan": "div(g, add(mul(a, a), 1.0))",
    "sinh": "mul(g, cosh(a))",
    "cosh": "mul(g, sinh(a))",
    "asinh": "mul(g, rsqrt(add(mul(a, a), 1.0)))",
    "acosh": "mul(g, rsqrt(sub(mul(a, a), 1.0)))",
    "atanh": "div(g, sub(1.0, mul(a, a)))",
    "erfc": "mul(g, mul(-1.1283791670955126, exp(neg(mul(a, a)))))",
    "erfinv": "mul(g, mul(0.8862269254527579, exp(mul(r, r))))",
    "lgamma": "mul(g, digamma(a))",
    "digamma": "mul(g, trigamma(a))",
}


def _extreme(loses: str, wins: str) -> tuple[str, str]:
    tie = "where(eq(a, b), mul(g, 0.5), g)"
    return f"where({loses}(a, b), zero, {tie})", f"where({wins}(a, b), zero, {tie})"


def _number_wins(wins: str) -> tuple[str, str]:
    taken = f"bit_or({wins}(a, b), isnan(b))"
    return f"where({taken}, g, zero)", f"where({taken}, zero, g)"


def _pointwise() -> Iterable[Op]:
    def row(name: str, arity: int, formula: str, derivative: tuple[str | None, ...] | None, **more: object) -> Op:
        return Op(name, POINTWISE, arity, formula=formula, derivative=derivative, **more)  # type: ignore[arg-type]

    number, float_, integral = {"domain": "number"}, {"domain": "float"}, {"domain": "integral"}
    yield row("add", 2, "a + b", ("g", "g"), commutes=True, **number)
    yield row("sub", 2, "a - b", ("g", "neg(g)"), **number)
    yield row("mul", 2, "a * b", ("mul(g, b)", "mul(g, a)"), commutes=True, **number)
    yield row("div", 2, "torch.true_divide(a, b)", ("div(g, b)", "neg(mul(g, div(anew(r), b)))"), cost=0.12, **float_)
    # floor of the quotient, as torch.floor_divide (Python's //) does per dtype; integer zero divisors raise
    # ZeroDivisionError
    yield row("floordiv", 2, "torch.floor_divide(a, b)", ("zero", "zero"), cost=0.5, fails="divisor", **number)
    # the divisor's sign, as torch.remainder (Python's %)
    slopes = ("g", "neg(mul(g, floordiv(a, b)))")
    yield row("remainder", 2, "torch.remainder(a, b)", slopes, cost=0.6, fails="divisor", **number)
    # the dividend's sign, as torch.fmod (C's)
    slopes = ("g", "neg(mul(g, trunc(div(a, b))))")
    yield row("fmod", 2, "torch.fmod(a, b)", slopes, cost=0.6, fails="divisor", **number)
    yield row("pow", 2, "torch.pow(a, b)", POW, cost=2.5, **number)
    yield row("atan2", 2, "torch.atan2(a, b)", ATAN2, cost=2.0, **float_)
    yield row("hypot", 2, "torch.hypot(a, b)", ("mul(g, div(a, r))", "mul(g, div(b, r))"), cost=0.8, **float_)
    sign = "beside(where(eq(a, 0.0), zero, mul(g, fixed(div(r, a)))), r)"
    yield row("copysign", 2, "torch.copysign(a, b)", (sign, "zero"), **float_)
    yield row("nextafter", 2, "torch.nextafter(a, b)", ("where(ne(a, b), g, zero)", "zero"), cost=0.4, **float_)
    # NaN of either operand wins; of two equal zeros the second operand is the result, as eager's vector kernels give
    yield row("maximum", 2, "torch.where(a == b, b, torch.maximum(a, b))", _extreme("lt", "gt"), **number)
    yield row("minimum", 2, "torch.where(a == b, b, torch.minimum(a, b))", _extreme("gt", "lt"), **number)
    # a NaN operand loses
    yield row("fmax", 2, "torch.fmax(a, b)", _number_wins("ge"), **number)
    yield row("fmin", 2, "torch.fmin(a, b)", _number_wins("le"), **number)
    # a * b + c rounded once, where ATen does so (addcmul, lerp, add with alpha)
    yield row("fma", 3, "a * b + c", ("mul(g, b)", "mul(g, a)", "g"), **float_)
    yield row("neg", 1, "-a", ("neg(g)",), **number)
    yield row("abs", 1, "torch.abs(a)", ("mul(g, sign(a))",), **number)
    yield row("sign", 1, "torch.sign(a)", ("zero",), **number)
    yield row("exp", 1, "torch.exp(a)", ("mul(g, r)",), cost=0.2, **float_)
    yield row("exp2", 1, "torch.exp2(a)", ("mul(g, mul(r, 0.6931471805599453))",), cost=0.25, **float_)
    yield row("expm1", 1, "torch.expm1(a)", ("mul(g, add(r, 1.0))",), cost=0.3, **float_)
    yield row("log", 1, "torch.log(a)", ("div(g, a)",), cost=0.35, **float_)
    yield row("log2", 1, "torch.log2(a)", ("div(g, mul(a, 0.6931471805599453))",), cost=0.4, **float_)
    yield row("log10", 1, "torch.log10(a)", ("div(g, mul(a, 2.302585092994046))",), cost=0.4, **float_)
    yield row("log1p", 1, "torch.log1p(a)", ("div(g, add(a, 1.0))",), cost=0.6, **float_)
    yield row("sqrt", 1, "torch.sqrt(a)", ("div(g, add(r, r))",), cost=0.2, **float_)
    yield row("rsqrt", 1, "torch.rsqrt(a)", ("mul(mul(g, -0.5), mul(r, mul(r, r)))",), cost=0.3, **float_)
    yield row("reciprocal", 1, "torch.reciprocal(a)", ("neg(mul(g, mul(r, r)))",), cost=0.12, **float_)
    yield row("sin", 1, "torch.sin(a)", ("mul(g, cos(a))",), cost=0.25, **float_)
    yield row("cos", 1, "torch.cos(a)", ("neg(mul(g, sin(a)))",), cost=0.25, **float_)
    yield row("tan", 1, "torch.tan(a)", ("mul(g, add(mul(r, r), 1.0))",), cost=0.8, **float_)
    for name, vjp in INVERSES.items():
        yield row(name, 1, f"torch.{name}(a)", (vjp,), cost=1.5, **float_)
    yield row("tanh", 1, "torch.tanh(a)", ("mul(g, sub(1.0, mul(r, r)))",), cost=0.4, **float_)
    yield row("erf", 1, "torch.erf(a)", ("mul(g, mul(1.1283791670955126, exp(neg(mul(a, a)))))",), cost=0.28, **float_)
    yield row("sigmoid", 1, "torch.sigmoid(a)", ("mul(g, mul(r, sub(1.0, r)))",), cost=0.28, **float_)
    for name in ("floor", "ceil", "trunc", "round"):  # round: half to even
        yield row(name, 1, f"torch.{name}(a)", ("zero",), **float_)
    yield row("isnan", 1, "torch.isnan(a)", (None,), dtype="bool", **float_)
    yield row("signbit", 1, "torch.signbit(a)", (None,), dtype="bool", **number)
    for name in ("eq", "ne", "lt", "le", "gt", "ge"):
        yield row(name, 2, f"torch.{name}(a, b)", (None, None), dtype="bool", commutes=name in ("eq", "ne"))
    for name, sign in (("and", "&"), ("or", "|"), ("xor", "^")):  # on bool these are the logical ones
        yield row(f"bit_{name}", 2, f"a {sign} b", (None, None), commutes=True, **integral)
    yield row("bit_not", 1, "~a", (None,), **integral)
    yield row("shift_left", 2, "a << b", (None, None), **integral)
    yield row("shift_right", 2, "a >> b", (None, None), **integral)
    # condition first
    yield row("where", 3, "torch.where(a, b, c)", (None, "where(a, g, zero)", "where(a, zero, g)"), dtype="second")
    # eager's conversion rules: float to integer truncates through a wide integer, to bool is != 0. loose: to a 16-bit
    # float at the end of an operation, or back at the beginning of the next one; a kernel that does both may keep the
    # digits in between.
    yield row("cast", 1, "a.to(dtype)", ("cast(g)",), dtype="attr", attrs=("dtype", "loose"))


def _other() -> Iterable[Op]:
    # the first operand, where the second holds; elsewhere eager raises (the kernel reports, eager re-runs)
    yield Op("checked", CHECK, 2, "first", "any", "torch.where(b, a, a)", ("g", None), cost=0.03, fails="condition")
    yield Op("input", CREATE, 0, "attr", derivative=(), attrs=("index",), cost=0.0)
    # attr value: bool, int, float, Expr or Real; shape is the node's
    formula = "torch.full(shape, value, dtype=dtype)"
    yield Op("full", CREATE, 0, "attr", attrs=("value",), formula=formula, derivative=(), cost=0.0)
    # start + step * position along axis 0 of a one-dimensional shape, computed in double (float dtypes) or int64 and
    # rounded to the node's dtype; start and step are int, float, Expr or Real
    formula = "(start + step * torch.arange(shape[0], dtype=wide)).to(dtype)"
    yield Op("iota", CREATE, 0, "attr", attrs=("start", "step"), formula=formula, derivative=(), cost=0.05)
    yield from _views()
    yield from _reads()
    yield from _calls()


def _views() -> Iterable[Op]:
    def row(name: str, attrs: tuple[str, ...], formula: str, vjp: str | None, cost: float = 0.0, arity: int = 1) -> Op:
        return Op(name, VIEW, arity, attrs=attrs, formula=formula, derivative=(vjp,), cost=cost)

    # the operand itself, to which no gradient flows
    yield row("detach", (), "a", None)
    # the first operand, whose gradient is not taken: attr name says how the gradient goes to the other operands (a row
    # of stage autodiff), attr parameters are its numbers
    yield Op("derived", VIEW, -1, "first", "any", "a", attrs=("name", "parameters"), cost=0.0)
    # numpy broadcasting to the node's shape
    yield row("expand", (), "a.expand(shape)", "sum_to(g)")
    yield row("reshape", (), "a.reshape(shape)", "reshape(g)")
    # result axis i is operand axis axes[i]
    yield row("permute", ("axes",), "a.permute(axes)", "permute(g)")
    # result[..., i] is operand[..., i, i]; the last two dimensions of the operand are of one size
    yield row("diagonal", (), "a.diagonal(0, -2, -1)", "on_diagonal(g)")
    # along a further last axis the elements of windows over axis ``axis``, each ``step`` elements behind the last one
    yield row("windows", ("axis", "step"), "a.unfold(axis, shape[-1], step)", "windows_backward(g)")
    # one start, length (the shape) and step (int, not 0) per axis; start is Expr; steps may be negative (flip)
    yield row("slice", ("starts", "steps"), "a[slices]", "slice_backward(g)")
    # constant padding: attr before (one Expr per axis, >= 0), value; the rest of the shape is after
    yield row("pad", ("before", "value"), "torch.nn.functional.pad(a, amounts, value=value)", "pad_backward(g)", 0.05)
    yield row("cat", ("axis",), "torch.cat(operands, axis)", "slice(g)", 0.05, arity=-1)
    # the same, where fuse has the operands lie one behind the other in one memory, beside those of longer ones
    yield Op("grown", VIEW, -1, formula="torch.cat(operands, axis)", attrs=("axis",), cost=0.0)


def _reads() -> Iterable[Op]:
    # result[..., i..., ...] = a[..., index[i...], ...]: operands a, index (any integer dtype), attr axis; result
    # shape is a.shape with that axis replaced by index.shape. attr wrap: negative indices count from the end
    # (None: all are inside). A bad index is eager's error (the kernel reports, eager re-runs).
    formula = "a[(slice(None),) * axis + (b.long(),)]"
    vjp: tuple[str | None, ...] = ("add_rows(g, b)", None)
    bad = "position"
    yield Op("take", INDEX, 2, "first", attrs=("axis", "wrap"), formula=formula, derivative=vjp, cost=0.3, fails=bad)
    # result[p] = a[p with p[axis] replaced by index[p]]: torch.gather; the index is int64, a bad one is eager's error
    formula = "torch.gather(a, axis, b.long())"
    vjp = ("scatter_add(g, b)", None)
    yield Op("gather", INDEX, 2, "first", attrs=("axis",), formula=formula, derivative=vjp, cost=1.0, fails=bad)
    # a, with c[p] added to the element at p with p[axis] replaced by b[p], for every p: torch.scatter_add. The int64 b
    # has the shape of c; the terms of one element come in any order. A bad index is eager's error.
    formula, vjp = "torch.scatter_add(a, axis, b, c)", ("g", None, "gather(g, b)")
    yield Op("scatter_add", SCATTER, 3, "first", "number", formula, vjp, attrs=("axis",), cost=1.0, fails=bad)
    # axes vanish from the shape. sum and prod accumulate in the node's dtype, to which the operand was cast before.
    for name, slope in (("sum", "expand(g)"), ("amax", "share(g, eq(a, r))"), ("amin", "share(g, eq(a, r))")):
        yield Op(name, REDUCE, 1, attrs=("axes",), formula=f"torch.{name}(a, axes)", derivative=(slope,), cost=0.06)
    yield Op("prod", REDUCE, 1, attrs=("axes",), formula="prod(a, axes)", derivative=("others(g, a)",), cost=0.06)
    # the squared distances from the mean of what is reduced, summed: one pass over memory, where emitters know it
    formula = "torch.square(a - torch.mean(a, axes, True)).sum(axes)"
    yield Op("squares", REDUCE, 1, domain="float", attrs=("axes",), formula=formula, cost=0.2)
    for name in ("any", "all"):
        formula = f"torch.{name}(a, axes)"
        yield Op(name, REDUCE, 1, "bool", attrs=("axes",), formula=formula, derivative=(None,), cost=0.06)
    # accumulated in the node's dtype, to which the operand was cast before; NaN wins
    for name, formula in (("cumsum", "{}"), ("cumprod", "{}"), ("cummax", "{}[0]"), ("cummin", "{}[0]")):
        formula = formula.format(f"torch.{name}(a, axis)")
        yield Op(name, SCAN, 1, "first", "number", formula, ("scan_backward(g)",), attrs=("axis",), cost=0.1)
    # the same of logarithms, whose exponentials are added, on devices whose emitter knows it
    formula, vjp = "torch.logcumsumexp(a, axis)", ("scan_backward(g)",)
    yield Op("logcumsumexp", SCAN, 1, "first", "float", formula, vjp, attrs=("axis",), cost=1.0)
    # one axis, or all (the index into the flattened operand); the first of equal extremes, and NaN before all
    for name in ("argmax", "argmin"):
        formula = f"torch.{name}(a, axis)"
        yield Op(name, REDUCE, 1, "index", attrs=("axes",), formula=formula, derivative=(None,), cost=0.15)


def _calls() -> Iterable[Op]:
    # (..., m, k) x (..., k, n) with equal leading dimensions: a single BLAS product, or a library call where BLAS
    # lacks the dtype
    vjp = ("matmul(g, transpose(b))", "matmul(transpose(a), g)")
    yield Op("matmul", CALL, 2, formula="torch.matmul(a, b)", derivative=vjp, domain="float", cost=0.0)
    # any torch callable: attrs target, name, args, kwargs (templates over Arg(i), Expr, Real and constants), random.
    # Its results are ``result`` nodes; shape and dtype of the call itself mean nothing. random: also one that is
    # called for its effect; such calls stay, in program order. orders: for each operand the permutation of dimensions,
    # outermost first, in which eager's own lay in memory (None: not dense); a computed operand is laid out like it.
    # views: (number, strides) of each operand that was a view of a value of the program under eager, whose memory the
    # call may therefore see; the strides are the recorded ones.
    attrs = ("target", "name", "args", "kwargs", "random", "orders", "views")
    yield Op("library", CALL, -1, "attr", attrs=attrs, formula="target(*args, **kwargs)", cost=0.0)
    yield Op("result", CALL, 1, "attr", attrs=("path",), formula="follow(a, path)", cost=0.0)


def reads_result(row: Op) -> bool:
    """Whether the gradient of a row of one operand is computed from its result alone."""
    text = (row.derivative or ("",))[0] or ""
    return row.kind == POINTWISE and row.arity == 1 and {"r", "a"}.intersection(re.findall(r"\w+", text)) == {"r"}


TABLE: dict[str, Op] = {op.name: op for op in (*_pointwise(), *_other())}
