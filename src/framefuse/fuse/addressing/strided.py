"""Turns a chain of views into one strided view of the memory behind it, where there is one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from framefuse.fuse.addressing.indexing import MOVES, Split, operand_index
from framefuse.fuse.addressing.ranges import ZERO, address, nonnegative
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, Symbol

Strides = tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class View:
    """``node`` seen through ``strides`` from element ``offset`` of ``base``'s memory."""

    node: Node
    base: Node
    strides: Strides
    offset: Expr

    @property
    def of_a_tensor(self) -> Strides:
        """The strides with those of dimensions of size 1 as torch gives them: some of its calls step by them as if the
        dimension were longer.
        """
        strides: list[Expr] = []
        step = ZERO + 1
        for size, stride in zip(reversed(self.node.shape), reversed(self.strides), strict=True):
            strides.append(step if size.constant == 1 else stride)
            step = size * strides[-1]
        return tuple(reversed(strides))

    @property
    def is_whole(self) -> bool:
        """Whether this is the base itself."""
        return self.node is self.base


def strided(node: Node, strides_of: Callable[[Node], Strides], hints: Mapping[Symbol, int]) -> View | None:
    """The view of its base's memory that ``node`` is; None when no strides describe it."""
    base = node
    while base.op in MOVES:
        base = base.inputs[0]
    if base is node:
        return View(node, node, strides_of(node), ZERO)
    axes: list[list[tuple[Symbol, Expr]]] = [
        [] if size.constant == 1 else [(Symbol(f"@v{dim}"), size)] for dim, size in enumerate(node.shape)
    ]
    counter = len(axes)
    while True:
        extents = {axis: extent for parts in axes for axis, extent in parts}
        try:
            where = address(_base_index(node, axes, extents, hints), strides_of(base))
            break
        except Split as split:
            counter += 2
            outer, inner = Symbol(f"@v{counter}"), Symbol(f"@v{counter + 1}")
            pair = [(outer, extents[split.axis] // split.inner), (inner, split.inner)]
            axes = [[new for old in parts for new in (pair if old[0] is split.axis else [old])] for parts in axes]
    strides: list[Expr] = []
    for parts in axes:
        stride = _stride(where, parts)
        if stride is None or not nonnegative(stride):  # torch has no negative strides
            return None
        strides.append(stride)
        for axis, _ in parts:
            where = where.without(axis)
    if any(symbol.name.startswith("@") for symbol in where.symbols):
        return None
    return View(node, base, tuple(strides), where)


def _base_index(
    node: Node,
    axes: Sequence[Sequence[tuple[Symbol, Expr]]],
    extents: Mapping[Symbol, Expr],
    hints: Mapping[Symbol, int],
) -> tuple[Expr, ...]:
    index = []
    for parts in axes:
        position = ZERO
        for axis, extent in parts:
            position = position * extent + axis.expr
        index.append(position)
    where = tuple(index)
    while node.op in MOVES:
        where = operand_index(node, where, extents, hints)
        node = node.inputs[0]
    return where


def _stride(where: Expr, parts: Sequence[tuple[Symbol, Expr]]) -> Expr | None:
    """The step of one dimension whose axis was split into ``parts``, outermost first; 1 for a dimension of size 1."""
    stride = None
    expected = None
    for axis, extent in reversed(parts):
        slope = where.coefficient(axis)
        if slope is None or any(symbol.name.startswith("@") for symbol in slope.symbols):
            return None
        if stride is None:
            stride = slope
        elif slope is not expected:
            return None
        expected = slope * extent
    return stride if stride is not None else ZERO + 1


def one_batch_stride(sizes: Sequence[Expr], strides: Sequence[Expr]) -> Expr | None:
    """The stride of all leading dimensions taken as one; 0 for none or for broadcast ones; None when they have none."""
    innermost: Expr | None = None
    expected: Expr | None = None
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if size.constant == 1:
            continue
        if innermost is None:
            innermost = stride
        elif stride is not expected:
            return None
        expected = stride * size
    return innermost if innermost is not None else ZERO


def is_product_layout(rows: Expr, columns: Expr, row_stride: Expr, column_stride: Expr) -> bool:
    """Whether BLAS reads a matrix so: one stride is 1 and the other at least as long as the line that it steps over."""
    symbols = row_stride.symbols | column_stride.symbols | rows.symbols | columns.symbols  # of sizes above 0
    if column_stride.constant == 1 and (rows.constant == 1 or nonnegative(row_stride - columns, symbols)):
        return True
    return row_stride.constant == 1 and (columns.constant == 1 or nonnegative(column_stride - rows, symbols))
