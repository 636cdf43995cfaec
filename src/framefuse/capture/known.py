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
import types
from collections.abc import Hashable
from typing import Unpack

import torch

from framefuse.capture.callables import number_functions
from framefuse.capture.opcodes import operator_functions
from framefuse.capture.program import equivalents
from framefuse.capture.program.natives import CONVERSIONS, NATIVES, TRUTH, Columns, Native, row


def _known(*targets: Hashable, **columns: Unpack[Columns]) -> None:
    for target in targets:
        row(target, Native(**columns))


# ---- builtins -------------------------------------------------------------------------------------------------------

_known(hex, oct, bin, complex, pure=True, reads_value=True)
_known(ascii, pure=True, reads_value=True, asks=("__repr__", "__str__"))
_known(bytes, bytearray, chr, object, ord, range, pure=True)
_known(slice, property, classmethod, staticmethod, pure=True, keeps=True)

# ---- types of Python and of the standard library --------------------------------------------------------------------

_known(
    types.MethodType, types.SimpleNamespace, types.CellType, functools.partial, torch.Size, pure=True, keeps=True
)  # fmt: skip
_known(types.MappingProxyType, types.GenericAlias, pure=True)
_known(
    collections.OrderedDict, collections.deque, collections.Counter, collections.defaultdict, collections.ChainMap,
    collections.UserDict, pure=True,
)  # fmt: skip
_known(functools.partialmethod, functools.cached_property, pure=True)
_known(functools.cmp_to_key, pure=True)

# ---- functions of Python that look at a function and do not call it --------------------------------------------------

_known(
    inspect.signature, inspect.isfunction, inspect.ismethod, inspect.isclass, inspect.ismodule,
    inspect.isgeneratorfunction, inspect.isbuiltin, inspect.unwrap, dataclasses.fields, pure=True, holds=True,
)  # fmt: skip
_known(inspect.isgenerator, pure=True)

# ---- torch ----------------------------------------------------------------------------------------------------------

_known(
    torch.device, torch.finfo, torch.iinfo, torch.no_grad, torch.enable_grad, torch.set_grad_enabled,
    torch.autograd.profiler.record_function, pure=True,
)  # fmt: skip

# ---- modules of C, nearly all of whose functions are pure ------------------------------------------------------------

_known(math.prod, pure=True, keeps_numbers=True, asks=(*CONVERSIONS, "__mul__", "__rmul__"))
_known(math.fsum, pure=True, asks=CONVERSIONS)
_known(operator.abs, pure=True, asks=("__abs__",))
_known(operator.pos, pure=True, asks=("__pos__",))
_known(operator.inv, pure=True, asks=("__invert__",))
_known(operator.truth, pure=True, asks=TRUTH)
_known(operator.concat, pure=True, asks=("__add__", "__radd__"))
_known(itertools.compress, pure=True, asks=TRUTH)
WRITING = ("setitem", "delitem", "iconcat")  # these write their first operand
# Each beside the file in which those of its functions that need code have their rows.
for _module, _ in ((math, number_functions), (operator, operator_functions), (itertools, equivalents)):
    for _name, _function in vars(_module).items():
        if callable(_function) and _function not in NATIVES and not _name.startswith("_") and _name not in WRITING:
            row(_function, Native(pure=True))
