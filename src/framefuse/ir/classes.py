"""Tells classes of C code from those that a program defines, and those whose objects are what they contain."""

from __future__ import annotations

import enum
import functools
import types
import typing
from collections.abc import Callable

import torch

from framefuse.ir.values import Value

CONTAINERS = (tuple, list, dict)
LASTING = (torch.nn.Module, torch.optim.Optimizer)  # which nobody replaces at each call
OF_TYPING = (type(typing.List[int]), type(typing.List), type(typing.Optional), typing.TypeVar)  # noqa: UP006
THEMSELVES = (*LASTING, enum.Enum, *OF_TYPING)  # what these hold is told by which one they are

IMMUTABLE_TYPE = 1 << 8
PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
DEFAULT: Value = vars(torch.Tensor)["__torch_function__"].__func__  # what torch does where no class says otherwise


def immutable(kind: type) -> bool:
    """Whether no attribute of the class, and no ``__class__`` of its instances, can be assigned: CPython's own."""
    return bool(kind.__flags__ & IMMUTABLE_TYPE)


def written_in_c(kind: type) -> bool:
    """Whether a class is C code with fields of its own: Python classes grow by a dict, weak references and slots."""
    if kind.__flags__ & IMMUTABLE_TYPE or kind.__base__ is None:
        return True
    own = vars(kind)
    growth = kind.__basicsize__ - kind.__base__.__basicsize__
    return "__slots__" not in own and growth > 8 * (("__dict__" in own) + ("__weakref__" in own))


def builtin_base(cls: type) -> Value:
    """The first class of the MRO that is not written in Python: its own item setter runs no user code."""
    for kind in cls.__mro__:
        if written_in_c(kind):
            return kind
    raise AssertionError("object is written in C")


def _is_by_content(kind: type) -> bool:
    """Whether what objects of a class contain is what counts, where a call found another one in their place: Python's
    own containers, and records, whose attributes are all that they are.
    """
    return issubclass(kind, CONTAINERS) or _is_record(kind)


is_by_content: Callable[[Value], bool] = functools.lru_cache(maxsize=4096)(_is_by_content)


def _is_record(kind: type) -> bool:
    """Whether instances are what their ``__dict__`` holds: of a program's own class, written in Python."""
    own = [base for base in kind.__mro__ if base is not object]
    return bool(own) and kind.__module__.partition(".")[0] != "torch" and not issubclass(kind, THEMSELVES) and not any(
        written_in_c(base) or any(type(member) is types.MemberDescriptorType for member in vars(base).values())
        for base in own
    )


def of_extension(function: Value) -> bool:
    """Whether a builtin function belongs to a class of an extension by pybind11: what it is bound to is a record of the
    extension itself, which lives as long as the class.
    """
    kind = type(getattr(function, "__self__", None)).__name__
    return kind == "PyCapsule" or kind.startswith("pybind11_detail_function_record")


def as_torch_does(kind: type) -> bool:
    """Whether torch's functions do with tensors of a class what they do with any, and give that class or none."""
    override: Value = getattr(kind, "__torch_function__", None)
    return getattr(override, "__func__", override) in (DEFAULT, torch._C._disabled_torch_function_impl)
