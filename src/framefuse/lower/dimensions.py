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

NAMES = ("dim", "dims", "axis")
# The place of the dimension among the arguments, by function; a call in which it stands elsewhere names it.
PLACES = {
    1: ("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin", "sort", "argsort", "median", "nanmedian", "mode",
        "scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_fill", "index_reduce", "unfold",
        "renorm", "squeeze_copy", "matrix_power", "linalg_matrix_power"),
    2: ("topk", "kthvalue", "quantile", "nanquantile", "diff", "take_along_dim"),
}  # fmt: skip
PLACE_OF = {name: place for place, names in PLACES.items() for name in names}


def with_dimensions(lo: Lowering, call: Call, number: Callable[[Expr | Real], Value]) -> Call:
    """The call with the dimension that it was recorded with, which guards hold: torch's gradients and sizes of results
    are known for one dimension.
    """
    place = PLACE_OF.get(call.name, len(call.args))
    args, kwargs = list(call.args), dict(call.kwargs)
    for held, key in [(args, place)] * (place < len(args)) + [(kwargs, name) for name in NAMES if name in kwargs]:
        if isinstance(held[key], Expr):  # type: ignore[index]
            try:
                held[key] = lo.fixed(number(held[key]), "a dimension")  # type: ignore[index]
            except Unprovable:
                return call
    return replace(call, args=tuple(args), kwargs=kwargs) if args != list(call.args) or kwargs != call.kwargs else call
