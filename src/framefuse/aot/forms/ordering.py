"""What orders elements, by one stable sort."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from framefuse.aot.forms.registry import Given, form
from framefuse.ir.values import Value


def _sorted(input: Tensor, dim: int, descending: bool) -> tuple[Tensor, Tensor]:
    values, places = torch.sort(input, dim=dim, descending=descending, stable=True)
    return values, places


@form(torch.argsort, torch.Tensor.argsort)
def argsort(input: Tensor, dim: int = -1, descending: bool = False, stable: bool = False) -> Tensor:
    return _sorted(input, dim, descending)[1]


@form(torch.msort, torch.Tensor.msort)
def msort(input: Tensor) -> Tensor:
    return _sorted(input, 0, False)[0]


class Placed(NamedTuple):
    """Elements and where they were."""

    values: Tensor
    indices: Tensor


def _at(input: Tensor, place: Value, dim: int, keepdim: bool, missing: bool) -> Placed:
    """The element at a place in the order; where one is ``missing``, not a number if any is not."""
    values, places = _sorted(input, dim, False)
    values, places = values.narrow(dim, place, 1), places.narrow(dim, place, 1)
    if missing and input.dtype.is_floating_point:
        strange = torch.isnan(input)
        some = strange.any(dim, keepdim=True)
        values = torch.where(some, torch.nan, values)
        places = torch.where(some, strange.to(torch.uint8).argmax(dim, keepdim=True), places)
    return Placed(values, places) if keepdim else Placed(values.squeeze(dim), places.squeeze(dim))


@form(torch.kthvalue, torch.Tensor.kthvalue)
def kthvalue(input: Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Placed:
    return _at(input, k - 1, dim, keepdim, False)


@form(torch.median, torch.Tensor.median)
def median(input: Tensor, dim: Value = None, keepdim: bool = False) -> Value:
    if dim is None:
        flat = input.reshape(-1)
        return _at(flat, (flat.shape[0] - 1) // 2, 0, False, True).values
    return _at(input, (input.shape[dim] - 1) // 2, dim, keepdim, True)


MEETING = ("linear", "lower", "higher", "nearest", "midpoint")  # how elements beside a quantile make it


def _is_between(given: Given) -> bool:
    q = given["q"]
    known = q.dtype is given["input"].dtype and q.dim() < 2 if isinstance(q, Tensor) else 0 <= q <= 1
    return known and given["interpolation"] in MEETING


def _quantiles(
    input: Tensor, q: Value, dim: Value, keepdim: bool, interpolation: str, skips: bool
) -> Tensor:  # fmt: skip
    """Between the two nearest elements of each line, those that are no number left out where it ``skips`` them."""
    values = _sorted(input.reshape(-1) if dim is None else input.movedim(dim, -1), -1, False)[0]
    strange = torch.isnan(values)
    wanted = q.reshape(-1) if isinstance(q, Tensor) else torch.full([1], q, dtype=values.dtype)
    if skips:
        last = (~strange).sum(-1, keepdim=True) - 1
        missing, at = last < 0, wanted * last.clamp(min=0)
    else:
        missing = strange.any(-1, keepdim=True)
        at = (wanted * (values.shape[-1] - 1)).expand([*values.shape[:-1], wanted.shape[0]])
    if interpolation == "nearest":
        at = at.round()
    low, high = at.floor(), at.ceil()
    below, above = torch.gather(values, -1, low.to(torch.int64)), torch.gather(values, -1, high.to(torch.int64))
    if interpolation in ("linear", "midpoint"):
        below = torch.lerp(below, above, at - low if interpolation == "linear" else torch.full_like(below, 0.5))
    result = torch.where(missing, torch.nan, above if interpolation == "higher" else below).movedim(-1, 0)
    if keepdim:
        result = result.reshape([-1] + [1] * input.dim()) if dim is None else result.unsqueeze(dim % input.dim() + 1)
    return result if isinstance(q, Tensor) and q.dim() else result.squeeze(0)


@form(torch.quantile, torch.Tensor.quantile, where=_is_between)
def quantile(
    input: Tensor, q: Value, dim: Value = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    return _quantiles(input, q, dim, keepdim, interpolation, False)


@form(torch.nanquantile, torch.Tensor.nanquantile, where=_is_between)
def nanquantile(
    input: Tensor, q: Value, dim: Value = None, keepdim: bool = False, *, interpolation: str = "linear"
) -> Tensor:
    return _quantiles(input, q, dim, keepdim, interpolation, True)


def _is_among_sorted(given: Given) -> bool:
    return given["sorter"] is None and isinstance(given["input"], Tensor)


@form(torch.searchsorted, where=_is_among_sorted)
def searchsorted(
    sorted_sequence: Tensor, input: Value, *, out_int32: bool = False, right: bool = False, side: Value = None,
    sorter: Value = None,
) -> Tensor:  # fmt: skip
    """How many elements are below each value."""
    each = input.unsqueeze(-1)
    among = sorted_sequence if sorted_sequence.dim() == 1 else sorted_sequence.unsqueeze(-2)
    below = among <= each if right or side == "right" else among < each
    count: Tensor = below.sum(-1)
    return count.to(torch.int32 if out_int32 else torch.int64)


@form(torch.bucketize, where=lambda given: isinstance(given["input"], Tensor))
def bucketize(input: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False) -> Tensor:
    return searchsorted(boundaries, input, out_int32=out_int32, right=right)


@form(torch.unique, torch.Tensor.unique, where=lambda given: given["dim"] is None)
def unique(
    input: Tensor, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False, dim: Value = None
) -> Value:  # fmt: skip
    """The first ones of those that are equal, in order."""
    values, places = _sorted(input.reshape(-1), 0, False)
    return _runs(values, places, list(input.shape), return_inverse, return_counts)


@form(torch.unique_consecutive, torch.Tensor.unique_consecutive, where=lambda given: given["dim"] is None)
def unique_consecutive(
    input: Tensor, return_inverse: bool = False, return_counts: bool = False, dim: Value = None
) -> Value:  # fmt: skip
    return _runs(input.reshape(-1), None, list(input.shape), return_inverse, return_counts)


def _runs(values: Tensor, places: Value, shape: list[Value], inverse: bool, counts: bool) -> Value:
    """The first value of each run of equal ones; of which run each element is, and how many each has."""
    starts = torch.cat([torch.ones([1], dtype=torch.bool), values[1:] != values[:-1]])
    runs = torch.cumsum(starts, 0) - 1
    results = [values[starts]]
    if inverse:
        whole = runs if places is None else torch.zeros_like(places).scatter(0, places, runs)
        results.append(whole.reshape(shape))
    if counts:
        none = torch.zeros_like(results[0], dtype=torch.int64)
        results.append(none.scatter_add(0, runs, torch.ones_like(runs)))
    return results[0] if len(results) == 1 else tuple(results)
