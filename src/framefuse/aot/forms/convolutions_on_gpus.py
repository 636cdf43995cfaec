"""Convolutions as products with what their windows show, for programs on a GPU: cuBLAS multiplies, and nothing else."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from framefuse.aot.forms.convolutions import _each
from framefuse.aot.forms.registry import ON_GPU, form
from framefuse.ir.values import Value


def _padded(input: Tensor, window: list[int], padding: Value, holes: list[int]) -> Tensor:
    borders: list[int] = []
    pads = _each(0 if isinstance(padding, str) else padding, len(window))
    for pad, size, hole in zip(pads, window, holes, strict=True):
        reach = hole * (size - 1) if padding == "same" else 2 * pad
        borders = [reach // 2, reach - reach // 2, *borders]
    return F.pad(input, borders) if any(borders) else input


def _taps(input: Tensor, weight: Tensor, strides: list[int], holes: list[int]) -> Tensor:
    """A filter for each channel: the sum over its taps, each times the picture from there on."""
    rank = weight.dim() - 2
    window = list(weight.shape[2:])
    wide = input.dtype in (torch.bfloat16, torch.float16)
    filters = weight.float() if wide else weight
    total: Value = None
    for tap in range(weight[0, 0].numel()):
        part, left, filter = input, tap, filters[:, 0]
        for place in reversed(range(rank)):
            at = left % window[place]
            left = left // window[place]
            filter = filter.select(1 + place, at)
            step, start = strides[place], at * holes[place]
            last = (input.shape[2 + place] - holes[place] * (window[place] - 1) - 1) // step * step
            part = part[(slice(None),) * (2 + place) + (slice(start, start + last + 1, step),)]
        term = (part.float() if wide else part) * filter.reshape(1, -1, *([1] * rank))
        total = term if total is None else total + term
    result: Tensor = total.to(input.dtype)
    return result


def _windows(input: Tensor, weight: Tensor, strides: list[int], holes: list[int]) -> Tensor:
    """What each window shows, as (batch, channels, taps..., places...)."""
    rank = weight.dim() - 2
    for place in range(rank):
        size, hole = weight.shape[2 + place], holes[place]
        input = input.unfold(2 + place, hole * (size - 1) + 1, strides[place])
        if hole > 1:
            input = input[..., ::hole]
    return input.permute(0, 1, *range(2 + rank, 2 + 2 * rank), *range(2, 2 + rank))


def convolution(
    input: Tensor, weight: Tensor, bias: Value = None, stride: Value = 1, padding: Value = 0, dilation: Value = 1,
    groups: int = 1,
) -> Tensor:  # fmt: skip
    rank = weight.dim() - 2
    alone = input.dim() == rank + 1
    if alone:
        input = input.unsqueeze(0)
    strides, holes, window = _each(stride, rank), _each(dilation, rank), list(weight.shape[2:])
    input = _padded(input, window, padding, holes)
    batch, filters = input.shape[0], weight.shape[0]
    if groups == input.shape[1] == filters:
        result = _taps(input, weight, strides, holes)
    else:
        shown = _windows(input, weight, strides, holes)
        places = list(shown.shape[2 + rank :])
        terms = weight[0].numel()
        if groups == 1:
            columns = shown.reshape(batch, terms, -1)
            result = torch.matmul(weight.reshape(filters, terms), columns).reshape(batch, filters, *places)
        else:
            apart = shown.unflatten(1, (groups, -1)).transpose(0, 1).flatten(2, 2 + rank).transpose(1, 2)
            columns = apart.reshape(groups, terms, -1)
            result = torch.matmul(weight.reshape(groups, filters // groups, terms), columns)
            result = result.reshape(filters, batch, *places).transpose(0, 1)
    if bias is not None:
        result = result + bias.reshape(1, -1, *([1] * rank))
    return result.squeeze(0) if alone else result.contiguous()


form(F.conv1d, F.conv2d, torch.ops.aten.conv1d.default, torch.ops.aten.conv2d.default, table=ON_GPU)(convolution)
