"""Lowers functions that make tensors of constants, ranges and triangles."""

from __future__ import annotations

import math

import torch

from framefuse.ir import costs
from framefuse.ir.builder import Shape
from framefuse.ir.dtypes import BOOL, INT64, DType
from framefuse.ir.graph import Node, Scalar
from framefuse.ir.numbers import Expr, Real, expr, maximum
from framefuse.ir.target import type_of
from framefuse.ir.values import Value
from framefuse.lower.casts import to
from framefuse.lower.context import Lowering
from framefuse.lower.promotion import is_number, number_dtype, row
from framefuse.lower.rules import Shapes, Unsupported, rule


def _place(lo: Lowering, device: Value, layout: Value, model: Node | None = None) -> str:
    if layout not in (None, torch.strided):
        raise Unsupported("layout")
    if device is None:
        return model.device if model is not None else "cpu"
    place = torch.device(device)
    return lo.place if place.index is None and type_of(lo.place) == place.type else str(place)


def _constant(
    lo: Lowering, value: Scalar, size: tuple[Value, ...], options: dict[str, Value], dtype: DType | None = None
) -> Node:
    known = {"dtype", "device", "layout", "requires_grad", "pin_memory", "out", "names", "memory_format"}
    if options.keys() - known or options.get("requires_grad") or options.get("pin_memory"):
        raise Unsupported("options")
    kind = row(options["dtype"]) if options.get("dtype") is not None else dtype or lo.default
    place = _place(lo, options.get("device"), options.get("layout"))
    return lo.full(value, kind, lo.shape_of(*size), place)


@rule("torch.zeros")
def zeros(lo: Lowering, *size: Value, **options: Value) -> Node:
    return _constant(lo, 0, _sizes(size, options), options)


@rule("torch.ones")
def ones(lo: Lowering, *size: Value, **options: Value) -> Node:
    return _constant(lo, 1, _sizes(size, options), options)


def _sizes(size: tuple[Value, ...], options: dict[str, Value]) -> tuple[Value, ...]:
    return (options.pop("size"),) if "size" in options else size


@rule("torch.full")
def full(lo: Lowering, size: Value, fill_value: Value, **options: Value) -> Node:
    if not is_number(fill_value):
        raise Unsupported("fill value")
    return _constant(lo, fill_value, (size,), options, number_dtype(fill_value, lo.default))


@rule("scalar_tensor")
def scalar_tensor(lo: Lowering, value: Value, **options: Value) -> Node:
    return _constant(lo, value, ((),), options)


@rule("torch.tensor")
def tensor(lo: Lowering, data: Value, **options: Value) -> Node | Shapes:
    return _of_numbers(lo, data, options)


@rule("torch.as_tensor")
def as_tensor(lo: Lowering, data: Value, dtype: Value = None, device: Value = None) -> Node | Shapes:
    """A tensor stays what it is, but for what ``to`` makes of it."""
    if isinstance(data, Node):
        return to(lo, data, dtype=dtype, device=device)
    return _of_numbers(lo, data, {"dtype": dtype, "device": device})


def _of_numbers(lo: Lowering, data: Value, options: dict[str, Value], dtype: DType | None = None) -> Node | Shapes:
    """A tensor of a number, or of lists of numbers; many are copied by the library, in one turn."""
    if is_number(data):
        return _constant(lo, data, ((),), options, dtype or number_dtype(data, lo.default))
    sizes, numbers = _listed(data)
    if len(numbers) > costs.LISTED_NUMBERS or not all(map(is_number, numbers)):
        return Shapes((tuple(map(expr, sizes)),))
    kinds = [dtype or number_dtype(number, lo.default) for number in numbers]
    kind = max(kinds, key=lambda row: (row is not BOOL, row is lo.default))
    parts = [_constant(lo, number, ((1,),), dict(options), kind) for number in numbers]
    return lo.reshape(lo.cat(parts, 0) if len(parts) > 1 else parts[0], tuple(map(expr, sizes)))


def _listed(data: Value) -> tuple[tuple[int, ...], list[Value]]:
    """The sizes of nested lists of numbers, and the numbers."""
    if is_number(data) or isinstance(data, complex):
        return (), [data]
    if not isinstance(data, (list, tuple)) or not data:
        raise Unsupported("data that is no number")
    parts = [_listed(part) for part in data]
    if any(sizes != parts[0][0] for sizes, _ in parts):
        raise Unsupported("lists of several lengths")
    return (len(data), *parts[0][0]), [number for _, numbers in parts for number in numbers]


def _like(lo: Lowering, model: Node, value: Scalar, options: dict[str, Value], shape: Shape | None = None) -> Node:
    options.setdefault("device", model.device)
    options["device"] = options["device"] or model.device
    size = model.shape if shape is None else shape
    return _constant(lo, value, (size,), options, model.dtype)


@rule("zeros_like")
def zeros_like(lo: Lowering, input: Node, **options: Value) -> Node:
    return _like(lo, input, 0, options)


@rule("ones_like")
def ones_like(lo: Lowering, input: Node, **options: Value) -> Node:
    return _like(lo, input, 1, options)


@rule("full_like")
def full_like(lo: Lowering, input: Node, fill_value: Value, **options: Value) -> Node:
    if not is_number(fill_value):
        raise Unsupported("fill value")
    return _like(lo, input, fill_value, options)


@rule("new_zeros")
def new_zeros(lo: Lowering, input: Node, *size: Value, **options: Value) -> Node:
    return _like(lo, input, 0, options, lo.shape_of(*_sizes(size, options)))


@rule("new_ones")
def new_ones(lo: Lowering, input: Node, *size: Value, **options: Value) -> Node:
    return _like(lo, input, 1, options, lo.shape_of(*_sizes(size, options)))


@rule("new_full")
def new_full(lo: Lowering, input: Node, size: Value, fill_value: Value, **options: Value) -> Node:
    if not is_number(fill_value):
        raise Unsupported("fill value")
    return _like(lo, input, fill_value, options, lo.shape_of(size))


@rule("new_tensor")
def new_tensor(lo: Lowering, input: Node, data: Value, **options: Value) -> Node | Shapes:
    return _of_numbers(lo, data, {"device": input.device, **options}, input.dtype)


@rule("torch.arange")
def arange(lo: Lowering, start: Value, end: Value = None, step: Value = 1, **options: Value) -> Node:
    if end is None:
        start, end = 0, start
    numbers = (start, end, step)
    if not all(is_number(value) for value in numbers) or options.get("requires_grad"):
        raise Unsupported("bounds")
    whole = all(isinstance(value, (int, Expr)) for value in numbers)
    kind = row(options["dtype"]) if options.get("dtype") is not None else INT64 if whole else lo.default
    place = _place(lo, options.get("device"), options.get("layout"))
    if isinstance(start, (int, Expr)) and not {type(start), type(end)}.isdisjoint((Expr,)):
        end, step = (_as_whole(value) for value in (end, step))  # as transformers count down by -1.0
        whole = all(isinstance(value, (int, Expr)) for value in (end, step))
    if whole and isinstance(step, int) and step != 0:
        length = -((expr(start) - expr(end)) // step) if step > 0 else -((expr(end) - expr(start)) // -step)
        if length.constant is None:
            # Below its start a range is eager's error; the recorded case has at least no element.
            lo.require("<=", expr(0), length, "the length of arange")
        return lo.iota(start, step, kind, length if length.constant is None else maximum(length, 0), place)
    if any(isinstance(value, (Expr, Real)) for value in numbers):
        raise Unsupported("a run-time fraction")
    return lo.iota(float(start), float(step), kind, expr(math.ceil((end - start) / step)), place)


def _as_whole(value: Value) -> Value:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def positions(lo: Lowering, shape: Shape, axis: int, device: str) -> Node:
    """The index along ``axis`` of every element, int64."""
    line = lo.along(lo.iota(0, 1, INT64, shape[axis], device), axis, len(shape))
    return lo.expand(line, shape)


@rule("torch.eye")
def eye(lo: Lowering, n: Value, m: Value = None, **options: Value) -> Node:
    shape = lo.shape_of(n, n if m is None else m)
    kind = row(options["dtype"]) if options.get("dtype") is not None else lo.default
    place = _place(lo, options.get("device"), options.get("layout"))
    if options.get("requires_grad"):
        raise Unsupported("requires_grad")
    return lo.cast(lo.pointwise("eq", positions(lo, shape, 0, place), positions(lo, shape, 1, place)), kind)


def _triangle(lo: Lowering, input: Node, diagonal: Value, op: str) -> Node:
    rank = len(input.shape)
    if rank < 2:
        raise Unsupported("no matrix")
    last = input.shape[-2:]
    row_index, column = (positions(lo, last, axis, input.device) for axis in range(2))
    shifted = lo.compute(lambda c: c - diagonal, column) if diagonal != 0 else column
    inside = lo.expand(lo.pointwise(op, shifted, row_index), input.shape)
    if input.dtype is BOOL:
        return lo.pointwise("bit_and", inside, input)
    return lo.pointwise("where", inside, input, lo.full(0, input.dtype, input.shape, input.device))


@rule("tril")
def tril(lo: Lowering, input: Node, diagonal: Value = 0, *, out: Value = None) -> Node:
    return _triangle(lo, input, diagonal, "le")


@rule("triu")
def triu(lo: Lowering, input: Node, diagonal: Value = 0, *, out: Value = None) -> Node:
    return _triangle(lo, input, diagonal, "ge")
