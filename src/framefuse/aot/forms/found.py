"""What is found by looking at values, by the places of what is true and of what is repeated."""

from __future__ import annotations

import torch
from torch import Tensor

from framefuse.aot.forms.registry import Given, form
from framefuse.ir.values import Value


def _is_counted(given: Given) -> bool:
    """Whether there is more to be done than to count what is true."""
    return given["input"].dtype is not torch.bool or bool(given["as_tuple"])


@form(torch.nonzero, torch.Tensor.nonzero, where=_is_counted)
def nonzero(input: Tensor, *, as_tuple: bool = False) -> Value:
    mask = input if input.dtype is torch.bool else input != 0
    found = mask.nonzero()
    return found.unbind(1) if as_tuple else found


@form(torch.argwhere, torch.Tensor.argwhere)
def argwhere(input: Tensor) -> Tensor:
    found: Tensor = nonzero(input)
    return found


@form(torch.where, where=lambda given: given["input"] is None)
def where(condition: Tensor, input: Value = None, other: Value = None) -> Value:
    return nonzero(condition, as_tuple=True)


@form(torch.masked_select, torch.Tensor.masked_select)
def masked_select(input: Tensor, mask: Tensor) -> Tensor:
    input, mask = torch.broadcast_tensors(input, mask)
    return input[mask]


def _is_told(given: Given) -> bool:
    return isinstance(given["repeats"], Tensor)


@form(torch.repeat_interleave, torch.Tensor.repeat_interleave, where=_is_told)
def repeat_interleave(
    input: Tensor, repeats: Tensor, dim: Value = None, *, output_size: Value = None
) -> Tensor:  # fmt: skip
    """Of elements, each so often as a tensor says."""
    if dim is None:
        input, dim = input.reshape(-1), 0
    each = repeats.reshape(-1).expand(input.shape[dim])  # an error where they are neither one nor as many
    return input.index_select(dim, torch.repeat_interleave(each.contiguous()))


@form(torch.bincount, torch.Tensor.bincount, where=lambda given: given["weights"] is not None)
def bincount(input: Tensor, weights: Tensor, minlength: int = 0) -> Tensor:
    counts = torch.bincount(input, minlength=minlength)
    terms = weights if weights.dtype in (torch.float32, torch.float64) else weights.to(torch.float64)
    return torch.zeros_like(counts, dtype=terms.dtype).scatter_add(0, input.to(torch.int64), terms)
