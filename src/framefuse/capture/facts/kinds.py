"""Tells from a class alone what its instances are not, where isinstance would ask each one for its ``__class__``."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, deque
from collections.abc import Callable

import torch

from framefuse.capture.facts.numbers import TRACKED
from framefuse.ir.values import Value

TOLD_APART: tuple[type, ...] = (
    torch.Tensor, type, types.ModuleType, types.MethodType, types.BuiltinMethodType, types.MethodWrapperType
)  # fmt: skip
DECIDING = ("__class__", "__getattribute__")
# C code with a lookup of attributes of its own, which shows what lies there.
HONEST = frozenset((list, tuple, dict, set, frozenset, OrderedDict, deque, types.FunctionType))


def _is_plain(kind: type) -> bool:
    """Whether instances of ``kind`` are known to be no tensors, modules, classes or bound methods, nor to pass for one
    as proxies do. What Python code of the class answers when asked for ``__class__`` counts for nothing: attributes are
    looked up by the real class.
    """
    if kind in TRACKED or issubclass(kind, TOLD_APART):
        return False
    if kind in HONEST:
        return True
    deciding = [next(vars(base)[name] for base in kind.__mro__ if name in vars(base)) for name in DECIDING]
    shown, lookup = deciding
    return shown is vars(object)["__class__"] and (
        lookup is vars(object)["__getattribute__"] or type(lookup) is types.FunctionType
    )


is_plain: Callable[[Value], bool] = functools.lru_cache(maxsize=4096)(_is_plain)
