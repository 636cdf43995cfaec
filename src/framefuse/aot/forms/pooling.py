"""Adaptive pooling, one dimension after the other: which elements belong to which result is a matrix."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from framefuse.aot.forms.registry import Given, form
from framefuse.ir.values import Function, Value


def _sizes(output_size: Value, rank: int) -> list[Value]:
    return list(output_size) if isinstance(output_size, (tuple, list)) else [output_size] * rank


def _belongs(size: Value, count: Value) -> Tensor:
    """Of each result the elements that it is made of."""
    result, place = torch.arange(count).unsqueeze(1), torch.arange(size)
    begin, end = result * size // count, ((result + 1) * size + count - 1) // count
    return torch.logical_and(place >= begin, place < end)


def _average(input: Tensor, output_size: Value, rank: int) -> Tensor:
    for dim, count in enumerate(_sizes(output_size, rank)):
        axis = dim - rank
        if count == 1:
            input = input.mean(axis, keepdim=True)
        elif count is not None and count != input.shape[axis]:
            member = _belongs(input.shape[axis], count).to(input.dtype)
            weight = member / member.sum(1, keepdim=True)
            input = (input.transpose(axis, -1) @ weight.transpose(0, 1)).transpose(axis, -1)
    return input


def _is_unplaced(given: Given) -> bool:
    return not given["return_indices"]


def _largest(input: Tensor, output_size: Value, rank: int) -> Tensor:
    for dim, count in enumerate(_sizes(output_size, rank)):
        axis = dim - rank
        if count == 1:
            input = input.amax(axis, keepdim=True)
        elif count is not None and count != input.shape[axis]:
            member = _belongs(input.shape[axis], count)
            among = torch.where(member, input.transpose(axis, -1).unsqueeze(-2), -math.inf)
            input = among.amax(-1).transpose(axis, -1)
    return input


def _average_of(rank: int) -> Function:
    def average(input: Tensor, output_size: Value) -> Tensor:
        return _average(input, output_size, rank)

    return average


def _largest_of(rank: int) -> Function:
    def largest(input: Tensor, output_size: Value, return_indices: bool = False) -> Tensor:
        return _largest(input, output_size, rank)

    return largest


form(F.adaptive_avg_pool1d, torch.adaptive_avg_pool1d)(_average_of(1))
form(F.adaptive_avg_pool2d, torch._C._nn.adaptive_avg_pool2d)(_average_of(2))
form(F.adaptive_avg_pool3d, torch._C._nn.adaptive_avg_pool3d)(_average_of(3))
for _rank, _function in enumerate((F.adaptive_max_pool1d, F.adaptive_max_pool2d, F.adaptive_max_pool3d), 1):
    form(_function, where=_is_unplaced)(_largest_of(_rank))
