"""Gives the result shapes of convolutions and pooling, which stay with the library."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from framefuse.ir.builder import Shape
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, expr
from framefuse.lower.context import Lowering
from framefuse.lower.reductions import mean
from framefuse.lower.rules import Shapes, Unsupported, register, rule


def _each(value: Any, rank: int) -> tuple[int, ...]:
    """One number for each of ``rank`` dimensions."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank
    if len(values) == 1:
        values = values * rank
    if len(values) != rank or not all(isinstance(number, int) for number in values):
        raise Unsupported("numbers for each dimension")
    return values


def _positive(lo: Lowering, sizes: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """A result size below one is eager's error."""
    for size in sizes:
        if size.constant is None:
            lo.require("<", expr(0), size, "the size of a result")
    return sizes


def _convolution(rank: int) -> Callable[..., Shapes]:
    def lowered(
        lo: Lowering, input: Node, weight: Node, bias: Any = None, stride: Any = 1, padding: Any = 0, dilation: Any = 1,
        groups: Any = 1,
    ) -> Shapes:  # fmt: skip
        lead = input.shape[: len(input.shape) - rank - 1]
        steps, holes = _each(stride, rank), _each(dilation, rank)
        spans = tuple((size - 1) * hole + 1 for size, hole in zip(weight.shape[2:], holes, strict=True))
        sizes = input.shape[len(input.shape) - rank :]
        if padding == "same":
            result = sizes
        else:
            pads = (0,) * rank if padding == "valid" else _each(padding, rank)
            result = tuple(
                (size + 2 * pad - span) // step + 1
                for size, pad, span, step in zip(sizes, pads, spans, steps, strict=True)
            )
        return Shapes(((*lead, weight.shape[0], *_positive(lo, result)),))

    return lowered


def _transposed(rank: int) -> Callable[..., Shapes]:
    def lowered(
        lo: Lowering, input: Node, weight: Node, bias: Any = None, stride: Any = 1, padding: Any = 0,
        output_padding: Any = 0, groups: Any = 1, dilation: Any = 1,
    ) -> Shapes:  # fmt: skip
        lead, sizes = input.shape[: len(input.shape) - rank - 1], input.shape[len(input.shape) - rank :]
        numbers = (_each(value, rank) for value in (stride, padding, output_padding, dilation))
        result = tuple(
            (size - 1) * step - 2 * pad + hole * (span - 1) + extra + 1
            for size, span, step, pad, extra, hole in zip(sizes, weight.shape[2:], *numbers, strict=True)
        )
        return Shapes(((*lead, weight.shape[1] * groups, *_positive(lo, result)),))

    return lowered


def _window(lo: Lowering, size: Expr, kernel: int, step: int, pad: int, hole: int, ceil: bool) -> Expr:
    reach = size + 2 * pad - hole * (kernel - 1) - 1
    if not ceil:
        return reach // step + 1
    count = (reach + step - 1) // step + 1
    # The last window must start inside the input or its left padding.
    if lo.size((count - 1) * step) >= lo.size(size) + pad:
        if size.constant is None:
            raise Unsupported("a cut window")
        count = count - 1
    elif size.constant is None:
        lo.require("<", (count - 1) * step, size + pad, "the last window")
    return count


def _pooled(
    lo: Lowering, input: Node, rank: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil: bool
) -> Shape:
    kernels = _each(kernel, rank)
    steps = kernels if stride is None or stride == () else _each(stride, rank)
    pads, holes = _each(padding, rank), _each(dilation, rank)
    lead, sizes = input.shape[: len(input.shape) - rank], input.shape[len(input.shape) - rank :]
    columns = zip(sizes, kernels, steps, pads, holes, strict=True)
    result = tuple(_window(lo, size, span, step, pad, hole, ceil) for size, span, step, pad, hole in columns)
    return (*lead, *_positive(lo, result))


def _max_pool(rank: int, pair: bool = False) -> Callable[..., Shapes]:
    def lowered(
        lo: Lowering, input: Node, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Shapes:  # fmt: skip
        shape = _pooled(lo, input, rank, kernel_size, stride, padding, dilation, ceil_mode)
        return Shapes((shape, shape) if return_indices or pair else (shape,))

    return lowered


def _average_pool(rank: int) -> Callable[..., Shapes]:
    def lowered(
        lo: Lowering, input: Node, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: Any = None,
    ) -> Shapes:  # fmt: skip
        return Shapes((_pooled(lo, input, rank, kernel_size, stride, padding, 1, ceil_mode),))

    return lowered


def _adaptive(rank: int, average: bool) -> Callable[..., Any]:
    def lowered(lo: Lowering, input: Node, output_size: Any, return_indices: bool = False) -> Any:
        given = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * rank
        axes = tuple(range(len(input.shape) - rank, len(input.shape)))
        if average and all(size == 1 for size in given) and input.dtype.is_float:
            for axis in axes:
                lo.require("!=", input.shape[axis], expr(0), "pooling of nothing")
            return mean(lo, input, axes, True)
        sizes = tuple(input.shape[axis] if size is None else expr(size) for axis, size in zip(axes, given, strict=True))
        shape = (*input.shape[: axes[0]], *sizes)
        return Shapes((shape, shape) if return_indices else (shape,))

    return lowered


for _rank in (1, 2, 3):
    register((f"conv{_rank}d",), "convolution", _convolution(_rank))
    register((f"conv_transpose{_rank}d",), "convolution", _transposed(_rank))
    register((f"max_pool{_rank}d",), "convolution", _max_pool(_rank))
    register((f"max_pool{_rank}d_with_indices",), "convolution", _max_pool(_rank, pair=True))
    register((f"avg_pool{_rank}d",), "convolution", _average_pool(_rank))
    register((f"adaptive_avg_pool{_rank}d",), "convolution", _adaptive(_rank, True))
    register((f"adaptive_max_pool{_rank}d",), "convolution", _adaptive(_rank, False))


def _blocks(lo: Lowering, sizes: Shape, kernel: Any, dilation: Any, padding: Any, stride: Any) -> Expr:
    """In how many places a window lies on a picture."""
    columns = zip(sizes, *(_each(value, 2) for value in (kernel, dilation, padding, stride)), strict=True)
    places = tuple((size + 2 * pad - hole * (span - 1) - 1) // step + 1 for size, span, hole, pad, step in columns)
    return lo.count(_positive(lo, places))


@rule("F.unfold")
def unfold(
    lo: Lowering, input: Node, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Shapes:
    lead, (channels, *sizes) = input.shape[:-3], input.shape[-3:]
    places = _blocks(lo, tuple(sizes), kernel_size, dilation, padding, stride)
    return Shapes(((*lead, channels * math.prod(_each(kernel_size, 2)), places),))


@rule("F.fold")
def fold(
    lo: Lowering, input: Node, output_size: Any, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Shapes:
    sizes = lo.shape_of(output_size if isinstance(output_size, (tuple, list)) else (output_size,) * 2)
    count = math.prod(_each(kernel_size, 2))
    *lead, width, places = input.shape
    lo.require("==", width % count, expr(0), "the channels of a fold")
    lo.require("==", places, _blocks(lo, sizes, kernel_size, dilation, padding, stride), "the places of a fold")
    return Shapes(((*lead, width // count, *sizes),))


@rule("F.interpolate", "F.upsample")
def interpolate(
    lo: Lowering, input: Node, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: Any = None, recompute_scale_factor: Any = None, antialias: bool = False,
) -> Shapes:  # fmt: skip
    rank = len(input.shape) - 2
    if size is not None:
        sizes = lo.shape_of(size if isinstance(size, (tuple, list)) else (size,) * rank)
    else:
        scales = scale_factor if isinstance(scale_factor, (tuple, list)) else (scale_factor,) * rank
        if not all(float(scale).is_integer() for scale in scales):
            raise Unsupported("a fractional scale")
        sizes = tuple(mine * int(scale) for mine, scale in zip(input.shape[2:], scales, strict=True))
    return Shapes(((*input.shape[:2], *sizes),))
