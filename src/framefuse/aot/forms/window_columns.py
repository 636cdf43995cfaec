"""Windows of pictures as columns and back, by parts of the picture with its border."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from framefuse.aot.forms.registry import form
from framefuse.ir.values import Value


def _pair(value: Value) -> list[Value]:
    return list(value) if isinstance(value, (tuple, list)) else [value, value]


@form(F.unfold)
def unfold(input: Tensor, kernel_size: Value, dilation: Value = 1, padding: Value = 0, stride: Value = 1) -> Tensor:
    alone = input.dim() == 3
    if alone:
        input = input.unsqueeze(0)
    (high, wide), holes, pads, steps = map(_pair, (kernel_size, dilation, padding, stride))
    if pads[0] or pads[1]:
        input = F.pad(input, (pads[1], pads[1], pads[0], pads[0]))
    rows = (input.shape[2] - holes[0] * (high - 1) - 1) // steps[0] + 1
    columns = (input.shape[3] - holes[1] * (wide - 1) - 1) // steps[1] + 1
    parts = [
        input[
            :,
            :,
            h * holes[0] : h * holes[0] + (rows - 1) * steps[0] + 1 : steps[0],
            w * holes[1] : w * holes[1] + (columns - 1) * steps[1] + 1 : steps[1],
        ]
        for h in range(high)
        for w in range(wide)
    ]
    result = torch.stack(parts, 2).reshape(input.shape[0], -1, rows * columns)
    return result.squeeze(0) if alone else result


@form(F.fold)
def fold(
    input: Tensor, output_size: Value, kernel_size: Value, dilation: Value = 1, padding: Value = 0, stride: Value = 1
) -> Tensor:
    alone = input.dim() == 2
    if alone:
        input = input.unsqueeze(0)
    sizes, (high, wide), holes, pads, steps = map(_pair, (output_size, kernel_size, dilation, padding, stride))
    whole = [sizes[d] + 2 * pads[d] for d in range(2)]
    rows = (whole[0] - holes[0] * (high - 1) - 1) // steps[0] + 1
    columns = (whole[1] - holes[1] * (wide - 1) - 1) // steps[1] + 1
    parts = input.reshape(input.shape[0], -1, high, wide, rows, columns)
    total = None
    for h in range(high):
        for w in range(wide):
            part = parts[:, :, h, w]
            if steps[0] > 1 or steps[1] > 1:
                part = F.pad(part.unsqueeze(3).unsqueeze(5), (0, steps[1] - 1, 0, 0, 0, steps[0] - 1))
                part = part.flatten(4, 5).flatten(2, 3)
                part = part[:, :, : (rows - 1) * steps[0] + 1, : (columns - 1) * steps[1] + 1]
            top, left = h * holes[0], w * holes[1]
            part = F.pad(part, (left, whole[1] - left - part.shape[3], top, whole[0] - top - part.shape[2]))
            total = part if total is None else total + part
    assert total is not None
    result = total[:, :, pads[0] : pads[0] + sizes[0], pads[1] : pads[1] + sizes[1]].contiguous()
    return result.squeeze(0) if alone else result
