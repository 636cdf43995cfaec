"""Writes pointwise primitives as expressions: operators, functions of ours, or of libdevice as eager calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from framefuse.codegen.triton.bounds import limits
from framefuse.codegen.triton.builder import TYPES, Tile
from framefuse.codegen.triton.casts import cast
from framefuse.codegen.unsupported import Unsupported
from framefuse.ir.dtypes import FLOAT32, INT8, DType

INFIX = {"add": "+", "sub": "-", "mul": "*", "bit_and": "&", "bit_or": "|", "bit_xor": "^"}
COMPARISONS = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
# Rows that are a function of libdevice, with its name there.
LIBRARY = {
    name: name
    for name in (
        "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tan", "asin", "acos", "atan", "sinh",
        "cosh", "tanh", "asinh", "acosh", "atanh", "erf", "erfc", "erfinv", "lgamma", "rsqrt", "floor", "ceil", "trunc",
        "atan2", "hypot", "pow", "copysign", "nextafter", "fmod", "fma",
    )
} | {"round": "nearbyint"}  # fmt: skip
# Rows that are a function of our module ``maths`` in float32.
OWN = frozenset((
    "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sin", "cos", "tanh", "erf", "sigmoid", "rsqrt", "floor",
    "ceil", "trunc", "round", "copysign", "fma", "digamma",
))  # fmt: skip
# Rows that are a function of our module ``device``, with its name there.
FLOATS = {
    "div": "divide", "sqrt": "square_root", "sigmoid": "sigmoid", "maximum": "maximum", "minimum": "minimum",
    "fmax": "fmax", "fmin": "fmin", "sign": "sign", "remainder": "remainder", "floordiv": "floor_divide",
    "digamma": "digamma",
}  # fmt: skip
INTEGERS = {
    "floordiv": "integer_floor_divide", "remainder": "integer_remainder", "fmod": "integer_fmod",
}  # fmt: skip
# Rows for which a kernel that writes nothing but 16-bit floats has a shorter function, to six digits or more.
NEAR = {"div": "device.quotient", "exp": "tl.exp"} | {
    name: f"maths.near_{name}"
    for name in ("acosh", "asinh", "cosh", "erf", "log", "log10", "log1p", "log2", "rsqrt", "sinh", "tanh")
}
# The size of an argument up to which Triton's own exp is within 4 ulp: its error grows with the argument.
SHORT_EXP = 2.0
WITH_BITS = {"pow": "integer_power", "shift_left": "shift_left", "shift_right": "shift_right"}
BOOLS = {"add": "|", "mul": "&", "maximum": "|", "minimum": "&", "fmax": "|", "fmin": "&"}


def apply(op: str, args: Sequence[Tile], result: DType, near: bool = False) -> str:
    """The expression of ``op`` on tiles; operands have one dtype, but for ``cast`` and ``where``. ``near`` allows six
    digits of float32.
    """
    dtype = args[-1].dtype
    if near and op in NEAR and dtype is FLOAT32:
        return f"{NEAR[op]}({', '.join(arg.typed for arg in args)})"
    if op == "cast":
        return cast(_name(args[0]), dtype, result)
    if op == "where":
        chosen = ", ".join(arg.typed for arg in args[1:])
        return f"tl.where({args[0].typed}, {chosen})"
    if op in COMPARISONS:
        return _compare(op, args, dtype)
    if dtype.is_float:
        return _of_floats(op, args, dtype)
    if dtype.kind == "bool":
        return _of_bools(op, args)
    return _of_integers(op, args, dtype)


def _name(tile: Tile) -> str:
    return tile.typed if tile.constant is None else f"({tile.typed})"


def _operands(args: Sequence[Tile]) -> list[str]:
    """Texts for an operator: a literal takes the type of the other operand, which must not be a literal too."""
    plain = sum(arg.constant is None for arg in args)
    special = any(isinstance(arg.constant, float) and arg.constant - arg.constant != 0 for arg in args)
    small = all(arg.dtype.size >= 4 for arg in args)
    return [arg.text if plain and small and not special else arg.typed for arg in args]


def _compare(op: str, args: Sequence[Tile], dtype: DType) -> str:
    if dtype.kind == "bool" and op not in ("eq", "ne"):
        x, y = (cast(_name(arg), dtype, INT8) for arg in args)
    elif dtype.is_float and dtype.size == 2:
        x, y = (cast(_name(arg), dtype, FLOAT32) for arg in args)
    else:
        x, y = _operands(args)
    return f"{x} {COMPARISONS[op]} {y}"


def _call(module: str, name: str, args: Sequence[Tile], *more: str) -> str:
    return f"{module}.{name}({', '.join([*(arg.typed for arg in args), *more])})"


def _of_floats(op: str, args: Sequence[Tile], dtype: DType) -> str:
    if dtype.size == 2:
        raise Unsupported(f"{op} of {dtype.name} in a kernel")
    if op in INFIX:
        x, y = _operands(args)
        return f"{x} {INFIX[op]} {y}"
    if op == "exp" and dtype is FLOAT32 and max(map(abs, limits(args[0]))) <= SHORT_EXP:
        return _call("tl", "exp", args)
    if op in OWN and dtype is FLOAT32:
        return _call("maths", op, args)
    if op in FLOATS:
        return _call("device", FLOATS[op], args)
    if op in LIBRARY:
        return _call("libdevice", LIBRARY[op], args)
    x = args[0].typed
    rows: dict[str, Callable[[], str]] = {
        "neg": lambda: f"{x} * -1.0",
        "abs": lambda: f"tl.abs({x})",
        "reciprocal": lambda: f"device.divide(tl.full((), 1.0, {TYPES[dtype.name]}), {x})",
        "isnan": lambda: f"{x} != {x}",
        "signbit": lambda: f"{x}.to(tl.int{8 * dtype.size}, bitcast=True) < 0",
    }
    if op not in rows:
        raise Unsupported(f"{op} of {dtype.name} in a kernel")
    return rows[op]()


def _of_bools(op: str, args: Sequence[Tile]) -> str:
    texts = [arg.typed for arg in args]
    operator = BOOLS.get(op) or INFIX.get(op)
    if operator in ("|", "&", "^"):
        return f"{texts[0]} {operator} {texts[1]}"
    if op == "bit_not":
        return f"{texts[0]} == 0"
    raise Unsupported(f"{op} of bool in a kernel")


def _of_integers(op: str, args: Sequence[Tile], dtype: DType) -> str:
    signed = dtype.kind == "int"
    if op in INFIX:
        x, y = _operands(args)
        return f"{x} {INFIX[op]} {y}"
    if op in INTEGERS:
        return _call("device", INTEGERS[op], args)
    if op in WITH_BITS:
        name = "unsigned_shift_right" if op == "shift_right" and not signed else WITH_BITS[op]
        return _call("device", name, args, str(8 * dtype.size))
    x = args[0].typed
    if op in ("maximum", "fmax", "minimum", "fmin"):
        y = args[1].typed
        return f"tl.where({x} {'>' if op in ('maximum', 'fmax') else '<'} {y}, {x}, {y})"
    rows: dict[str, Callable[[], str]] = {
        "neg": lambda: f"tl.full((), 0, {TYPES[dtype.name]}) - {x}",
        "abs": lambda: f"tl.abs({x})" if signed else x,
        "bit_not": lambda: f"~{x}",
        "sign": lambda: f"device.sign({x})" if signed else f"({x} != 0).to({TYPES[dtype.name]})",
        "signbit": lambda: f"{x} < 0",
    }
    if op not in rows:
        raise Unsupported(f"{op} of {dtype.name} in a kernel")
    return rows[op]()
