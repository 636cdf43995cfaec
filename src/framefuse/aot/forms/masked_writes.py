"""Writes of tensors where a mask says so, by the number that each place has among those."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch import Tensor

from framefuse.aot.forms.registry import Given, form
from framefuse.ir.values import Value

WHOLE = (Ellipsis, slice(None))


def _mask(index: Value) -> Tensor | None:
    """The mask that an index is, with all of what lies behind its dimensions; None where it is none."""
    first, *rest = index if isinstance(index, tuple) and index else (index,)
    if not isinstance(first, Tensor) or first.dtype is not torch.bool or first.dim() == 0:
        return None
    return first if all(isinstance(each, (type(...), slice)) and each in WHOLE for each in rest) else None


def _is_masked(given: Given) -> bool:
    """Whether tensors are written, to all places one, or one to each."""
    input, mask, value = given["input"], _mask(given["index"]), given["value"]
    if mask is None or not isinstance(value, Tensor) or mask.dim() > input.dim():
        return False
    alike = value.dim() == input.dim() - mask.dim() + 1 and value.dtype == input.dtype
    return input.is_cpu and not input.is_complex() and (value.dim() == 0 or alike)


@form(operator.setitem, torch.Tensor.__setitem__, where=_is_masked)
def masked_write(input: Tensor, index: Value, value: Tensor) -> None:
    mask = _mask(index)
    assert mask is not None
    places = mask.reshape(list(mask.shape) + [1] * (input.dim() - mask.dim()))
    if value.dim() == 0:
        input.copy_(torch.where(places, value.to(input.dtype), input))
        return
    count = torch.full([], value.shape[0], dtype=torch.int64)
    torch._assert(((mask.sum() == count) | (count == 1)).all(), "a mask has as many places as there are tensors")
    number = torch.minimum(mask.reshape(-1).to(torch.int64).cumsum(0), count) - 1  # of each place; one is for all
    rows = F.pad(value, [0, 0] * (value.dim() - 1) + [0, 1])  # and one for masks without places
    taken = rows[number.clamp(min=0)].reshape(list(mask.shape) + list(value.shape[1:]))
    input.copy_(torch.where(places, taken, input))
