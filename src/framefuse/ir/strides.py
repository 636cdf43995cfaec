"""Turns recorded strides into the order in which a tensor's dimensions lie in memory, and an order into strides."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import torch

from framefuse.ir.builder import ONE, Shape
from framefuse.ir.numbers import Expr
from framefuse.ir.trace import TensorMeta


def dense_order(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The permutation, outermost dimension first, in which the tensor is dense; None when it is not.

    Dimensions of size 1 lie anywhere: they keep their place next to the dimension on their left. A tensor without
    elements is row-major.
    """
    return _dense_order(tuple(sizes), tuple(strides))


@lru_cache(maxsize=4096)  # layers of a net have few shapes
def _dense_order(sizes: tuple[int, ...], strides: tuple[int, ...]) -> tuple[int, ...] | None:
    rank = len(sizes)
    if 0 in sizes:
        return tuple(range(rank))
    real = sorted((axis for axis in range(rank) if sizes[axis] != 1), key=lambda axis: (-strides[axis], axis))
    expected = 1
    for axis in reversed(real):
        if strides[axis] != expected:
            return None
        expected *= sizes[axis]
    ones = [axis for axis in range(rank) if sizes[axis] == 1]
    if not ones:
        return tuple(real)
    return _with_ones(real, ones, sizes, strides)


def shown_order(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...] | None:
    """The :func:`dense_order` that gives dimensions of size 1 their own strides, too, where one does."""
    order = dense_order(sizes, strides)
    ones = [axis for axis in range(len(sizes)) if sizes[axis] == 1]
    if order is None or not ones or 0 in sizes:
        return order
    mine = _by_strides([axis for axis in order if sizes[axis] != 1], ones, sizes, strides)
    steps, step = dict[int, int](), 1
    for axis in reversed(mine):
        steps[axis] = step
        step *= sizes[axis]
    return mine if all(steps[axis] == strides[axis] for axis in ones) else order


def unclear(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The axes of size 1 whose place in :func:`dense_order` might be another one if their size were another: strides
    say that it is, or are equal and say nothing.
    """
    order = dense_order(sizes, strides)
    ones = tuple(axis for axis in range(len(sizes)) if sizes[axis] == 1)
    if order is None or 0 in sizes or not ones:
        return ()
    real = [axis for axis in order if sizes[axis] != 1]
    if order != _by_strides(real, ones, sizes, strides):
        return ones
    return tuple(axis for place, axis in enumerate(ones) if any(strides[axis] == strides[one] for one in ones[:place]))


def tied(sizes: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """The pairs of axes with one stride, as the windows of a vector and the elements of each: their sizes decide in
    which order eager lays out what is computed from such a tensor, the larger first.
    """
    axes = [axis for axis in range(len(sizes)) if sizes[axis] > 1 and strides[axis]]
    return tuple((one, other) for one in axes for other in axes if one < other and strides[one] == strides[other])


def joined(sizes: Sequence[int], strides: Sequence[int]) -> tuple[tuple[int, int], ...]:
    """Of a tensor with gaps, or that shows elements again, the pairs of axes without a gap between them, the wider step
    first, from the narrowest pair on: a step along the first goes over all of the second.
    """
    if dense_order(sizes, strides) is not None:
        return ()
    real = [axis for axis in range(len(sizes)) if sizes[axis] > 1 and strides[axis]]
    real.sort(key=lambda axis: strides[axis])
    pairs = zip(real[1:], real, strict=False)
    return tuple((wide, narrow) for wide, narrow in pairs if strides[wide] == sizes[narrow] * strides[narrow])


def irregular(sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """The axes of size 1 of a dense tensor whose strides are not those that its :func:`dense_order` gives them, as in a
    slice of an expanded tensor: how eager lays out what is computed from it says nothing of larger sizes.
    """
    order = dense_order(sizes, strides)
    if order is None or 0 in sizes:
        return ()
    axes, step = [], 1
    for axis in reversed(order):
        if sizes[axis] == 1 and strides[axis] != step:
            axes.append(axis)
        step *= sizes[axis]
    return tuple(axes)


def ambiguous(meta: TensorMeta) -> tuple[int, ...]:
    """The axes of size 1 of which the recorded strides do not tell where :func:`order_like` has them at other sizes."""
    if dense_order(meta.sizes, meta.strides) is None:
        return tuple(axis for axis, size in enumerate(meta.sizes) if size == 1)
    return tuple(dict.fromkeys((*unclear(meta.sizes, meta.strides), *irregular(meta.sizes, meta.strides))))


def order_like(meta: TensorMeta) -> tuple[int, ...]:
    """The order of dimensions of what ``empty_like`` makes of such a tensor."""
    order = dense_order(meta.sizes, meta.strides)
    if order is None:
        model = torch.empty_like(torch.empty_strided(meta.sizes, meta.strides, dtype=meta.dtype, device="meta"))
        order = dense_order(meta.sizes, model.stride())
        assert order is not None, "what empty_like makes has no gaps"
    return order


def _with_ones(real: list[int], ones: list[int], sizes: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    return tuple(range(len(sizes))) if real == sorted(real) else _by_strides(real, ones, sizes, strides)


def _by_strides(
    real: Sequence[int], ones: Sequence[int], sizes: Sequence[int], strides: Sequence[int]
) -> tuple[int, ...]:
    """Places dimensions of size 1 where their strides say that torch meant them to lie: before the dimension with the
    next smaller stride.
    """
    order = list(real)
    for axis in ones:
        inside = (i for i, other in enumerate(order) if _lies_inside(other, axis, sizes, strides))
        order.insert(next(inside, len(order)), axis)
    return tuple(order)


def _lies_inside(other: int, one: int, sizes: Sequence[int], strides: Sequence[int]) -> bool:
    if sizes[other] == 1:
        return strides[other] < strides[one]
    return strides[other] * sizes[other] <= strides[one]


def dense_strides(shape: Shape, order: Sequence[int]) -> Shape:
    """The strides, in elements, of a dense tensor whose dimensions lie in ``order``, outermost first."""
    strides: list[Expr] = [ONE] * len(shape)
    step = ONE
    for axis in reversed(order):
        strides[axis] = step
        step = step * shape[axis]
    return tuple(strides)


def row_major(sizes: Sequence[int]) -> tuple[int, ...]:
    """The strides of a contiguous tensor of these sizes."""
    strides, step = [1] * len(sizes), 1
    for axis in reversed(range(len(sizes))):
        strides[axis] = step
        step *= max(sizes[axis], 1)
    return tuple(strides)
