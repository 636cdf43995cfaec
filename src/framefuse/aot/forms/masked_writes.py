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


def _fits(input: Tensor, mask: Tensor | None, value: Value) -> bool:
    """Whether tensors can be written where a mask says so: one to all places, or one to each."""
    if mask is None or not isinstance(value, Tensor) or mask.dim() > input.dim():
        return False
    rest = input.dim() - mask.dim()
    alike = value.dim() == rest + 1 and value.dtype == input.dtype
    return input.is_cpu and not input.is_complex() and (value.dim() <= rest or alike)


def _is_masked(given: Given) -> bool:
    return _fits(given["input"], _mask(given["index"]), given["value"])


def _terms(input: Tensor, mask: Tensor, value: Tensor) -> Tensor:
    """What each place takes if the mask says so."""
    if value.dim() <= input.dim() - mask.dim():
        return value.to(input.dtype)
    count = torch.full([], value.shape[0], dtype=torch.int64)
    torch._assert(((mask.sum() == count) | (count == 1)).all(), "a mask has as many places as there are tensors")
    number = torch.minimum(mask.reshape(-1).to(torch.int64).cumsum(0), count) - 1  # of each place; one is for all
    rows = F.pad(value, [0, 0] * (value.dim() - 1) + [0, 1])  # and one for masks without places
    return rows[number.clamp(min=0)].reshape(list(mask.shape) + list(value.shape[1:]))


def _places(input: Tensor, mask: Tensor) -> Tensor:
    return mask.reshape(list(mask.shape) + [1] * (input.dim() - mask.dim()))


@form(operator.setitem, torch.Tensor.__setitem__, where=_is_masked)
def masked_write(input: Tensor, index: Value, value: Tensor) -> None:
    mask = _mask(index)
    assert mask is not None
    input.copy_(torch.where(_places(input, mask), _terms(input, mask, value), input))


def is_put_by_mask(given: Given) -> bool:
    """Whether ``index_put`` writes, or adds, where one mask says so."""
    input, indices, values = given["input"], given["indices"], given["values"]
    if len(indices) != 1 or values.dtype != input.dtype or (given["accumulate"] and input.dtype is torch.bool):
        return False
    return _fits(input, _mask(indices[0]), values)


def put_by_mask(input: Tensor, mask: Tensor, values: Tensor, accumulate: bool) -> Tensor:
    """``input`` with values in place of its own, or added to these, where the mask says so."""
    terms = _terms(input, mask, values)
    return torch.where(_places(input, mask), input + terms if accumulate else terms, input)
