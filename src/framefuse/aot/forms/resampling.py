"""Interpolation, one dimension after the other, by positions in it and the weights of neighbours."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from framefuse.aot.forms.registry import Given, form, walked
from framefuse.ir.values import Function, Value

CUBIC = -0.75  # the constant of torch's cubic convolution

walked(F.interpolate, F.upsample)


def _sizes(input: Tensor, output_size: Value, scales: Value) -> list[Value]:
    """Of the result along each dimension that is resampled."""
    if output_size is not None:
        return list(output_size)
    sizes = input.shape[2:]
    return [
        size * int(scale) if scale == int(scale) else math.floor(size * scale)
        for size, scale in zip(sizes, scales, strict=True)
    ]


def _steps(input: Tensor, sizes: list[Value], scales: Value, aligned: bool) -> list[Value]:
    """How far apart the places of neighbouring results lie in the input."""
    steps: list[Value] = []
    for place, size in enumerate(sizes):
        whole = input.shape[2 + place]
        if aligned:
            steps.append((whole - 1) / (size - 1) if size > 1 else 0.0)
        elif scales is not None and scales[place] is not None and scales[place] > 0:
            steps.append(1.0 / scales[place])
        else:
            steps.append(whole / size)
    return steps


def _along(weight: Tensor, input: Tensor, dim: int) -> Tensor:
    return weight.to(input.dtype).reshape([-1] + [1] * (input.dim() - 1 - dim))


def _nearest(input: Tensor, output_size: Value, scales: Value, shift: float) -> Tensor:
    sizes = _sizes(input, output_size, scales)
    steps = _steps(input, sizes, scales, False)
    for place, (size, step) in enumerate(zip(sizes, steps, strict=True)):
        at = ((torch.arange(size, dtype=torch.float32) + shift) * step).floor().to(torch.int64)
        input = input.index_select(2 + place, at.clamp(max=input.shape[2 + place] - 1))
    return input


def _separably(input: Tensor, output_size: Value, aligned: bool, scales: Value, resample: Function) -> Tensor:
    """``resample(values, dimension, places)`` along one dimension after the other; 16-bit floats as 32-bit ones."""
    sizes = _sizes(input, output_size, scales)
    wide = input if input.dtype is torch.float64 else input.to(torch.float32)
    for place, (size, step) in enumerate(zip(sizes, _steps(input, sizes, scales, aligned), strict=True)):
        at = torch.arange(size, dtype=wide.dtype)
        wide = resample(wide, 2 + place, at * step if aligned else (at + 0.5) * step - 0.5)
    return wide.to(input.dtype)


def _linearly(values: Tensor, dim: int, at: Tensor) -> Tensor:
    """By the two neighbours of each place; before the first element there is the first."""
    last = values.shape[dim] - 1
    at = at.clamp(min=0)
    before = at.floor().to(torch.int64).clamp(max=last)
    behind = (before + 1).clamp(max=last)
    weight = _along((at - before).clamp(0, 1), values, dim)
    return values.index_select(dim, before) * (1 - weight) + values.index_select(dim, behind) * weight


def _cubic_near(x: Tensor) -> Tensor:
    return ((CUBIC + 2) * x - (CUBIC + 3)) * x * x + 1


def _cubic_far(x: Tensor) -> Tensor:
    return ((CUBIC * x - 5 * CUBIC) * x + 8 * CUBIC) * x - 4 * CUBIC


def _cubically(values: Tensor, dim: int, at: Tensor) -> Tensor:
    """By the four neighbours of each place (cubic convolution: Keys, 1981), with the border repeated."""
    last, whole = values.shape[dim] - 1, at.floor()
    part, first = at - whole, whole.to(torch.int64)
    weights = [_cubic_far(part + 1), _cubic_near(part), _cubic_near(1 - part), _cubic_far(2 - part)]
    taps = [
        values.index_select(dim, (first + number - 1).clamp(0, last)) * _along(weight, values, dim)
        for number, weight in enumerate(weights)
    ]
    return taps[0] + taps[1] + taps[2] + taps[3]


@form(torch._C._nn.upsample_nearest1d, torch._C._nn.upsample_nearest2d, torch._C._nn.upsample_nearest3d)
def nearest(input: Tensor, output_size: Value, scale_factors: Value = None) -> Tensor:
    return _nearest(input, output_size, scale_factors, 0.0)


@form(
    torch._C._nn._upsample_nearest_exact1d,
    torch._C._nn._upsample_nearest_exact2d,
    torch._C._nn._upsample_nearest_exact3d,
)
def nearest_exact(input: Tensor, output_size: Value, scale_factors: Value = None) -> Tensor:
    return _nearest(input, output_size, scale_factors, 0.5)


@form(torch._C._nn.upsample_linear1d, torch._C._nn.upsample_bilinear2d, torch._C._nn.upsample_trilinear3d)
def linear(input: Tensor, output_size: Value, align_corners: bool, scale_factors: Value = None) -> Tensor:
    return _separably(input, output_size, align_corners, scale_factors, _linearly)


@form(torch._C._nn.upsample_bicubic2d)
def cubic(input: Tensor, output_size: Value, align_corners: bool, scale_factors: Value = None) -> Tensor:
    return _separably(input, output_size, align_corners, scale_factors, _cubically)


def _smoothly(input: Tensor, output_size: Value, aligned: bool, scales: Value, weigh: Function, reach: int) -> Tensor:
    """By all elements within a filter, which is as wide as what it makes one of: products with its weights."""
    sizes = _sizes(input, output_size, scales)
    wide = input if input.dtype is torch.float64 else input.to(torch.float32)
    for dim, (size, step) in enumerate(zip(sizes, _steps(input, sizes, scales, aligned), strict=True), 2):
        narrow = 1 / max(step, 1.0)
        centre = ((torch.arange(size, dtype=torch.float64) + 0.5) * step).unsqueeze(-1)
        at = torch.arange(wide.shape[dim], dtype=torch.float64)
        least = (centre - reach / narrow + 0.5).clamp(min=0).floor()
        weights = weigh(((at - centre + 0.5) * narrow).abs())
        weights = torch.where((at >= least) & (at < (centre + reach / narrow + 0.5).floor()), weights, 0.0)
        weights = (weights / weights.sum(-1, keepdim=True)).to(wide.dtype)
        wide = torch.matmul(wide.movedim(dim, -1), weights.mT).movedim(-1, dim)
    return wide.to(input.dtype)


def _is_real(given: Given) -> bool:
    return bool(given["input"].dtype.is_floating_point)


@form(torch._C._nn._upsample_bilinear2d_aa, where=_is_real)
def smooth_linear(input: Tensor, output_size: Value, align_corners: bool, scale_factors: Value = None) -> Tensor:
    return _smoothly(input, output_size, align_corners, scale_factors, lambda x: (1 - x).clamp(min=0), 1)


@form(torch._C._nn._upsample_bicubic2d_aa, where=_is_real)
def smooth_cubic(input: Tensor, output_size: Value, align_corners: bool, scale_factors: Value = None) -> Tensor:
    """With the constant of pictures, -0.5."""

    def weigh(x: Tensor) -> Tensor:
        near, far = (1.5 * x - 2.5) * x * x + 1, ((-0.5 * x + 2.5) * x - 4) * x + 2
        return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))

    return _smoothly(input, output_size, align_corners, scale_factors, weigh, 2)


def _is_flat(given: Given) -> bool:
    return given["input"].dim() == 4 and given["mode"] not in ("bicubic", 2)


@form(F.grid_sample, torch.grid_sampler, where=_is_flat)
def grid_sample(
    input: Tensor, grid: Tensor, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: Value = None
) -> Tensor:
    """Of two dimensions, with modes as texts or as torch's numbers."""
    places = [
        _place(grid[..., dim], input.shape[3 - dim], padding_mode in ("border", 1), padding_mode in ("reflection", 2),
               bool(align_corners))
        for dim in range(2)
    ]  # fmt: skip
    if mode in ("nearest", 1):
        return _read(input, places[1].round(), places[0].round())
    left, top = places[0].floor(), places[1].floor()
    across, down = (places[0] - left).unsqueeze(1), (places[1] - top).unsqueeze(1)
    return (
        _read(input, top, left) * (1 - down) * (1 - across)
        + _read(input, top, left + 1) * (1 - down) * across
        + _read(input, top + 1, left) * down * (1 - across)
        + _read(input, top + 1, left + 1) * down * across
    )


def _place(at: Tensor, size: Value, border: bool, reflected: bool, aligned: bool) -> Tensor:
    """Coordinates of -1 to 1 as places along a dimension."""
    at = (at + 1) / 2 * (size - 1) if aligned else ((at + 1) * size - 1) / 2
    if reflected:
        low, span = (0.0, size - 1) if aligned else (-0.5, size)
        at = (at - low).abs()
        turns = (at / span).floor()
        rest = at - turns * span
        at = torch.where(turns.remainder(2) == 0, rest, span - rest) + low
    return at.clamp(0, size - 1) if border or reflected else at


def _read(input: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """The elements of all channels at places, and zeros outside."""
    height, width = input.shape[2], input.shape[3]
    inside = (rows >= 0) & (rows <= height - 1) & (columns >= 0) & (columns <= width - 1)
    at = rows.clamp(0, height - 1).to(torch.int64) * width + columns.clamp(0, width - 1).to(torch.int64)
    flat = at.reshape(at.shape[0], 1, -1).expand(-1, input.shape[1], -1)
    read = input.reshape(input.shape[0], input.shape[1], -1).gather(2, flat)
    read = read.reshape(input.shape[0], input.shape[1], rows.shape[1], rows.shape[2])
    return read * inside.unsqueeze(1).to(input.dtype)
