"""Runs generated kernels by Triton's interpreter (TRITON_INTERPRET=1 before Triton is imported), for tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from types import ModuleType
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter

from framefuse.codegen.triton import device
from framefuse.codegen.triton.emitter import Module
from framefuse.codegen.triton.own_launcher import known
from framefuse.ir.code import Run
from framefuse.ir.loops import Kernel


def is_on() -> bool:
    """Whether functions of Triton are interpreted in this process."""
    return bool(triton.knobs.runtime.interpret)


def launcher(function: Any, module: ModuleType, kernel: Kernel, emitted: Module) -> Run:
    """A function of (tensors in the order of the kernel's buffers, its numbers in order, the extent of its parallel
    axis) that runs the kernel and returns 0, or 1 when a check failed.
    """
    _prepare()
    module.libdevice = LIBRARY  # type: ignore[attr-defined]

    def launch(tensors: Sequence[torch.Tensor], numbers: Sequence[int | float], extent: int) -> int:
        programs = -(-extent // emitted.blocks.points)
        given = [_double(value) if n.real else int(value) for n, value in zip(kernel.numbers, numbers, strict=True)]
        if programs == 0:
            return 0
        try:
            with np.errstate(all="ignore"):
                function[(programs,)](*known(tensors), *given, **dict(emitted.constants))
        except interpreter.InterpreterError as error:
            cause: BaseException | None = error  # of one function called by another
            while isinstance(cause, interpreter.InterpreterError):
                cause = cause.__cause__
            if isinstance(cause, AssertionError):
                return 1
            raise
        return 0

    return launch


def _double(value: float) -> Any:
    """A number as the interpreter's double: by itself it makes a float32 of it."""
    return tl.core.tensor(interpreter.TensorHandle(np.array([value], dtype=np.float64), tl.float64), tl.float64)


class _Library:
    """What libdevice gives on a GPU, by torch."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        function = NAMES.get(name) or getattr(torch, name)

        def call(*args: Any) -> Any:
            shapes = np.broadcast_arrays(*(arg.handle.data for arg in args))
            result = function(*(torch.from_numpy(np.array(data)) for data in shapes)).numpy()
            return tl.core.tensor(interpreter.TensorHandle(result, args[0].dtype.scalar), _type_of(result, args))

        return call


def _type_of(result: np.ndarray, args: Sequence[Any]) -> Any:
    scalar = args[0].dtype.scalar
    blocks = [arg for arg in args if arg.type.is_block()]
    return tl.block_type(scalar, list(result.shape)) if blocks else scalar


NAMES: dict[str, Callable[..., torch.Tensor]] = {
    "nearbyint": torch.round,
    # torch's own of float32 is wrong for denormal divisors
    "fmod": lambda x, y: torch.fmod(x.double(), y.double()).to(x.dtype),
    "fma": lambda x, y, z: (x.double() * y.double() + z.double()).to(x.dtype),
}
LIBRARY = _Library()


def _prepare() -> None:
    """Mends, once, where the interpreter differs from a GPU: checks are on, float32 rounds to the nearest bfloat16
    (the interpreter cuts digits off), ``exp`` of float32 rounds the exponent, ``fma`` rounds once, products of 16-bit
    floats are those of their values, comparisons are bools also of scalars, and reductions with functions of ours
    and maps of elements, which it lacks, are not done element by element, and sums are as exact in any dimension. Its
    copies of the arguments are those themselves: a part of a tensor may begin where the tensor does.
    """
    builder = interpreter.interpreter_builder
    if device.libdevice is LIBRARY:
        return
    device.libdevice = LIBRARY
    builder.options = replace(builder.options, debug=True, sanitize_overflow=False)
    plain = interpreter.InterpreterBuilder.cast_impl

    def cast(self: Any, source: Any, target: Any) -> Any:
        if source.dtype.scalar == tl.float32 and target.scalar == tl.bfloat16:
            rounded = torch.from_numpy(np.array(source.data)).to(torch.bfloat16)
            return interpreter.TensorHandle(rounded.view(torch.int16).numpy().view(np.uint16), tl.bfloat16)
        return plain(self, source, target)

    binary = interpreter.InterpreterBuilder.binary_op

    def compared(self: Any, left: Any, right: Any, operation: Any) -> Any:
        result = binary(self, left, right, operation)
        if result.data.dtype == np.bool_:
            result.dtype = tl.int1
        return result

    exp = interpreter.InterpreterBuilder.create_exp

    def by_power(self: Any, x: Any) -> Any:
        if x.dtype.scalar != tl.float32:
            return exp(self, x)
        power = np.exp2((x.data * np.float32(1.4426950408889634)).astype(np.float64))
        return interpreter.TensorHandle(power.astype(np.float32), tl.float32)

    dot = interpreter.InterpreterBuilder.create_dot

    def wide(self: Any, left: Any, right: Any, total: Any, *rest: Any) -> Any:
        return dot(self, *(_widened(tile) for tile in (left, right)), total, *rest)

    interpreter.InterpreterBuilder.create_exp = by_power
    interpreter.InterpreterBuilder.create_fma = _fused
    interpreter.InterpreterBuilder.create_dot = wide
    interpreter.InterpreterBuilder.cast_impl = cast
    interpreter.InterpreterBuilder.binary_op = compared
    interpreter.GridExecutor._init_args_hst = lambda self, args, kwargs: (args, kwargs)
    interpreter.GridExecutor._restore_args_dev = lambda self, *args: None
    interpreter.ReduceOps.generic_reduce = _by_halves
    interpreter.ReduceOps.sum = _sum_by_halves
    tl.map_elementwise = _at_once


def _at_once(function: Any, *tiles: Any) -> Any:
    """A function of elements on whole tiles, which ours take too."""
    return function(*tiles)


def _fused(self: Any, x: Any, y: Any, z: Any) -> Any:
    """x * y + z, rounded once (but for what is lost in long doubles)."""
    total = x.data.astype(np.longdouble) * y.data + z.data
    return interpreter.TensorHandle(total.astype(z.data.dtype), z.dtype.scalar)


def _widened(tile: Any) -> Any:
    """A tile of 16-bit floats as float32."""
    if tile.dtype.scalar not in (tl.float16, tl.bfloat16):
        return tile
    data = torch.from_numpy(np.array(tile.data))
    floats = data.view(torch.int16).view(torch.bfloat16) if tile.dtype.scalar == tl.bfloat16 else data
    return interpreter.TensorHandle(floats.float().numpy(), tl.float32)


def _sum_by_halves(self: Any, tile: Any) -> Any:
    """A sum as threads add it up, not one element after the other."""
    data = tile.handle.data
    if self.axis is None or self.keep_dims or data.dtype.kind != "f":
        return self.to_tensor(np.sum(data, axis=self.axis, keepdims=self.keep_dims), tile.dtype)
    while data.shape[self.axis] > 1:
        first, second = np.split(data, 2, axis=self.axis)
        data = first + second
    return self.to_tensor(np.squeeze(data, self.axis), tile.dtype)


def _by_halves(self: Any, tiles: tuple[Any, ...]) -> list[Any]:
    """A reduction of tiles, whose sizes are powers of two, along ``self.axis`` by one function of both halves."""
    while tiles[0].handle.data.shape[self.axis] > 1:
        halves = [np.split(tile.handle.data, 2, axis=self.axis) for tile in tiles]
        parts = [[self.to_tensor(half[k], t.dtype) for half, t in zip(halves, tiles, strict=True)] for k in (0, 1)]
        joined = self.combine_fn.fn(*parts[0], *parts[1])
        tiles = joined if isinstance(joined, tuple) else (joined,)
    return [self.to_tensor(np.squeeze(tile.handle.data, self.axis), tile.dtype) for tile in tiles]
