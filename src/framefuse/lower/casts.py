"""Lowers conversions of dtype and device, and copies that keep values."""

from __future__ import annotations

from collections.abc import Callable

import torch

from framefuse.ir.dtypes import BY_NAME, DType
from framefuse.ir.graph import Node
from framefuse.ir.target import type_of
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering
from framefuse.lower.gradients import REPLACED
from framefuse.lower.promotion import row
from framefuse.lower.rules import Shapes, Unsupported, register, rule


def _to_method(dtype: DType) -> Callable[..., Node]:
    def lowered(lo: Lowering, input: Node, memory_format: Value = None) -> Node:
        return lo.cast(input, dtype)

    return lowered


for _name, _dtype in {
    "float": "float32", "double": "float64", "half": "float16", "bfloat16": "bfloat16", "long": "int64",
    "int": "int32", "short": "int16", "char": "int8", "byte": "uint8", "bool": "bool",
}.items():  # fmt: skip
    register((f"Tensor.{_name}",), "casts", _to_method(BY_NAME[_dtype]))


@rule("Tensor.to")
def to(lo: Lowering, input: Node, *args: Value, **kwargs: Value) -> Node | Shapes:
    dtype = kwargs.get("dtype")
    moved = False
    for value in (*args, kwargs.get("device"), kwargs.get("other")):
        if isinstance(value, Node):
            moved |= value.device != input.device
            dtype = value.dtype.torch
        elif isinstance(value, torch.dtype):
            dtype = value
        elif isinstance(value, (torch.device, str, int)) and not isinstance(value, bool):
            moved |= not _is_named(input.device, value)
    if moved:
        return Shapes((input.shape,))
    return lo.cast(input, row(dtype)) if dtype is not None else input


def _is_named(device: str, named: torch.device | str | int) -> bool:
    """Whether ``device`` is the one that a program names; by its type alone it names the current one, of which the
    trace has a fact where it matters.
    """
    place = torch.device(named)
    return str(place) == device or (place.index is None and place.type == type_of(device))


@rule("Tensor.cpu")
def cpu(lo: Lowering, input: Node, *args: Value, **kwargs: Value) -> Node | Shapes:
    return input if input.device == "cpu" else Shapes((input.shape,))


@rule("Tensor.cuda", "Tensor.xpu", "pin_memory")
def moved(lo: Lowering, input: Node, *args: Value, **kwargs: Value) -> Shapes:
    return Shapes((input.shape,))


@rule("type_as")
def type_as(lo: Lowering, input: Node, other: Node) -> Node | Shapes:
    return lo.cast(input, other.dtype) if other.device == input.device else Shapes((input.shape,))


@rule("Tensor.type")
def type_(lo: Lowering, input: Node, dtype: Value = None, non_blocking: bool = False) -> Node:
    if not isinstance(dtype, torch.dtype):
        raise Unsupported("a type by name")
    return lo.cast(input, row(dtype))


@rule("clone", "contiguous", "detach", "Tensor.data", "aten.alias", "aten.lift_fresh")
def same(lo: Lowering, input: Node, memory_format: Value = None) -> Node:
    return input


@rule("Tensor.as_subclass")
def as_subclass(lo: Lowering, input: Node, cls: type) -> Node:
    return input


@rule("Tensor.copy_")
def copy_(lo: Lowering, input: Node, other: Node, non_blocking: bool = False) -> Node:
    if other.device != input.device:
        raise Unsupported("another device")
    return lo.expand(lo.cast(other, input.dtype), lo.broadcast(input.shape, other.shape))


@rule("Tensor.fill_", "fill")
def fill(lo: Lowering, input: Node, value: Value) -> Node:
    if isinstance(value, Node):
        filled = copy_(lo, input, value)
        return lo.derived(filled, REPLACED, (filled, input))
    return lo.derived(lo.full(value, input.dtype, input.shape, input.device), "nothing", (input,))


@rule("Tensor.zero_")
def zero(lo: Lowering, input: Node) -> Node:
    return lo.derived(lo.full(0, input.dtype, input.shape, input.device), "nothing", (input,))
