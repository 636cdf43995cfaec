"""Lowers pooling: each result is computed from strided slices of the input, one for each element of a window."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from framefuse.ir import costs
from framefuse.ir.builder import ONE, Shape
from framefuse.ir.dtypes import INT32, INT64, UINT8
from framefuse.ir.graph import Node, Scalar
from framefuse.ir.numbers import Expr, expr
from framefuse.ir.ops import ELEMENTWISE, TABLE
from framefuse.ir.target import type_of
from framefuse.ir.values import Value
from framefuse.lower.binary import add, div, mul, power
from framefuse.lower.context import Lowering, in_memory
from framefuse.lower.reductions import mean
from framefuse.lower.rules import Lowered, Rule, Shapes, Unsupported, register, rule

# Devices on which kernels read equal windows of few elements one by one. On a CPU 2 x 2 of them were not measured.
BY_ELEMENTS = {"cpu": False}


@dataclass(frozen=True, slots=True)
class Windows:
    """Windows over the last dimensions: sizes, steps, paddings and holes, and how many there are along each."""

    kernel: tuple[int, ...]
    step: tuple[int, ...]
    pad: tuple[int, ...]
    hole: tuple[int, ...]
    ceil: bool
    counts: Shape

    @property
    def elements(self) -> int:
        """Of one window."""
        return math.prod(self.kernel)

    def places(self) -> Iterator[tuple[int, ...]]:
        """The elements of a window in the order in which eager reads them."""
        return itertools.product(*map(range, self.kernel))


def each(value: Value, rank: int) -> tuple[int, ...]:
    """One number for each of ``rank`` dimensions."""
    values = tuple(value) if isinstance(value, (tuple, list)) else (value,) * rank
    if len(values) == 1:
        values = values * rank
    if len(values) != rank or not all(isinstance(number, int) for number in values):
        raise Unsupported("numbers for each dimension")
    return values


def positive(lo: Lowering, sizes: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """A result size below one is eager's error."""
    for size in sizes:
        if size.constant is None:
            lo.require("<", expr(0), size, "the size of a result")
    return sizes


def _count(lo: Lowering, size: Expr, kernel: int, step: int, pad: int, hole: int, ceil: bool) -> Expr:
    """How many windows there are along one dimension."""
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


def _windows(
    lo: Lowering, input: Node, rank: int, kernel: Value, stride: Value, padding: Value, dilation: Value, ceil: bool
) -> Windows:
    kernels = each(kernel, rank)
    steps = kernels if stride is None or stride == () or stride == [] else each(stride, rank)
    pads, holes = each(padding, rank), each(dilation, rank)
    sizes = input.shape[len(input.shape) - rank :]
    columns = zip(sizes, kernels, steps, pads, holes, strict=True)
    counts = tuple(_count(lo, *column, bool(ceil)) for column in columns)
    return Windows(kernels, steps, pads, holes, bool(ceil), positive(lo, counts))


def _shape(input: Node, windows: Windows) -> Shape:
    return (*input.shape[: len(input.shape) - len(windows.counts)], *windows.counts)


def _is_ours(lo: Lowering, input: Node, windows: Windows, extreme: bool) -> bool:
    """Whether kernels read the windows; and eager refuses tensors without elements, but for an empty batch."""
    if windows.elements > costs.POOLED_ELEMENTS or input.dtype.llvm is None or input.dtype.name == "bool":
        return False
    if _is_faster_there(lo, input, windows, extreme):
        return False
    rank = len(windows.counts)
    for size in input.shape[len(input.shape) - rank - 1 : len(input.shape) - rank]:
        lo.require("!=", size, expr(0), "pooling of nothing")
    return True


def _is_faster_there(lo: Lowering, input: Node, windows: Windows, extreme: bool) -> bool:
    """Whether the library's kernel was measured to be faster, in ms, the library's first. On a CPU without gradients
    max_pool1d(3, 2, 1) of 16 x 64 x 2048 0.66 1.3 (with steps of 1 1.3 0.55). On an H100 max_pool3d(2) of
    8 x 32 x 64 x 64 x 64 with its gradient 0.26 0.42. Others are ours: max_pool3d(3, 2, 1) 0.26 0.23, with steps of 1
    2.0 0.60, max_pool3d(2) 0.15 0.11, avg_pool3d(3, 2, 1) 0.27 0.20, max_pool2d(3, 2, 1) of 16 x 64 x 256 x 256
    0.26 0.16, of 255 x 257 0.26 0.20, with steps of 1 1.0 0.46, max_pool1d(8, 1, 4, 3) of 64 x 128 x 16384 1.8 0.64.
    """
    rank, cut = len(windows.counts), windows.ceil or any(windows.pad)
    trained = lo.differentiable and input.dtype.is_float
    if input.device == "cpu":
        return extreme and rank == 1 and not trained and windows.step != (1,) and in_memory(input)
    return rank == 3 and trained and (cut or extreme)


def elements(lo: Lowering, node: Node, windows: Windows, fill: Scalar) -> list[Node]:
    """For each element of a window a node of the result's shape; ``fill`` outside of the input."""
    lead = len(node.shape) - len(windows.counts)
    zeros, ones = [0] * lead, [1] * lead
    after = [pad + (step - 1 if windows.ceil else 0) for pad, step in zip(windows.pad, windows.step, strict=True)]
    wide = lo.pad(node, [*zeros, *windows.pad], [*zeros, *after], fill)
    shape = _shape(node, windows)
    taps = []
    for place in windows.places():
        starts = [at * hole for at, hole in zip(place, windows.hole, strict=True)]
        taps.append(lo.slice(wide, [*zeros, *starts], [*ones, *windows.step], shape))
    return taps


def _spread(lo: Lowering, row: Node, axis: int, shape: Shape) -> Node:
    """A node along one of the dimensions of the windows at each result."""
    return lo.expand(lo.along(row, axis, len(shape)), shape)


# ---- maximum ---------------------------------------------------------------------------------------------------------


def _lowest(node: Node) -> Scalar:
    return float("-inf") if node.dtype.is_float else torch.iinfo(node.dtype.torch).min


def _greatest(lo: Lowering, taps: list[Node], first: Node, names: Callable[[int], Node]) -> tuple[Node, Node]:
    """The greatest element and what ``names`` says of it: the first of equal ones and the last NaN win, as in eager;
    ``first`` is where a window begins.
    """
    best, where = taps[0], first
    for number, element in enumerate(taps[1:], 1):
        wins = lo.pointwise("gt", element, best)
        if element.dtype.is_float:
            wins = lo.pointwise("bit_or", wins, lo.pointwise("isnan", element))
        where = lo.pointwise("where", wins, names(number), where)
        best = lo.pointwise("maximum", element, best)
    return best, where


def _begins(lo: Lowering, windows: Windows, weights: tuple[Scalar, ...], shape: Shape, model: Node) -> Node:
    """Which element of a window is the first that lies in the input, as the sum of its places times ``weights``."""
    total = lo.full(0, model.dtype, shape, model.device)
    lead = len(shape) - len(windows.counts)
    for axis, (pad, step, count) in enumerate(zip(windows.pad, windows.step, windows.counts, strict=True)):
        if not pad:
            continue
        row = lo.iota(pad, -step, model.dtype, count, model.device)
        row = lo.pointwise("maximum", row, lo.full(0, model.dtype, row.shape, model.device))
        row = lo.pointwise("mul", row, lo.full(weights[axis], model.dtype, row.shape, model.device))
        total = lo.pointwise("add", total, _spread(lo, row, lead + axis, shape))
    return total


def _strides(sizes: tuple[Value, ...]) -> tuple[Value, ...]:
    strides: list[Value] = []
    step: Value = 1
    for size in reversed(sizes):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def _positions(lo: Lowering, input: Node, windows: Windows, taps: list[Node]) -> Node:
    """Where the greatest elements lie in a plane of the input, as eager's indices say."""
    shape, rank = _shape(input, windows), len(windows.counts)
    lead, device = len(shape) - rank, input.device
    steps = _strides(input.shape[lead:])
    model = lo.full(0, INT64, shape, device)
    places = list(windows.places())

    def named(number: int) -> Node:
        parts = zip(places[number], windows.hole, steps, strict=True)
        return lo.full(sum((at * hole * step for at, hole, step in parts), expr(0)), INT64, shape, device)

    _, inside = _greatest(lo, taps, _begins(lo, windows, steps, shape, model), named)
    for axis, step in enumerate(steps):
        start, move = -windows.pad[axis] * expr(step), windows.step[axis] * expr(step)
        row = lo.iota(start, move, INT64, shape[lead + axis], device)
        inside = lo.pointwise("add", inside, _spread(lo, row, lead + axis, shape))
    return inside


def _kept(lo: Lowering, windows: Windows, taps: list[Node]) -> Node:
    """The number of the greatest element in its window: what a backward pass keeps."""
    shape, device = taps[0].shape, taps[0].device
    model = lo.full(0, INT32, shape, device)
    first = _begins(lo, windows, _strides(windows.kernel), shape, model)
    _, where = _greatest(lo, taps, first, lambda number: lo.full(number, INT32, shape, device))
    kept = lo.cast(where, UINT8)
    lo.held.add(kept)
    return kept


def _max_pool(rank: int, pair: bool = False) -> Rule:
    def lowered(
        lo: Lowering, input: Node, kernel_size: Value, stride: Value = None, padding: Value = 0, dilation: Value = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Lowered:  # fmt: skip
        windows = _windows(lo, input, rank, kernel_size, stride, padding, dilation, ceil_mode)
        shape = _shape(input, windows)
        both = return_indices or pair
        known = Shapes((shape, shape) if both else (shape,))
        placed = both or (lo.differentiable and input.dtype.is_float)
        holes = any(hole != 1 for hole in windows.hole)
        if not _is_ours(lo, input, windows, True) or (placed and holes):
            return known
        wide = lo.widen(input)
        taps = elements(lo, wide, windows, _lowest(wide))
        best = taps[0]
        for element in taps[1:]:
            best = lo.pointwise("maximum", element, best)
        if lo.differentiable:
            kept = _kept(lo, windows, taps)
            best = lo.derived(best, "max_pool", (wide, kept), *windows.kernel, *windows.step, *windows.pad)
        best = lo.cast(best, input.dtype)
        return (best, _positions(lo, wide, windows, taps)) if both else best

    return lowered


# ---- average ---------------------------------------------------------------------------------------------------------


def _divisor(lo: Lowering, node: Node, windows: Windows, padded: bool) -> Node:
    """How many elements of each window eager counts: those of the ``padded`` input, or of the input itself."""
    shape, lead = _shape(node, windows), len(node.shape) - len(windows.counts)
    cut = windows.ceil or (not padded and any(windows.pad))
    if not cut:
        return lo.full(windows.elements, node.dtype, shape, node.device)
    total: Node | None = None
    for axis, (kernel, step, pad, count) in enumerate(
        zip(windows.kernel, windows.step, windows.pad, windows.counts, strict=True)
    ):
        size = node.shape[lead + axis]
        low = lo.iota(-pad, step, INT64, count, node.device)

        def number(value: Scalar, row: Node = low) -> Node:
            return lo.full(value, INT64, row.shape, node.device)

        high = lo.pointwise("minimum", lo.pointwise("add", low, number(kernel)), number(size + pad))
        if not padded:
            low, high = lo.pointwise("maximum", low, number(0)), lo.pointwise("minimum", high, number(size))
        row = _spread(lo, lo.cast(lo.pointwise("sub", high, low), node.dtype), lead + axis, shape)
        total = row if total is None else lo.pointwise("mul", total, row)
    assert total is not None
    return total


def _average_pool(rank: int) -> Rule:
    def lowered(
        lo: Lowering, input: Node, kernel_size: Value, stride: Value = None, padding: Value = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: Value = None,
    ) -> Lowered:  # fmt: skip
        if divisor_override is None and _is_whole(input, rank, kernel_size, stride, padding):
            return _whole(lo, input, rank)
        windows = _windows(lo, input, rank, kernel_size, stride, padding, 1, ceil_mode)
        shape = _shape(input, windows)
        if not input.dtype.is_float or not _is_ours(lo, input, windows, False):
            beside = divisor_override is None and _lie_beside(lo, input, windows)
            return (_equal_windows(lo, input, shape, rank) if beside else None) or Shapes((shape,))
        wide = lo.widen(input)
        taps = elements(lo, wide, windows, 0.0)
        total = taps[0]
        for element in taps[1:]:
            total = lo.pointwise("add", total, element)
        if divisor_override is None:
            divisor = _divisor(lo, wide, windows, bool(count_include_pad))
        else:
            divisor = lo.full(divisor_override, wide.dtype, shape, input.device)
        result = lo.pointwise("div", total, divisor)
        result = lo.derived(result, "average_pool", (wide, divisor), *windows.kernel, *windows.step, *windows.pad)
        return lo.cast(result, input.dtype)

    return lowered


@rule("F.local_response_norm")
def local_response_norm(
    lo: Lowering, input: Node, size: Value, alpha: Value = 1e-4, beta: Value = 0.75, k: Value = 1.0
) -> Node:
    """Each element by a power of the mean of squares in as many channels around it."""
    if not isinstance(size, int) or not 0 < size <= costs.POOLED_ELEMENTS:
        raise Unsupported("a window of channels")
    if len(input.shape) < 3 or not input.dtype.is_float:
        raise Unsupported("a window of channels")
    for extent in input.shape:
        lo.require("!=", extent, expr(0), "elements")
    squares = lo.widen(mul(lo, input, input))
    before, after = ([number if axis == 1 else 0 for axis in range(len(input.shape))] for number in _beside(size))
    padded, total = lo.pad(squares, before, after, 0.0), None
    for start in range(size):
        starts = [start if axis == 1 else 0 for axis in range(len(input.shape))]
        tap = lo.slice(padded, starts, [1] * len(starts), input.shape)
        total = tap if total is None else lo.pointwise("add", total, tap)
    assert total is not None
    mean = lo.cast(lo.compute(lambda a: a / float(size), total), input.dtype)
    return div(lo, input, power(lo, add(lo, mul(lo, mean, alpha), k), beta))


def _beside(size: int) -> tuple[int, int]:
    """The channels of a window before and behind its own."""
    return size // 2, (size - 1) // 2


# ---- to given sizes --------------------------------------------------------------------------------------------------


def _is_whole(input: Node, rank: int, kernel: Value, stride: Value, padding: Value) -> bool:
    """Whether the window is named as the picture's own sizes."""
    if not isinstance(kernel, (tuple, list)) or len(kernel) != rank or not input.dtype.is_float:
        return False
    named = all(isinstance(one, Expr) and one is size for one, size in zip(kernel, input.shape[-rank:], strict=True))
    plain = stride in (None, kernel, (), []) or (isinstance(stride, int) and stride > 0)
    return named and plain and padding in (0, (0,) * rank, [0] * rank)


def _whole(lo: Lowering, input: Node, rank: int) -> Node:
    axes = tuple(range(len(input.shape) - rank, len(input.shape)))
    for axis in axes:
        lo.require("!=", input.shape[axis], expr(0), "pooling of nothing")
    return mean(lo, input, axes, True)


def _lie_beside(lo: Lowering, input: Node, windows: Windows) -> bool:
    """Whether windows of many elements, as whole pictures, are all there is, side by side."""
    if not input.dtype.is_float or windows.elements <= costs.POOLED_ELEMENTS or any(windows.pad):
        return False
    columns = list(zip(input.shape[-len(windows.counts) :], windows.kernel, windows.step, windows.counts, strict=True))
    if any(kernel != step or lo.size(size) != kernel * lo.size(count) for size, kernel, step, count in columns):
        return False
    for size, kernel, _, count in columns:
        lo.require("==", size, kernel * count, "windows side by side")
    return True


def _equal_windows(lo: Lowering, input: Node, shape: Shape, rank: int) -> Node | None:
    """The mean of each window, where all are of one size and lie beside each other; else None."""
    lead = len(shape) - rank
    columns = list(zip(input.shape[lead:], shape[lead:], strict=True))
    if any(lo.size(count) == 0 or lo.size(size) == 0 or lo.size(size) % lo.size(count) for size, count in columns):
        return None
    size, count = columns[-1]
    if input.device == "cpu" and lo.size(size) < costs.POOLED_ROW * lo.size(count) and _is_row_major(input):
        return None
    apart = list(input.shape[:lead])
    by_elements = _few_elements(lo, input, columns)
    if by_elements is not None:
        return by_elements
    for size, count in columns:
        lo.require("==", size % count, expr(0), "equal windows")
        lo.require("!=", size, expr(0), "pooling of nothing")
        apart += [count, size // count]
    aside = lo.derived(input, "aside", (input,))  # eager's gradient leads to the input, by zeros
    return mean(lo, lo.reshape(aside, tuple(apart)), tuple(range(lead + 1, len(apart), 2)), False)


def _few_elements(lo: Lowering, input: Node, columns: Sequence[tuple[Expr, Expr]]) -> Node | None:
    """The same on a GPU as a window whose elements a kernel reads each by itself, where they are few and as many
    whatever the picture's size.
    """
    sides = tuple(lo.size(size) // lo.size(count) for size, count in columns)
    if not BY_ELEMENTS.get(type_of(input.device), True) or math.prod(sides) > costs.POOLED_ELEMENTS:
        return None
    if any(size.constant is None and count.constant is not None for size, count in columns):
        return None
    for (size, count), side in zip(columns, sides, strict=True):
        lo.require("==", size, count * side, "equal windows")
    found = _average_pool(len(sides))(lo, input, sides)
    return found if isinstance(found, Node) else None


def _equal_maxima(lo: Lowering, input: Node, shape: Shape, rank: int) -> Node | None:
    """The largest element of each window on a GPU, where all are of one size and lie beside each other; else None. The
    gradient is the library's, which gives it to one of equal elements.
    """
    lead = len(shape) - rank
    columns = list(zip(input.shape[lead:], shape[lead:], strict=True))
    if lo.differentiable or not input.dtype.is_float or not lo.sums_squares(input):
        return None
    if any(lo.size(count) == 0 or lo.size(size) == 0 or lo.size(size) % lo.size(count) for size, count in columns):
        return None
    apart = list(input.shape[:lead])
    for size, count in columns:
        lo.require("==", size % count, expr(0), "equal windows")
        lo.require("!=", size, expr(0), "pooling of nothing")
        apart += [count, size // count]
    return lo.reduce("amax", lo.reshape(input, tuple(apart)), tuple(range(lead + 1, len(apart), 2)))


def _is_row_major(node: Node) -> bool:
    """Whether a picture is computed from one whose last axis is the innermost in memory."""
    computed = node
    while TABLE[computed.op].kind in ELEMENTWISE or computed.op == "derived":
        computed = max(computed.inputs, key=lambda part: part.op not in ("full", "expand"))
    return computed is not node and (computed.strides is None or computed.strides[-1] == ONE)


def averaged(lo: Lowering, input: Node, sizes: Shape) -> Lowered:
    """The last dimensions averaged to so many windows each; the library's where they are not of one size."""
    rank = len(sizes)
    shape = (*input.shape[: len(input.shape) - rank], *sizes)
    if not input.dtype.is_float:
        return Shapes((shape,))
    if all(size == ONE for size in sizes):
        return _whole(lo, input, rank)
    return _equal_windows(lo, input, shape, rank) or Shapes((shape,))


def _adaptive(rank: int, average: bool, pair: bool = False) -> Rule:
    def lowered(lo: Lowering, input: Node, output_size: Value, return_indices: bool = False) -> Lowered:
        given = tuple(output_size) if isinstance(output_size, (tuple, list)) else (output_size,) * rank
        axes = tuple(range(len(input.shape) - rank, len(input.shape)))
        sizes = tuple(input.shape[axis] if size is None else expr(size) for axis, size in zip(axes, given, strict=True))
        if average and all(size is None or isinstance(size, int) for size in given):
            return averaged(lo, input, sizes)
        shape = (*input.shape[: axes[0]], *sizes)
        alone = not (average or pair or return_indices) and all(size is None or isinstance(size, int) for size in given)
        largest = _equal_maxima(lo, input, shape, rank) if alone else None
        if largest is not None:
            return largest
        return Shapes((shape, shape) if pair or return_indices else (shape,))

    return lowered


for _rank in (1, 2, 3):
    register((f"max_pool{_rank}d",), "pooling", _max_pool(_rank))
    register((f"max_pool{_rank}d_with_indices",), "pooling", _max_pool(_rank, pair=True))
    register((f"avg_pool{_rank}d",), "pooling", _average_pool(_rank))
    register((f"adaptive_avg_pool{_rank}d",), "pooling", _adaptive(_rank, True))
    register((f"adaptive_max_pool{_rank}d",), "pooling", _adaptive(_rank, False))
    register((f"adaptive_max_pool{_rank}d_with_indices",), "pooling", _adaptive(_rank, False, pair=True))
