"""Finds the functions that kernels call, by name: SLEEF's, which libtorch brings, and some of the C library's."""

from __future__ import annotations

import ctypes
import re
import sys
from functools import cache, lru_cache
from pathlib import Path

import torch

# Object code gets the address of no other name, whatever it asks for. The three of memory LLVM calls by itself.
MATHS = (
    "acos acosh asin asinh atan atan2 atanh cbrt ceil copysign cos cosh erf erfc exp exp10 exp2 expm1 fabs fdim floor "
    "fma fmax fmin fmod frexp hypot ldexp lgamma log log10 log1p log2 modf nearbyint nextafter pow remainder rint "
    "round roundeven sin sinh sqrt tan tanh tgamma trunc"
).split()
NAMES = frozenset(("malloc", "free", "memcpy", "memmove", "memset", *MATHS, *(f"{name}f" for name in MATHS)))
SLEEF = re.compile(r"Sleef_[a-z0-9]+_?u?[0-9]*")


@lru_cache(maxsize=1)
def _libraries() -> tuple[ctypes.CDLL, ...]:
    folder = Path(torch.__file__).parent / "lib"
    name = "libtorch_cpu.dylib" if sys.platform == "darwin" else "libtorch_cpu.so"
    own = [ctypes.CDLL(str(folder / name))] if (folder / name).exists() else []
    return (*own, ctypes.CDLL(None), *_libm())


def _libm() -> tuple[ctypes.CDLL, ...]:
    try:
        return (ctypes.CDLL("libm.so.6"),)
    except OSError:
        return ()


@cache
def address(symbol: str) -> int | None:
    """Where a function of libtorch (SLEEF) or of the C library lies in this process; None when it has no such, and for
    what no kernel calls.
    """
    if symbol not in NAMES and not SLEEF.fullmatch(symbol):
        return None
    for library in _libraries():
        try:
            return ctypes.cast(getattr(library, symbol), ctypes.c_void_p).value
        except AttributeError:
            continue
    return None
