"""Gives what backward graphs call where torch has no single function: a process whose backwards were kept calls these,
and imports nothing that differentiates.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch.nn import functional

from framefuse.ir.values import Value

Function = TypeVar("Function", bound=Callable[..., Value])


def inside(function: Function) -> Function:
    """Says of a function that it neither keeps nor returns the memory of an operand: it may see any memory."""
    function.inside = True  # type: ignore[attr-defined]
    return function


@inside
def times_transposed(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a`` times the transpose of ``b``."""
    return a @ b.mT


@inside
def transposed_times(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The transpose of ``a`` times ``b``."""
    return a.mT @ b


@inside
def times_adjoint(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a`` times the adjoint of ``b``."""
    return a @ b.mH


@inside
def adjoint_times(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The adjoint of ``a`` times ``b``."""
    return a.mH @ b


@inside
def times_adjoint_by_columns(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same with its columns in memory one behind the other."""
    return (b.conj() @ a.mT).mT


@inside
def adjoint_times_by_columns(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same with its columns in memory one behind the other."""
    return (b.mT @ a.conj()).mT


@inside
def times_conjugate(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """``a`` times the conjugate of ``b``."""
    return a @ b.conj()


@inside
def times_conjugate_by_columns(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same with its columns in memory one behind the other."""
    return (b.mH @ a.mT).mT


@inside
def transposed_times_conjugate(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The transpose of ``a``, all but its last dimension as one, times the conjugate of ``b`` alike."""
    return a.flatten(0, -2).mT @ b.flatten(0, -2).conj()


@inside
def rows_adjoint_times(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The adjoint of ``a``, all but its last dimension as one, times ``b`` alike."""
    return a.flatten(0, -2).mH @ b.flatten(0, -2)


@inside
def rows_adjoint_times_by_columns(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The same with its columns in memory one behind the other."""
    return (b.flatten(0, -2).mT @ a.flatten(0, -2).conj()).mT


@inside
def rows_summed(a: torch.Tensor) -> torch.Tensor:
    """The sum of ``a`` along all but its last dimension."""
    return a.flatten(0, -2).sum(0)


# How the matrices of the two lie: as they are (n) or transposed (t).
times_transposed.product = "nt"  # type: ignore[attr-defined]
transposed_times.product = "tn"  # type: ignore[attr-defined]


@inside
def conjugate_summed(a: torch.Tensor, b: torch.Tensor, sizes: Sequence[int]) -> torch.Tensor:
    """``a`` times the conjugate of ``b``, summed along what the operand of these sizes was repeated along."""
    return (a * b.conj()).sum_to_size(tuple(sizes))


@inside
def rows_added(source: torch.Tensor, index: torch.Tensor, axis: int, size: int) -> torch.Tensor:
    """Zeros with ``size`` entries along ``axis``, to which slice ``i`` of ``source`` is added at ``index[i]``."""
    shape = (*source.shape[:axis], size, *source.shape[axis + 1 :])
    if source.dim() > 1 and source.shape[axis] == source.numel() > 0:  # elements are faster than rows of one
        return source.new_zeros(size).index_add_(0, index, source.reshape(-1)).view(shape)
    return source.new_zeros(shape).index_add_(axis, index, source)


@inside
def elements_added(source: torch.Tensor, index: torch.Tensor, axis: int, shape: Sequence[int]) -> torch.Tensor:
    """Zeros of ``shape``, to which each element of ``source`` is added at its place in ``index`` along ``axis``."""
    return source.new_zeros(shape).scatter_add_(axis, index, source)


@inside
def elements_placed(source: torch.Tensor, index: torch.Tensor, axis: int, shape: Sequence[int]) -> torch.Tensor:
    """Zeros of ``shape``, each element of ``source`` at its own place in ``index`` along ``axis``."""
    return source.new_zeros(shape).scatter_(axis, index, source)


@inside
def cleared(g: torch.Tensor, index: Value) -> torch.Tensor:
    """A copy of ``g`` with zeros at ``index``."""
    return g.index_put(index, g.new_zeros(()))


@inside
def elements_cleared(g: torch.Tensor, axis: int, index: torch.Tensor) -> torch.Tensor:
    """A copy of ``g`` with zeros at the places in ``index`` along ``axis``."""
    return g.scatter(axis, index, 0)


@inside
def rows_cleared(g: torch.Tensor, axis: int, index: torch.Tensor) -> torch.Tensor:
    """A copy of ``g`` with zeros in the slices ``index`` along ``axis``."""
    return g.index_fill(axis, index, 0)


@inside
def picked(g: torch.Tensor, index: Value) -> torch.Tensor:
    """What ``g`` holds at several tensors of positions."""
    gradient: torch.Tensor = torch.ops.aten.index.Tensor(g, index)
    return gradient


@inside
def taken_by(g: torch.Tensor, mask: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """The elements of ``g`` under a mask, one after the other from the start of a tensor of ``shape``."""
    taken: torch.Tensor = torch.ops.aten.masked_scatter_backward.default(g, mask, shape)
    return taken


@inside
def added_where_read(g: torch.Tensor, index: Value, shape: Sequence[int]) -> torch.Tensor:
    """Zeros of ``shape``, to which ``g`` is added where ``index`` reads them."""
    total = g.new_zeros(shape)
    shown, plain, tensors = [], True, []
    for item in index if isinstance(index, tuple) else (index,):
        if isinstance(item, list):
            item = torch.tensor(item, dtype=torch.int64, device=g.device)
        if isinstance(item, torch.Tensor) and item.dim():
            wide = item.dim() if item.dtype is torch.bool else 1
            shown += [slice(None)] * wide
            tensors.append((item, wide))
        else:
            shown.append(item)
            plain = plain and item == slice(None)
            tensors.append((item, 1))
    view = total if plain else total[tuple(shown)]
    indices = _dimensions(tensors, view.dim())
    if not indices:  # slices and numbers alone, which read no element twice
        view.copy_(g)
        return total
    whole = any(part is None for part in indices)  # which torch's own binding does not take
    put = torch.ops.aten._index_put_impl_.default if whole else torch._index_put_impl_
    put(view, indices, g, True, True)
    return total


def _dimensions(items: Sequence[tuple[Value, int]], rank: int) -> list[torch.Tensor | None]:
    """What a list of positions holds for each dimension that a basic index left; ``items`` are the index and how many
    dimensions each takes.
    """
    by_dimension: list[torch.Tensor | None] = []
    for place, (item, _) in enumerate(items):
        if item is Ellipsis:
            behind = sum(_shown(part) * wide for part, wide in items[place + 1 :])
            ahead = sum(_shown(part) * wide for part, wide in items[:place])
            by_dimension += [None] * (rank - ahead - behind)
        elif isinstance(item, torch.Tensor) and item.dim():
            by_dimension.append(item)
        elif _shown(item):
            by_dimension.append(None)
    while by_dimension and by_dimension[-1] is None:
        by_dimension.pop()
    return by_dimension


def _shown(item: Value) -> bool:
    """Whether this part of an index leaves a dimension: a number does not."""
    return item is None or isinstance(item, slice) or (isinstance(item, torch.Tensor) and item.dim() > 0)


@inside
def put_by_mask(g: torch.Tensor, mask: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Zeros of ``shape`` with the elements of ``g``, one after the other, under a mask."""
    return g.new_zeros(shape).masked_scatter_(mask, g)


@inside
def put_flat(g: torch.Tensor, index: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    """Zeros of ``shape``, to which each element of ``g`` is added at its place in ``index``, counted row by row."""
    return g.new_zeros(shape).put_(index, g, True)


@inside
def windows_added(g: torch.Tensor, shape: Sequence[int], axis: int, size: int, step: int) -> torch.Tensor:
    """Zeros of ``shape``, to which windows are added where they were seen."""
    total: torch.Tensor = torch.ops.aten.unfold_backward.default(g, shape, axis, size, step)
    return total


@inside
def columns_added(
    g: torch.Tensor, size: Sequence[int], kernel: Value, dilation: Value, padding: Value, stride: Value
) -> torch.Tensor:
    """Columns of patches, added up to pictures of ``size``."""
    return functional.fold(g, tuple(size), kernel, dilation, padding, stride)


@inside
def columns_of(g: torch.Tensor, kernel: Value, dilation: Value, padding: Value, stride: Value) -> torch.Tensor:
    """Columns of the patches of pictures."""
    return functional.unfold(g, kernel, dilation, padding, stride)


@inside
def products_backward(g: torch.Tensor, source: torch.Tensor, axis: int, products: torch.Tensor) -> torch.Tensor:
    """The gradient of all products of elements up to each along an axis, also where some are zero."""
    gradient: torch.Tensor = torch.ops.aten.cumprod_backward.default(g, source, axis, products)
    return gradient


@inside
def zeros(came: torch.Tensor, sizes: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """A tensor of zeros beside one that came."""
    return came.new_zeros(sizes, dtype=dtype)
