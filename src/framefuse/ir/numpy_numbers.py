"""Recognises the numbers of NumPy: immutable objects without other state."""

from __future__ import annotations

import numpy as np

from framefuse.ir.values import Value

SCALARS: frozenset[type] = frozenset(
    (np.bool_, np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.longlong,
     np.ulonglong, np.float16, np.float32, np.float64, np.complex64, np.complex128)
)  # fmt: skip

FUNCTIONS: type = np.ufunc  # those of NumPy that compute element by element: each its own, for good
TRUTHS: type = np.bool_  # of which there are two, as of Python's


def is_numpy_number(value: Value) -> bool:
    """Whether a value is one of NumPy's numbers that Python's own numbers hold exactly."""
    return type(value) in SCALARS
