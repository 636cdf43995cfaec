"""Writes at positions, sums and values, by one write at positions along a dimension."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from framefuse.aot.forms.masked_writes import is_put_by_mask, put_by_mask
from framefuse.aot.forms.registry import Given, form
from framefuse.ir.values import Function, Value


@form(torch.index_add, torch.Tensor.index_add)
def index_add(input: Tensor, dim: int, index: Tensor, source: Tensor, *, alpha: Value = 1) -> Tensor:
    terms = source if alpha == 1 else source * alpha
    return input.scatter_add(dim, _along(source, dim, index, source), terms)


def _is_written(given: Given) -> bool:
    return given["reduce"] is None and not isinstance(given["src"], Tensor)


@form(torch.scatter, torch.Tensor.scatter, where=_is_written)
def scatter(
    input: Tensor, dim: int, index: Tensor, src: Value = 0, *, value: Value = None, reduce: Value = None
) -> Tensor:  # fmt: skip
    """Of a number."""
    number = src if value is None else value
    return torch.scatter(input, dim, index, torch.full(index.shape, number, dtype=input.dtype))


LEAST_AND_MOST = {"amax": (-torch.inf, "min"), "amin": (torch.inf, "max")}


def _is_reduced(given: Given) -> bool:
    direct = given["reduce"] in LEAST_AND_MOST and given["include_self"] is True
    return given["reduce"] in ("sum", "mean", "amax", "amin") and not direct


@form(torch.scatter_reduce, torch.Tensor.scatter_reduce, where=_is_reduced)
def scatter_reduce(
    input: Tensor, dim: int, index: Tensor, src: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:  # fmt: skip
    """Elements that no term meets are as they were."""
    count = None
    if reduce == "mean" or not include_self:
        count = torch.zeros_like(input).scatter_add(dim, index, torch.ones_like(src))
    start = input
    if count is not None and not include_self:
        least, kind = LEAST_AND_MOST.get(reduce, (0, ""))
        if kind and not input.dtype.is_floating_point:
            least = getattr(torch.iinfo(input.dtype), kind)
        start = torch.where(count > 0, torch.full_like(input, least), input)
    if reduce in LEAST_AND_MOST:
        return torch.scatter_reduce(start, dim, index, src, reduce)
    total = start.scatter_add(dim, index, src)
    if reduce == "sum" or count is None:
        return total
    terms = count + 1 if include_self else count.clamp(min=1)
    return total / terms if input.dtype.is_floating_point else total.div(terms, rounding_mode="floor").to(input.dtype)


def _along(input: Tensor, dim: int, index: Tensor, like: Tensor) -> Tensor:
    """Positions along a dimension for all elements of ``like``."""
    shape = [1] * input.dim()
    shape[dim] = -1
    return index.to(torch.int64).reshape(shape).expand(like.shape)


@form(torch.index_copy, torch.Tensor.index_copy)
def index_copy(input: Tensor, dim: int, index: Tensor, source: Tensor) -> Tensor:
    return torch.scatter(input, dim, _along(input, dim, index, source), source)


@form(torch.index_fill, torch.Tensor.index_fill)
def index_fill(input: Tensor, dim: int, index: Tensor, value: Value) -> Tensor:
    size = input.shape[dim]
    place = torch.where(index < 0, index + size, index).to(torch.int64).reshape(-1)
    counts = torch.zeros([size], dtype=torch.int64).scatter_add(0, place, torch.ones_like(place))
    shape = [1] * input.dim()
    shape[dim] = -1
    filled = value.to(input.dtype) if isinstance(value, Tensor) else torch.full([], value, dtype=input.dtype)
    return torch.where(counts.reshape(shape) > 0, filled, input)


@form(
    torch.index_reduce, torch.Tensor.index_reduce, where=lambda given: given["reduce"] in ("mean", "amax", "amin")
)
def index_reduce(
    input: Tensor, dim: int, index: Tensor, source: Tensor, reduce: str, *, include_self: bool = True
) -> Tensor:  # fmt: skip
    return scatter_reduce(input, dim, _along(source, dim, index, source), source, reduce, include_self=include_self)


@form(torch.Tensor.put)
def put(input: Tensor, index: Tensor, source: Tensor, accumulate: bool = False) -> Tensor:
    """At places of the tensor as one row, which count from either end."""
    row, place = input.reshape(-1), index.reshape(-1)
    place = torch.where(place < 0, place + row.shape[0], place)
    values = source.reshape(-1)
    written = row.scatter_add(0, place, values) if accumulate else torch.scatter(row, 0, place, values)
    return written.reshape(input.shape)


@form(torch.masked_scatter, torch.Tensor.masked_scatter)
def masked_scatter(input: Tensor, mask: Tensor, source: Tensor) -> Tensor:
    input, mask = torch.broadcast_tensors(input, mask)
    place = mask.reshape(-1).to(torch.int64).cumsum(0) - 1
    taken = torch.gather(source.reshape(-1), 0, place.clamp(min=0)).reshape(input.shape)
    return torch.where(mask, taken, input)


@form(torch.histc, torch.Tensor.histc, where=lambda given: given["min"] < given["max"])
def histc(input: Tensor, bins: int = 100, min: Value = 0, max: Value = 0) -> Tensor:
    """Of numbers between two that are given."""
    values = input.reshape(-1)
    inside = (values >= min) & (values <= max)
    place = ((values - min) * bins / (max - min)).to(torch.int64).clamp(0, bins - 1)
    return torch.zeros([bins], dtype=input.dtype).scatter_add(0, torch.where(inside, place, 0), inside.to(input.dtype))


@form(torch.isin, where=lambda given: all(isinstance(given[each], Tensor) for each in ("elements", "test_elements")))
def isin(elements: Tensor, test_elements: Tensor, *, assume_unique: bool = False, invert: bool = False) -> Tensor:
    found = (elements.unsqueeze(-1) == test_elements.reshape(-1)).any(-1)
    return ~found if invert else found


def _in_place(name: str) -> Function:
    """The same, written into the tensor itself."""

    def write(input: Tensor, *args: Value, **kwargs: Value) -> Tensor:
        return input.copy_(getattr(input, name)(*args, **kwargs))

    return write


for _name in (
    "scatter", "scatter_add", "scatter_reduce", "index_add", "index_copy", "index_fill", "index_reduce",
    "masked_scatter", "put",
):  # fmt: skip
    form(getattr(torch.Tensor, f"{_name}_"))(_in_place(_name))


def _adds(given: Given) -> bool:
    """Whether a write at positions adds: others are kernels. A mask says how many there are as it is read."""
    known = all(index is not None and index.dtype in (torch.int64, torch.int32) for index in given["indices"])
    return bool(given["accumulate"]) and known


@form(torch.index_put, torch.Tensor.index_put, where=lambda given: _adds(given) or is_put_by_mask(given))
def index_put(input: Tensor, indices: Value, values: Tensor, accumulate: bool = False) -> Tensor:
    """At integers in the first dimensions, or in all of them; or where one mask says so."""
    if indices[0].dtype is torch.bool:
        return put_by_mask(input, indices[0], values, accumulate)
    indices = torch.broadcast_tensors(*indices)
    at = None
    for dim, index in enumerate(indices):
        place = torch.where(index < 0, index + input.shape[dim], index).to(torch.int64)
        at = place if at is None else at * input.shape[dim] + place
    assert at is not None
    rest = list(input.shape[len(indices) :])
    terms = values.expand(list(at.shape) + rest).reshape([-1, *rest])
    whole = input.reshape([-1, *rest])
    return index_add(whole, 0, at.reshape(-1), terms).reshape(input.shape)


@form(F.one_hot, where=lambda given: given["num_classes"] >= 0)
def one_hot(tensor: Tensor, num_classes: int = -1) -> Tensor:
    zeros = torch.zeros(*tensor.shape, num_classes, dtype=torch.int64)
    return zeros.scatter_add(-1, tensor.unsqueeze(-1), torch.ones_like(tensor).unsqueeze(-1))
