"""What torch checks of the numbers of a call, and raises for: that a type of elements has them, and their bounds."""

from __future__ import annotations

from typing import NamedTuple

import torch

from framefuse.ir.torch_calls.writes import is_in_place

# Functions that convert their numbers to elements, with the place and name of an argument that has sizes or places.
CONVERTING: dict[str, tuple[int, str] | None] = dict.fromkeys((
    "fill", "full_like", "scalar_tensor", "clamp", "clip", "clamp_min", "clamp_max", "_foreach_clamp_min",
    "_foreach_clamp_max", "where", "masked_fill", "_threshold", "leaky_relu",
    "hardtanh", "softplus", "lerp", "addcmul", "addcdiv", "cosine_similarity", "normalize", "fill_diagonal", "pow",
    "__pow__", "__ipow__",
))  # fmt: skip
CONVERTING |= {
    "full": (0, "size"), "new_full": (1, "size"), "pad": (1, "pad"), "constant_pad_nd": (1, "pad"),
    "__setitem__": (1, "indices"),
}  # fmt: skip


FACTORS = ("add", "sub", "subtract", "rsub")  # which convert their ``alpha`` alone


class Argument(NamedTuple):
    """A number among the arguments of a call: where it stands, and what it is where it is not given."""

    place: int
    name: str
    default: float


class Bound(NamedTuple):
    """Whether ``left <= right`` (or ``<``) decides if a call raises; what is no number is on the same side as there."""

    left: Argument | float
    op: str
    right: Argument | float


_PROBABILITY = Argument(1, "p", 0.5)
_SHARE = (Bound(0.0, "<=", _PROBABILITY), Bound(_PROBABILITY, "<=", 1.0))
_MARGIN = Argument(3, "margin", 1.0)
_EPS = Argument(7, "eps", 1e-5)
BOUNDS: dict[str, tuple[Bound, ...]] = {
    **dict.fromkeys(
        ("dropout", "dropout1d", "dropout2d", "dropout3d", "feature_dropout", "alpha_dropout", "feature_alpha_dropout"),
        _SHARE,
    ),
    "hardtanh": (Bound(Argument(2, "max_val", 1.0), "<", Argument(1, "min_val", -1.0)),),
    "cosine_similarity": (Bound(0.0, "<=", Argument(3, "eps", 1e-8)),),
    "batch_norm": (Bound(_EPS, "<", 0.0), Bound(_EPS, "<=", 0.0)),  # torch 2.11 refuses zero, 2.13 takes it
    "triplet_margin_loss": (Bound(_MARGIN, "<=", 0.0),),
    "isclose": (Bound(0.0, "<=", Argument(2, "rtol", 1e-5)), Bound(0.0, "<=", Argument(3, "atol", 1e-8))),
}


def checked_as(name: str) -> str:
    """The name of the rows of a function: a call in place is checked as the other is."""
    plain = name.removeprefix("F.")
    return plain.removesuffix("_") if is_in_place(plain) and not plain.startswith("__") else plain


def largest(dtype: torch.dtype) -> tuple[float, ...]:
    """The largest numbers that conversions to this type may take, the narrowest first; nothing where it takes all.

    Arithmetic on 16 bits converts some numbers to float32.
    """
    return _LARGEST.get(dtype, ())


_SINGLE = torch.finfo(torch.float32).max
_LARGEST: dict[torch.dtype, tuple[float, ...]] = {
    torch.float32: (_SINGLE,),
    torch.complex64: (_SINGLE,),
    torch.float16: (torch.finfo(torch.float16).max, _SINGLE),
    torch.bfloat16: (torch.finfo(torch.bfloat16).max, _SINGLE),
    # Torch lets unsigned types have negative numbers; the one number more that signed types have is held apart.
    **{
        dtype: (float(torch.iinfo(dtype).max),)
        for dtype in (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
    },
}
