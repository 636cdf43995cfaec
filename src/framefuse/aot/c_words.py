"""Writes texts, numbers and kinds of dtypes as C has them."""

from __future__ import annotations

import math

from framefuse.ir.dtypes import BY_NAME


def quoted(text: str) -> str:
    """A C string: every byte that is no plain character by its number."""
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode())
    return '"' + "".join(plain) + '"'


def order_of(dtype: str) -> str:
    if BY_NAME[dtype].is_float:
        return "FLOATING"
    return "SIGNED" if dtype.startswith("int") else "UNSIGNED"


def integer(value: int) -> str:
    return "INT64_MIN" if value == -(2**63) else f"INT64_C({value})"


def real(value: float) -> str:
    if math.isfinite(value):
        return value.hex()
    return "NAN" if value != value else "INFINITY" if value > 0 else "-INFINITY"
