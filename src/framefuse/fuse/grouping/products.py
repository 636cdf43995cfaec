"""Turns the matrix products of a graph into BLAS calls over strided operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from framefuse.fuse.addressing.layout import Order, estimate
from framefuse.fuse.addressing.product_layouts import has_blas_type, readable
from framefuse.fuse.addressing.ranges import ONE, ZERO
from framefuse.fuse.addressing.strided import Strides, View, is_product_layout, one_batch_stride, strided
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, Symbol, product
from framefuse.ir.schedule import RunMatmul


def product_order(operand: Node, strides_of: Callable[[Node], Strides], hints: Mapping[Symbol, int]) -> Order:
    """The layout of a copied operand: matrices one after the other, each along the memory that the copy reads."""
    rank = len(operand.shape)
    view = strided(operand, strides_of, hints)
    order = tuple(range(rank))
    if view is None:
        return order
    row, column = (estimate(stride, hints) for stride in view.strides[-2:])
    return (*order[:-2], rank - 1, rank - 2) if 0 < row < column else order


def is_blas(node: Node, a: View, c: View, out_strides: Strides) -> bool:
    """Whether the product is one BLAS call; other dtypes and layouts are a library call."""
    views = (a, c, View(node, node, out_strides, ZERO))
    return has_blas_type(node) and all(readable(view) is not None for view in views)


def run_matmul(node: Node, out: int, a: tuple[int, View], c: tuple[int, View], out_strides: Strides) -> RunMatmul:
    """The item for the product ``node``; ``a`` and ``c`` are buffers with their views. A right operand that is the same
    for the whole batch is multiplied once, with the batch folded into the rows.
    """
    left, right = a[1], c[1]
    m, k = left.node.shape[-2:]
    n = node.shape[-1]
    batch = product(node.shape[:-2])
    a_batch = one_batch_stride(left.node.shape[:-2], left.strides[:-2]) or ZERO
    c_batch = one_batch_stride(right.node.shape[:-2], right.strides[:-2]) or ZERO
    out_batch = one_batch_stride(node.shape[:-2], out_strides[:-2]) or ZERO
    a_row, out_row = left.strides[-2], out_strides[-2]
    if batch.constant != 1 and c_batch.constant == 0 and m.constant == 1:
        # One row for each member of the batch: the batch is the rows.
        if _may_be_rows(left, a_batch, k) and out_strides[-1].constant == 1:
            a_row, out_row, m, batch, a_batch, out_batch = a_batch, out_batch, batch, ONE, ZERO, ZERO
    elif batch.constant != 1 and c_batch.constant == 0 and a_batch is a_row * m and out_batch is out_row * m:
        m, batch, a_batch, out_batch = m * batch, ONE, ZERO, ZERO
    return RunMatmul(
        out, a[0], c[0], (batch, m, n, k),
        (a_batch, a_row, left.strides[-1]),
        (c_batch, right.strides[-2], right.strides[-1]),
        (out_batch, out_row, out_strides[-1]),
        node.line,
    )  # fmt: skip


def _may_be_rows(left: View, a_batch: Expr, k: Expr) -> bool:
    return left.strides[-1].constant == 1 and is_product_layout(ONE + 1, k, a_batch, ONE)
