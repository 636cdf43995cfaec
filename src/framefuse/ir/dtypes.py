"""Names every element type once: its row carries what the stages need to know of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class DType:
    """One element type: ``size`` in bytes, ``kind`` one of bool, uint, int, float, complex; ``llvm`` is None when
    kernels cannot hold it.

    ``compute`` names the row in which kernels do arithmetic (float32 for the 16-bit floats, as eager does).
    """

    name: str
    torch: torch.dtype
    size: int
    kind: str
    llvm: str | None
    short: str
    compute: str

    @property
    def is_float(self) -> bool:
        return self.kind == "float"

    @property
    def is_integral(self) -> bool:
        """True for bool and all integers."""
        return self.kind in ("bool", "uint", "int")

    def __str__(self) -> str:
        return self.short


ROWS = (
    DType("bool", torch.bool, 1, "bool", "i8", "b8", "bool"),
    DType("uint8", torch.uint8, 1, "uint", "i8", "u8", "uint8"),
    DType("int8", torch.int8, 1, "int", "i8", "i8", "int8"),
    DType("int16", torch.int16, 2, "int", "i16", "i16", "int16"),
    DType("int32", torch.int32, 4, "int", "i32", "i32", "int32"),
    DType("int64", torch.int64, 8, "int", "i64", "i64", "int64"),
    DType("float16", torch.float16, 2, "float", "half", "f16", "float32"),
    DType("bfloat16", torch.bfloat16, 2, "float", "bfloat", "bf16", "float32"),
    DType("float32", torch.float32, 4, "float", "float", "f32", "float32"),
    DType("float64", torch.float64, 8, "float", "double", "f64", "float64"),
    DType("complex64", torch.complex64, 8, "complex", None, "c64", "complex64"),
    DType("complex128", torch.complex128, 16, "complex", None, "c128", "complex128"),
)
BY_NAME = {row.name: row for row in ROWS}
BY_TORCH = {row.torch: row for row in ROWS}
BOOL, UINT8, INT8, INT16, INT32, INT64 = (BY_NAME[n] for n in ("bool", "uint8", "int8", "int16", "int32", "int64"))
FLOAT16, BFLOAT16, FLOAT32, FLOAT64 = (BY_NAME[n] for n in ("float16", "bfloat16", "float32", "float64"))
