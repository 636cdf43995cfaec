"""Native callables of Python that a recording may run as they are: what is known of them needs no code.

Those that need some have their row there.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
import itertools
import math
import operator
import re
import types
from collections.abc import Hashable
from typing import Unpack

import torch

from framefuse.capture.program.natives import CONVERSIONS, INDEX, TRUTH, Columns, Native, row


def _known(*targets: Hashable, **columns: Unpack[Columns]) -> None:
    for target in targets:
        row(target, Native(**columns))


def _of(module: types.ModuleType, names: str) -> list[Hashable]:
    """Those of the functions that this CPython has: some came with 3.12 or 3.13."""
    return [getattr(module, name) for name in names.split() if hasattr(module, name)]


# ---- builtins -------------------------------------------------------------------------------------------------------

_known(hex, oct, bin, complex, pure=True, reads_value=True, asks=CONVERSIONS)
_known(ascii, pure=True, reads_value=True, asks=("__repr__", "__str__"), shows=True)
_known(bytes, bytearray, chr, range, pure=True, asks=CONVERSIONS)
_known(object, ord, pure=True)
_known(slice, property, classmethod, staticmethod, pure=True, keeps=True)

# ---- types of Python and of the standard library --------------------------------------------------------------------

_known(types.MethodType, types.CellType, functools.partial, torch.Size, pure=True, keeps=True)
_known(types.SimpleNamespace, pure=True, keeps=True, iterates=True, compares=("__hash__", "__eq__"))  # of a dict: 3.13
_known(types.MappingProxyType, types.GenericAlias, pure=True)
_known(collections.OrderedDict, pure=True, iterates=True, takes="all")
_known(collections.defaultdict, pure=True, iterates=True)
_known(collections.Counter, collections.ChainMap, collections.UserDict, pure=True)
_known(functools.partialmethod, functools.cached_property, pure=True)

# ---- functions of Python that look at a function and do not call it -------------------------------------------------

_known(
    inspect.signature, inspect.getfullargspec, inspect.isfunction, inspect.ismethod, inspect.isclass,
    inspect.ismodule, inspect.isgeneratorfunction, inspect.isbuiltin, inspect.unwrap, dataclasses.fields, pure=True,
    holds=True,
)  # fmt: skip
_known(inspect.isgenerator, pure=True)

# ---- torch ----------------------------------------------------------------------------------------------------------

_known(
    torch.device, torch.finfo, torch.iinfo, torch.no_grad, torch.enable_grad, torch.set_grad_enabled,
    torch.autograd.profiler.record_function, pure=True,
)  # fmt: skip

# ---- regular expressions --------------------------------------------------------------------------------------------

_known(re.sub, re.subn, calls=True)

# ---- modules of C: what these have beside is in number_functions, operator_functions and equivalents ----------------

_known(
    *_of(math, "cbrt dist erf erfc exp2 factorial fma frexp gamma gcd hypot isclose isqrt lcm ldexp lgamma modf "
    "remainder perm comb nextafter ulp fsum"), pure=True, asks=CONVERSIONS,
)  # fmt: skip
_known(
    *_of(math, "sumprod"), pure=True, asks=(*CONVERSIONS, "__mul__", "__rmul__", "__add__", "__radd__"),
)  # fmt: skip

_known(*_of(operator, "attrgetter itemgetter methodcaller"), pure=True)
_known(operator.index, pure=True, asks=CONVERSIONS)
_known(operator.abs, pure=True, asks=("__abs__",))
_known(operator.pos, pure=True, asks=("__pos__",))
_known(operator.inv, pure=True, asks=("__invert__",))
_known(operator.truth, pure=True, asks=TRUTH)
_known(operator.concat, pure=True, shallow=True, asks=("__add__", "__radd__"))

_known(
    *_of(itertools, "batched"), pure=True, shallow=True, iterates=True,
)  # fmt: skip
_known(itertools.count, pure=True, asks=("__add__", "__radd__"))
_known(itertools.repeat, pure=True, keeps=True, keeps_numbers=True, shallow=True, asks=INDEX)
