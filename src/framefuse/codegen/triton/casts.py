"""Writes conversions between element types with eager's rules."""

from __future__ import annotations

from framefuse.codegen.triton.builder import TYPES
from framefuse.ir.dtypes import FLOAT32, DType


def cast(x: str, source: DType, target: DType) -> str:
    """``x.to(target)`` as an expression; ``x`` is a name of dtype ``source``.

    Floats to integers truncate through a wide integer, to bool compare with zero; 16-bit floats round from float32.
    """
    if source is target:
        return x
    if target.kind == "bool":
        return f"{cast(x, source, _single(source))} != 0"
    if source.is_float and target.is_integral:
        wide = "tl.int64" if target.size == 8 or target.kind == "uint" else "tl.int32"
        whole = f"{_to_single(x, source)}.to({wide})"
        return whole if wide == TYPES[target.name] else f"{whole}.to({TYPES[target.name]})"
    if _is_short(target) and not (source.is_float and source.size == 4):
        return f"{x}.to(tl.float32).to({TYPES[target.name]})"
    if source.is_float and source.size == 2 and target.size == 8:
        return f"{x}.to(tl.float32).to({TYPES[target.name]})"
    return f"{x}.to({TYPES[target.name]})"


def _is_short(dtype: DType) -> bool:
    return dtype.is_float and dtype.size == 2


def _to_single(x: str, source: DType) -> str:
    return f"{x}.to(tl.float32)" if _is_short(source) else x


def _single(source: DType) -> DType:
    """Where a value of ``source`` is compared: float32 for the 16-bit floats."""
    return FLOAT32 if _is_short(source) else source
