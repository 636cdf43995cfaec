"""Reads from a real tensor what a trace must know of it: metadata, order of its strides, key set."""

from __future__ import annotations

import types
from typing import NamedTuple

import torch

from framefuse.ir.classes import PLAIN_TENSORS
from framefuse.ir.dtypes import BY_TORCH
from framefuse.ir.facts import Source
from framefuse.ir.numbers import Symbol
from framefuse.ir.trace import TensorMeta


class Entrance(NamedTuple):
    """An input of a recording: where it was found, its dispatch keys, sizes with a symbol where they may differ, and
    whether its strides are fixed.
    """

    source: Source
    keys: int
    sizes: tuple[Symbol | int, ...]
    fixed: bool


# Special methods that are called where the interpreter sees it, or in a step.
SEEN = frozenset(
    ("__new__", "__init__", "__torch_function__", "__init_subclass__", "__repr__", "__str__", "__deepcopy__",
     "__reduce__", "__reduce_ex__", "__setstate__", "__class_getitem__", "__annotate__")
)  # fmt: skip


def is_held(kind: type) -> bool:
    """Whether traces hold tensors of a class: torch's own two, and those that say in Python what torch's functions do
    with them; not what acts below these functions, nor operators written in Python.
    """
    if kind in PLAIN_TENSORS:
        return True
    dispatch = getattr(kind, "__torch_dispatch__", None)
    if not issubclass(kind, torch.Tensor) or dispatch is not torch.Tensor.__torch_dispatch__ or _is_torchs(kind):
        return False
    own = kind.__mro__[: kind.__mro__.index(torch.Tensor)]
    return not any(_is_operator(name, value) for base in own for name, value in vars(base).items())


def _is_operator(name: str, value: object) -> bool:
    """Whether an attribute of a class is a special method that native code calls."""
    return name.startswith("__") and name not in SEEN and type(value) is types.FunctionType


def _is_torchs(kind: type) -> bool:
    """Whether a class is one of torch's own, as uninitialised parameters, which have rules of their own."""
    return kind.__module__.partition(".")[0] == "torch"


def special(tensor: torch.Tensor, lazy: bool = False) -> str | None:
    """What makes a tensor one that traces do not hold (its kind in words), None for a plain one. Conjugate and negative
    views, which are computed when they are read, are held where they are ``lazy`` results of the trace's own calls.
    """
    if not is_held(type(tensor)):
        return f"a {type(tensor).__name__}"
    if tensor.layout is not torch.strided:
        return f"a tensor of layout {tensor.layout}"
    if tensor.dtype not in BY_TORCH:
        return f"a tensor of {tensor.dtype}"
    if tensor.is_nested or tensor.is_meta or tensor.is_quantized:
        return "a nested, meta or quantised tensor"
    if not lazy and (tensor.is_conj() or tensor.is_neg()):
        return "a conjugate or negative view"
    if tensor._is_zerotensor():
        return "zeros without memory"
    if tensor.requires_grad and tensor._is_view() and not _lies_in_base(tensor):
        return "a view whose memory is no longer its base's"
    return None


def lacks_sizes(tensor: torch.Tensor) -> bool:
    """Whether a tensor has no sizes to ask for, as a nested one whose parts lie one behind the other."""
    with torch._C.DisableTorchFunction():
        return tensor.is_nested and tensor.layout is torch.strided


def stands_for_another(tensor: torch.Tensor) -> bool:
    """Whether a tensor is what a function transform shows the program in the place of one at a lower level."""
    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


def _lies_in_base(view: torch.Tensor) -> bool:
    """Whether a view lies where autograd thinks: not after ``view.data = ...`` or ``set_``."""
    base = view._base
    return base is None or base.untyped_storage()._cdata == view.untyped_storage()._cdata


def describe(tensor: torch.Tensor, storages: dict[int, int], families: dict[int, int]) -> TensorMeta:
    """The metadata of a real tensor; ``storages`` and ``families`` number the storages and the bases met so far."""
    address = tensor.untyped_storage()._cdata
    met = address in storages
    number = storages.setdefault(address, len(storages))
    kind = type(tensor)
    bare = tensor.is_inference()
    if bare:  # what lies in another's memory is a view of that
        view, family = met, -address
    else:
        view = tensor._is_view()
        base = tensor._base
        family = (tensor if base is None else base)._cdata
    return TensorMeta(
        dtype=tensor.dtype,
        sizes=tuple(tensor.shape),
        strides=tensor.stride(),
        device=str(tensor.device),
        requires_grad=tensor.requires_grad,
        offset=int(tensor.storage_offset()),
        storage=number,
        plain=kind in PLAIN_TENSORS and not (tensor.is_conj() or tensor.is_neg()),
        type=kind,
        view=view,
        family=families.setdefault(family, len(families)),
        bare=bare,
    )


def dense_order(sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    """The permutation, outermost first, in which a tensor is dense, None if there is none; strides of sizes up to 1
    count for nothing.
    """
    natural = tuple(range(len(sizes)))
    if 0 in sizes or _dense(natural, sizes, strides):
        return natural
    order = tuple(sorted(natural, key=lambda dim: (-strides[dim], dim)))
    return order if _dense(order, sizes, strides) else None


def _dense(order: tuple[int, ...], sizes: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    expected = 1
    for dim in reversed(order):
        if sizes[dim] != 1:
            if strides[dim] != expected:
                return False
            expected *= sizes[dim]
    return True


def keys_of(tensor: torch.Tensor) -> int:
    """The raw bits of the tensor's dispatch key set."""
    return int(torch._C._dispatch_keys(tensor).raw_repr())


def versions_of(tensors: list[torch.Tensor]) -> list[int | None]:
    """The counts of writes of tensors, None for those that have none."""
    try:
        return [tensor._version for tensor in tensors]
    except RuntimeError:  # inference tensors count no versions
        return [None] * len(tensors)


def lies_in_module(source: Source) -> bool:
    """Whether a tensor is a buffer or a gradient, or lies in a dict under a tensor as key: its sizes stay, as those of
    parameters do.
    """
    if source.base is not None and source.base.kind == "attr" and source.base.key == "_buffers":
        return True
    here: Source | None = source
    while here is not None:
        if here.kind in ("grad", "entry"):
            return True
        here = here.base
    return False
