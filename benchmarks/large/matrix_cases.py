"""The matrix of large kernels: operation x axis x size class x dtype, and windows, scans and norms with their backward.

A case says what it must read and write; nothing here was chosen for what a compiler does well.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

Inputs = tuple[Tensor, ...]
Function = Callable[..., object]
DTYPES = (torch.float32, torch.bfloat16, torch.int64)
FLOATS = DTYPES[:2]

# Axes of a tensor of three dimensions that are reduced.
AXES: dict[str, tuple[int, ...]] = {"first": (0,), "middle": (1,), "last": (2,), "two": (0, 2), "all": (0, 1, 2)}
# What is reduced and what is kept, each as two factors: (reduced, kept) for a GPU and for a CPU.
Factors = tuple[tuple[int, int], tuple[int, int]]
SIZES: dict[str, tuple[Factors, Factors]] = {
    "even": (((32, 32), (256, 256)), ((16, 16), (64, 64))),
    "odd": (((33, 31), (255, 257)), ((15, 17), (63, 65))),
    "long": (((255, 257), (32, 32)), ((127, 129), (8, 8))),
    "few": (((2048, 4096), (2, 4)), ((256, 512), (2, 4))),
}


@dataclass(frozen=True)
class Case:
    """One row: ``function`` on what ``make(device, generator)`` draws; ``passes`` is how often it must move a tensor as
    large as the first input, or 0: then the inputs once and the results once. With ``backward`` the gradients of all
    floating inputs are taken too, against a random gradient of the result.
    """

    operation: str
    axis: str
    size: str
    dtype: torch.dtype
    function: Function
    make: Callable[[str, torch.Generator], Inputs]
    passes: int = 0
    backward: bool = False
    exact: bool = True  # two results of one position are equal; False: positions of equal values may differ

    @property
    def name(self) -> str:
        """Unique in the matrix."""
        return f"{self.operation} {self.axis} {self.size} {str(self.dtype).removeprefix('torch.')}"


def draw(shape: tuple[int, ...], dtype: torch.dtype, device: str, generator: torch.Generator) -> Tensor:
    """Numbers of every sign; integers stay small enough for any sum of them."""
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, device=device, dtype=torch.float32).to(dtype)
    return torch.randint(-1000, 1000, shape, generator=generator, device=device, dtype=dtype)


def shape_of(axis: str, factors: Factors) -> tuple[int, ...]:
    """A shape of three dimensions in which the axes reduced and kept have these factors."""
    (reduced, kept), axes = factors, AXES[axis]
    if len(axes) == 3:
        return math.prod(reduced), kept[0], kept[1]
    taken = iter([math.prod(reduced)] if len(axes) == 1 else reduced)
    rest = iter(kept if len(axes) == 1 else [math.prod(kept)])
    return tuple(next(taken) if place in axes else next(rest) for place in range(3))


def maker(shapes: tuple[tuple[int, ...], ...], dtype: torch.dtype) -> Callable[[str, torch.Generator], Inputs]:
    """Draws a tensor for each shape."""
    return lambda device, generator: tuple(draw(shape, dtype, device, generator) for shape in shapes)


def over(function: Callable[[Tensor, tuple[int, ...]], Tensor], axes: tuple[int, ...]) -> Function:
    """A reduction of one tensor over these axes."""
    return lambda x: function(x, axes)


def along(function: Callable[[Tensor, int], Tensor], axis: int) -> Function:
    """A function of one tensor along this axis."""
    return lambda x: function(x, axis)


REDUCTIONS: dict[str, Callable[[Tensor, tuple[int, ...]], Tensor]] = {
    "sum": lambda x, axes: x.sum(axes),
    "max": lambda x, axes: x.amax(axes),
    "argmax": lambda x, axes: x.argmax() if len(axes) == 3 else x.argmax(axes[0]),
    "var": lambda x, axes: x.var(axes),
    "softmax": lambda x, axes: x.softmax(axes[0]),
    "logsumexp": lambda x, axes: x.logsumexp(axes),
}
ONE_AXIS = ("softmax",)  # and argmax, which takes one or all
INTEGERS = ("sum", "max", "argmax")


def reductions(large: bool) -> Iterator[Case]:
    """Every reduction over every axis."""
    for operation, function in REDUCTIONS.items():
        for axis, axes in AXES.items():
            if (operation in ONE_AXIS and len(axes) > 1) or (operation == "argmax" and len(axes) == 2):
                continue
            for size, (on_gpu, on_cpu) in SIZES.items():
                if axis == "all" and size in ("long", "few"):
                    continue
                shape = shape_of(axis, on_gpu if large else on_cpu)
                for dtype in DTYPES if operation in INTEGERS else FLOATS:
                    inputs = maker((shape,), dtype)
                    exact = operation != "argmax"
                    yield Case(operation, axis, size, dtype, over(function, axes), inputs, exact=exact)


def scans(large: bool) -> Iterator[Case]:
    """Running sums and their like along each axis."""
    functions: dict[str, Callable[[Tensor, int], Tensor]] = {
        "cumsum": torch.cumsum,
        "cumprod": lambda x, axis: torch.cumprod(x.sigmoid(), axis),
        "logcumsumexp": torch.logcumsumexp,
        "cummax": lambda x, axis: torch.cummax(x, axis).values,
    }
    for operation, function in functions.items():
        for axis in ("first", "middle", "last"):
            for size, (on_gpu, on_cpu) in SIZES.items():
                shape = shape_of(axis, on_gpu if large else on_cpu)
                for dtype in FLOATS if operation == "cumsum" else (torch.float32,):
                    scan = along(function, AXES[axis][0])
                    yield Case(operation, axis, size, dtype, scan, maker((shape,), dtype))


def norms(large: bool) -> Iterator[Case]:
    """Norms with what they scale by, alone and with their backward."""
    even, odd = ((32, 64, 128, 128), (31, 60, 127, 129)) if large else ((4, 16, 32, 32), (3, 12, 31, 33))
    for size, shape in (("even", even), ("odd", odd)):
        rows = (math.prod(shape[:2]) * shape[2], shape[3] * 8 if size == "even" else shape[3] * 8 + 1)
        functions: dict[str, tuple[tuple[int, ...], int, Function]] = {
            "layer_norm last": (rows, rows[1], lambda x, w, b: F.layer_norm(x, (x.shape[-1],), w, b)),
            "rms_norm last": (rows, rows[1], lambda x, w, b: F.rms_norm(x, (x.shape[-1],), w) + b),
            "group_norm": (shape, shape[1], lambda x, w, b: F.group_norm(x, 4, w, b)),
            "instance_norm": (shape, shape[1], lambda x, w, b: F.instance_norm(x, None, None, w, b)),
            "batch_norm": (shape, shape[1], lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True)),
        }
        for operation, (whole, channels, function) in functions.items():
            name, _, axis = operation.partition(" ")
            for dtype in FLOATS:
                inputs = maker((whole, (channels,), (channels,)), dtype)
                yield Case(name, axis or "rest", size, dtype, function, inputs, passes=2)
                yield Case(name + " both ways", axis or "rest", size, dtype, function, inputs, passes=5, backward=True)


def windows(large: bool) -> Iterator[Case]:
    """Pooling, interpolation, depthwise convolutions and what moves elements only."""
    sides = {1: (64, 64, 16384), 2: (64, 64, 128, 128), 3: (16, 32, 32, 64, 64)}
    small = {1: (4, 8, 1024), 2: (4, 8, 32, 32), 3: (2, 4, 16, 16, 16)}
    functions: dict[str, tuple[int, Function]] = {
        "max_pool1d": (1, lambda x: F.max_pool1d(x, 3, 2, 1)),
        "max_pool2d": (2, lambda x: F.max_pool2d(x, 3, 2, 1)),
        "max_pool3d": (3, lambda x: F.max_pool3d(x, 3, 2, 1)),
        "avg_pool1d": (1, lambda x: F.avg_pool1d(x, 4, 2)),
        "avg_pool2d": (2, lambda x: F.avg_pool2d(x, 3, 2)),
        "avg_pool3d": (3, lambda x: F.avg_pool3d(x, 2)),
        "adaptive_avg_pool2d": (2, lambda x: F.adaptive_avg_pool2d(x, 7)),
        "adaptive_max_pool2d": (2, lambda x: F.adaptive_max_pool2d(x, 7)),
        "nearest": (2, lambda x: F.interpolate(x, scale_factor=2, mode="nearest")),
        "bilinear": (2, lambda x: F.interpolate(x, scale_factor=2, mode="bilinear")),
        "pad": (2, lambda x: F.pad(x, (3, 2, 1, 4), mode="reflect")),
        "pixel_shuffle": (2, lambda x: F.pixel_shuffle(x, 2)),
        "pooled relu": (2, lambda x: F.max_pool2d(x * 2 + 1, 2).relu()),
    }
    for operation, (rank, function) in functions.items():
        shape = (sides if large else small)[rank]
        for dtype in FLOATS if large or operation != "avg_pool3d" else FLOATS[:1]:  # torch has no such bfloat16 there
            inputs = maker((shape,), dtype)
            yield Case(operation, "window", "even", dtype, function, inputs)
            yield Case(operation + " both ways", "window", "even", dtype, function, inputs, backward=True)
    shape = (sides if large else small)[2]
    for dtype in FLOATS:
        inputs = maker((shape, (shape[1], 1, 3, 3)), dtype)
        yield Case(
            "depthwise", "window", "even", dtype, lambda x, w: F.conv2d(x, w, padding=1, groups=w.shape[0]), inputs
        )


def cases(device: str) -> list[Case]:
    """The whole matrix, on sizes that fill a GPU, or that a CPU does in milliseconds."""
    large = device != "cpu"
    return [*reductions(large), *scans(large), *norms(large), *windows(large)]
