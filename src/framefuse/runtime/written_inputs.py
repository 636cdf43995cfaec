"""What plans call where they write to inputs of which autograd knows, or whose class says in Python what copies do."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch

from framefuse.ir.classes import PLAIN_TENSORS
from framefuse.ir.facts import Input

PLAINLY = torch._C.DisableTorchFunctionSubclass  # no class of an input is asked: the trace has what it said


def copier(inputs: Iterable[Input]) -> Callable[[torch.Tensor, torch.Tensor], object]:
    """What writes the inputs of a trace."""
    plain = all(entry.spec.type in PLAIN_TENSORS for entry in inputs)
    return torch.Tensor.copy_ if plain else copy_plainly


def copy_plainly(tensor: torch.Tensor, new: torch.Tensor) -> None:
    """Writes as ``copy_`` of a plain tensor does."""
    with PLAINLY():
        tensor.copy_(new)


def copy_uncounted(tensor: torch.Tensor, new: torch.Tensor) -> None:
    """Writes as eager writes running statistics: the tensor's version does not change."""
    with PLAINLY():
        tensor.data.copy_(new)


def uncounted(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with a count of writes of its own: what torch keeps for its gradient keeps the other one."""
    with PLAINLY():
        return tensor.data


def as_it_came(tensor: torch.Tensor, contents: torch.Tensor) -> torch.Tensor:
    """``contents`` under the history of a tensor that is about to get another one; no view of that tensor."""
    with PLAINLY():
        view: torch.Tensor = torch.ops.aten._unsafe_view.default(tensor, tensor.shape)
        view.data = contents
        return view


def refuse_unwritable(*tensors: torch.Tensor) -> None:
    """Raises where autograd lets nobody write one of the tensors: then the call runs eagerly, with eager's error."""
    with PLAINLY():
        if any(map(_is_unwritable, tensors)):
            raise RuntimeError("an input that autograd lets nobody write")


def _is_unwritable(tensor: torch.Tensor) -> bool:
    kinds = torch._C._autograd
    view = tensor._is_view()
    base = tensor._base if view else None
    leaf = tensor.requires_grad and (tensor.is_leaf or (base is not None and base.is_leaf))
    return leaf or (view and kinds._get_creation_meta(tensor) != kinds.CreationMeta.DEFAULT)
