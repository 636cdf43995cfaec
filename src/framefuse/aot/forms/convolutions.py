"""Convolutions over three dimensions and transposed ones, by those over one and two dimensions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from framefuse.aot.forms.registry import form
from framefuse.ir.values import Function, Value


def _each(value: Value, rank: int) -> list[Value]:
    values = list(value) if isinstance(value, (tuple, list)) else [value]
    return values * rank if len(values) == 1 else values


def _copied(tensor: Tensor) -> Tensor:
    """Row by row, whether it lies so or not: to ask would tell a batch of one from others."""
    return tensor.clone(memory_format=torch.contiguous_format)


@form(F.conv3d)
def conv3d(
    input: Tensor, weight: Tensor, bias: Value = None, stride: Value = 1, padding: Value = 0, dilation: Value = 1,
    groups: int = 1,
) -> Tensor:  # fmt: skip
    """The sum over the taps along the depth, each a convolution of pictures."""
    alone = input.dim() == 4
    if alone:
        input = input.unsqueeze(0)
    taps = weight.shape[2]
    strides, holes = _each(stride, 3), _each(dilation, 3)
    if padding == "same":
        reach = holes[0] * (taps - 1)
        before, behind = reach // 2, reach - reach // 2
        around: Value = "same"
    else:
        pads = [0, 0, 0] if padding == "valid" else _each(padding, 3)
        before, behind, around = pads[0], pads[0], pads[1:]
    if before or behind:
        input = F.pad(input, (0, 0, 0, 0, before, behind))
    deep = (input.shape[2] - holes[0] * (taps - 1) - 1) // strides[0] + 1
    total = None
    for tap in range(taps):
        start = tap * holes[0]
        layers = input[:, :, start : start + (deep - 1) * strides[0] + 1 : strides[0]]
        pictures = _copied(layers.transpose(1, 2)).flatten(0, 1)
        part = F.conv2d(pictures, weight[:, :, tap].contiguous(), None, strides[1:], around, holes[1:], groups)
        total = part if total is None else total + part
    assert total is not None
    if bias is not None:
        total = total + bias.reshape(1, -1, 1, 1)
    result = total.unflatten(0, (input.shape[0], deep)).transpose(1, 2)
    return _copied(result.squeeze(0) if alone else result)


CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: conv3d}


def _transposed(
    rank: int, input: Tensor, weight: Tensor, bias: Value, stride: Value, padding: Value, more: Value, groups: int,
    dilation: Value,
) -> Tensor:  # fmt: skip
    """A convolution of the input with zeros between its elements, by the weight turned round."""
    alone = input.dim() == rank + 1
    if alone:
        input = input.unsqueeze(0)
    strides, pads, mores, holes = (_each(value, rank) for value in (stride, padding, more, dilation))
    borders: list[Value] = []
    for place in range(rank):
        dim, step = 2 + place, strides[place]
        if step > 1:
            size = input.shape[dim]
            spread = F.pad(input.unsqueeze(dim + 1), (0, 0) * (rank - 1 - place) + (0, step - 1))
            input = spread.flatten(dim, dim + 1).narrow(dim, 0, (size - 1) * step + 1)
        reach = holes[place] * (weight.shape[dim] - 1) - pads[place]
        borders = [reach, reach + mores[place], *borders]
        if reach < 0:
            input = input[(slice(None),) * dim + (slice(-reach, None),)]
        if reach + mores[place] < 0:
            input = input[(slice(None),) * dim + (slice(None, reach + mores[place]),)]
    borders = [max(border, 0) for border in borders]
    if any(borders):
        input = F.pad(input, borders)
    window = weight.shape[2:]
    turned = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], *window).transpose(1, 2)
    turned = turned.reshape(groups * weight.shape[1], weight.shape[0] // groups, *window)
    turned = turned.flip(list(range(2, 2 + rank))).contiguous()
    result = CONVOLUTIONS[rank](input.contiguous(), turned, bias, 1, 0, holes, groups)
    return result.squeeze(0) if alone else result


def _transposed_of(rank: int) -> Function:
    def transposed(
        input: Tensor, weight: Tensor, bias: Value = None, stride: Value = 1, padding: Value = 0,
        output_padding: Value = 0, groups: int = 1, dilation: Value = 1,
    ) -> Tensor:  # fmt: skip
        return _transposed(rank, input, weight, bias, stride, padding, output_padding, groups, dilation)

    return transposed


for _rank, _function in enumerate((F.conv_transpose1d, F.conv_transpose2d, F.conv_transpose3d), 1):
    form(_function)(_transposed_of(_rank))
