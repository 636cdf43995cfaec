"""Tells classes of C code from those that a program defines, whichever of CPython's own lie on the heap."""

from __future__ import annotations

import torch

from framefuse.ir.values import Value

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
