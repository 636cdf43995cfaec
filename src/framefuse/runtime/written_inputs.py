"""What plans call where they write to inputs of which autograd knows."""

from __future__ import annotations

import torch


def copy_uncounted(tensor: torch.Tensor, new: torch.Tensor) -> None:
    """Writes as eager writes running statistics: the tensor's version does not change."""
    tensor.data.copy_(new)


def uncounted(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with a count of writes of its own: what torch keeps for its gradient keeps the other one."""
    return tensor.data


def as_it_came(tensor: torch.Tensor, contents: torch.Tensor) -> torch.Tensor:
    """``contents`` under the history of a tensor that is about to get another one; no view of that tensor."""
    view: torch.Tensor = torch.ops.aten._unsafe_view.default(tensor, tensor.shape)
    view.data = contents
    return view


def refuse_unwritable(*tensors: torch.Tensor) -> None:
    """Raises where autograd lets nobody write one of the tensors: then the call runs eagerly, with eager's error."""
    kinds = torch._C._autograd
    for tensor in tensors:
        view = tensor._is_view()
        base = tensor._base if view else None
        leaf = tensor.requires_grad and (tensor.is_leaf or (base is not None and base.is_leaf))
        if leaf or (view and kinds._get_creation_meta(tensor) != kinds.CreationMeta.DEFAULT):
            raise RuntimeError("an input that autograd lets nobody write")
