"""Matrices and grids that are made of the elements of others."""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F
from torch import Tensor

from framefuse.aot.forms.registry import Given, form
from framefuse.ir.values import Value


@form(torch.diag_embed, torch.Tensor.diag_embed)
def diag_embed(input: Tensor, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Tensor:
    size, rank = input.shape[-1] + abs(offset), input.dim() + 1
    places = torch.arange(size)
    on = places.unsqueeze(-1) + offset == places
    shifted = F.pad(input, (abs(offset), 0))  # by row where the diagonal is below, else by column
    held = shifted.unsqueeze(-1) if offset < 0 else shifted.unsqueeze(-2)
    return torch.where(on, held, torch.zeros([], dtype=input.dtype)).movedim((-2, -1), (dim1 % rank, dim2 % rank))


def _is_real(given: Given) -> bool:
    plain = given["layout"] is None and not given["requires_grad"] and given["out"] is None
    ends = not isinstance(given["start"], Tensor) and not isinstance(given["end"], Tensor)
    return plain and ends and given["dtype"] in (None, torch.float32, torch.float64)


@form(torch.linspace, where=_is_real)
def linspace(
    start: Value, end: Value, steps: Value, *, out: Value = None, dtype: Value = None, layout: Value = None,
    device: Value = None, pin_memory: Value = None, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    """From both ends to the middle, so that both are as given."""
    place = torch.arange(steps, dtype=torch.float64)
    step = (end - start) / max(steps - 1, 1)
    found = torch.where(place * 2 < steps, start + step * place, end - step * (steps - 1 - place))
    return found.to(torch.get_default_dtype() if dtype is None else dtype)


@form(torch.block_diag)
def block_diag(*tensors: Tensor) -> Tensor:
    blocks = [tensor if tensor.dim() == 2 else tensor.reshape(1, -1) for tensor in tensors]
    width, before, rows = sum(block.shape[1] for block in blocks), 0, []
    for block in blocks:
        rows.append(F.pad(block, (before, width - before - block.shape[1])))
        before += block.shape[1]
    return torch.cat(rows)


@form(torch.nn.utils.rnn.pad_sequence)
def pad_sequence(
    sequences: Value, batch_first: bool = False, padding_value: float = 0.0, padding_side: str = "right"
) -> Tensor:
    parts = list(sequences)
    longest = max(part.shape[0] for part in parts)
    rows = []
    for part in parts:
        missing = longest - part.shape[0]
        around = (missing, 0) if padding_side == "left" else (0, missing)
        rows.append(F.pad(part, (0, 0) * (part.dim() - 1) + around, value=padding_value))
    return torch.stack(rows, 0 if batch_first else 1)


@form(torch.meshgrid)
def meshgrid(*tensors: Value, indexing: Value = None) -> tuple[Tensor, ...]:
    parts = tensors[0] if len(tensors) == 1 and not isinstance(tensors[0], Tensor) else tensors
    rank = len(parts)
    swapped = indexing == "xy" and rank > 1
    order = [1, 0, *range(2, rank)] if swapped else list(range(rank))
    shape: list[Value] = [1] * rank
    for part, axis in zip(parts, order, strict=True):
        shape[axis] = part.numel()
    placed = []
    for part, axis in zip(parts, order, strict=True):
        own = [1] * rank
        own[axis] = -1
        placed.append(part.reshape(own).expand(shape))
    return tuple(placed)


@form(torch.cartesian_prod)
def cartesian_prod(*tensors: Tensor) -> Tensor:
    if len(tensors) == 1:
        return tensors[0]
    return torch.stack([part.reshape(-1) for part in meshgrid(*tensors)], -1)


@form(torch.combinations)
def combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor:
    """Of so many elements as were recorded."""
    count = range(input.shape[0])
    chosen = list(
        itertools.combinations_with_replacement(count, r) if with_replacement else itertools.combinations(count, r)
    )
    return torch.stack([torch.stack([input[place] for place in places]) for places in chosen])


@form(torch.linalg.vander)
def powers(x: Tensor, *, N: Value = None) -> Tensor:
    """From 0 on, by column."""
    return x.unsqueeze(-1) ** torch.arange(x.shape[-1] if N is None else N)


@form(torch.vander)
def vander(x: Tensor, N: Value = None, increasing: bool = False) -> Tensor:
    """The same, from the highest on where they do not increase."""
    rising = powers(x, N=N)
    return rising if increasing else rising.flip(-1)


@form(F.affine_grid)
def affine_grid(theta: Tensor, size: Value, align_corners: Value = None) -> Tensor:
    """Of places on a picture, or in a volume, under one affine map for each of a batch."""
    places = []
    for count in reversed(size[2:]):
        steps = torch.arange(count, dtype=theta.dtype)
        places.append(
            steps * (2 / max(count - 1, 1)) - (1 if count > 1 else 0) if align_corners else (2 * steps + 1) / count - 1
        )
    rank = len(places)
    shape = [*size[2:], 1]
    parts = []
    for axis, place in enumerate(places):
        own = [1] * (rank + 1)
        own[rank - 1 - axis] = -1
        parts.append(place.reshape(own).expand(shape))
    base = torch.cat([*parts, torch.ones(shape, dtype=theta.dtype)], -1).reshape(1, -1, rank + 1)
    return torch.matmul(base, theta.transpose(1, 2)).reshape([size[0], *size[2:], rank])


def _is_new(given: Given) -> bool:
    """Whether nothing is asked of a new tensor but its sizes and dtype."""
    order = given.get("memory_format") in (None, torch.preserve_format, torch.contiguous_format)
    return order and not any(given.get(name) for name in ("out", "layout", "device", "pin_memory", "requires_grad"))


@form(torch.empty_like, where=_is_new)
def empty_like(
    input: Tensor, *, dtype: Value = None, layout: Value = None, device: Value = None, pin_memory: bool = False,
    requires_grad: bool = False, memory_format: Value = torch.preserve_format,
) -> Tensor:  # fmt: skip
    """Of zeros, as those below."""
    return torch.zeros_like(input, dtype=dtype, memory_format=memory_format)


@form(torch.Tensor.new_empty, where=_is_new)
def new_empty(
    input: Tensor, *size: Value, dtype: Value = None, layout: Value = None, device: Value = None,
    pin_memory: bool = False, requires_grad: bool = False,
) -> Tensor:  # fmt: skip
    return input.new_zeros(*size, dtype=dtype)


@form(torch.empty, where=_is_new)
def empty(
    *size: Value, out: Value = None, dtype: Value = None, layout: Value = None, device: Value = None,
    requires_grad: bool = False, pin_memory: bool = False, memory_format: Value = None,
) -> Tensor:  # fmt: skip
    return torch.zeros(*size, dtype=dtype)
