"""Fixes run-time numbers that say along which dimension a call without a rule works, or to which power: they are no
sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from framefuse.ir.builder import Unprovable
from framefuse.ir.numbers import Expr, Real
from framefuse.ir.trace import Call
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering

NAMES = ("dim", "dims", "axis", "axes")
TRANSFORMS = tuple(f"fft_{kind}fft{rank}" for kind in ("", "i", "r", "ir", "h", "ih") for rank in ("", "2", "n"))
# The place of the dimension among the arguments, by function; a call in which it stands elsewhere names it.
PLACES = {
    1: ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "sort", "argsort", "median", "nanmedian", "mode",
        "scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_fill", "index_reduce", "unfold",
        "renorm", "squeeze_copy", "matrix_power", "linalg_matrix_power"),
    2: ("topk", "kthvalue", "quantile", "nanquantile", "diff", "take_along_dim", *TRANSFORMS),
}  # fmt: skip
PLACE_OF = {name: place for place, names in PLACES.items() for name in names}


def with_dimensions(lo: Lowering, call: Call, number: Callable[[Expr | Real], Value]) -> Call:
    """The call with the dimension that it was recorded with, which guards hold: torch's gradients, and the sizes and
    strides of results, are known for one dimension.
    """
    place = PLACE_OF.get(call.name, len(call.args))
    args, kwargs = list(call.args), dict(call.kwargs)
    for held, key in [(args, place)] * (place < len(args)) + [(kwargs, name) for name in NAMES if name in kwargs]:
        try:
            held[key] = _fixed(lo, held[key], number)  # type: ignore[index]
        except Unprovable:
            return call
    return replace(call, args=tuple(args), kwargs=kwargs) if args != list(call.args) or kwargs != call.kwargs else call


def _fixed(lo: Lowering, value: Value, number: Callable[[Expr | Real], Value]) -> Value:
    """A dimension number, or several."""
    if type(value) in (tuple, list):
        return type(value)(_fixed(lo, part, number) for part in value)
    return lo.fixed(number(value), "a dimension") if isinstance(value, Expr) else value
