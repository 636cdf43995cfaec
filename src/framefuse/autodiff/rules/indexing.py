"""Gradients of reads at positions: what was read is added back where it was read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from framefuse.autodiff.library import call, calls
from framefuse.autodiff.registry import Gradient, vjp, vjp_derived
from framefuse.ir.backward_calls import elements_added, rows_added
from framefuse.ir.builder import ONE, Builder
from framefuse.ir.dtypes import INT64
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, expr


@vjp("take")
def take(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    source, index = node.inputs
    axis, size = node.attr("axis"), source.shape[node.attr("axis")]
    index = builder.cast(index, INT64)
    if node.attr("wrap"):
        zero = builder.full(0, INT64, index.shape, index.device)
        behind = builder.pointwise("add", index, builder.full(size, INT64, index.shape, index.device))
        index = builder.pointwise("where", builder.pointwise("lt", index, zero), behind, index)
    count = builder.count(index.shape)
    index = builder.reshape(index, (count,))
    if axis == 0:
        return [rows_of_table(builder, g, index, source), None]
    flat = builder.reshape(g, (*source.shape[:axis], count, *source.shape[axis + 1 :]))
    return [call(builder, rows_added, (flat, index, axis, size), like=source), None]


def rows_of_table(
    builder: Builder, g: Node, index: Node, table: Node, padding: int | Expr = -1, by_count: bool = False
) -> Node:
    """The gradient of a table of rows, of which row ``index[i]`` received entry ``i`` of ``g``. Row ``padding``
    receives none; ``by_count`` divides a row by how often it was read.
    """
    rows, width, count = table.shape[0], builder.count(table.shape[1:]), builder.count(index.shape)
    flat = builder.reshape(g, (count, width))
    result = [((), table.dtype, (rows, width))]
    if g.device == "cpu" and expr(padding).constant == -1 and not by_count:
        # The library's function for embeddings takes 2 to 14 times as long there.
        index = builder.cast(builder.reshape(index, (count,)), INT64)
        (gradient,) = calls(builder, rows_added, (flat, index, 0, rows), result)
        return builder.reshape(gradient, table.shape)
    target, args = torch.ops.aten.embedding_dense_backward.default, (flat, index, rows, padding, by_count)
    (gradient,) = calls(builder, target, args, result, name="embedding_dense_backward")
    return builder.reshape(gradient, table.shape)


@vjp("scatter_add")
def scatter_add(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    return [g, None, builder.gather(g, node.inputs[1], node.attr("axis"))]


@vjp("gather")
def gather(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    source, index = node.inputs
    axis = node.attr("axis")
    alone = element_of_rows(builder, g, index, source, axis)
    if alone is not None:
        return [alone, None]
    return [call(builder, elements_added, (g, index, axis, source.shape), like=source), None]


def element_of_rows(builder: Builder, g: Node, index: Node, source: Node, axis: int) -> Node | None:
    """The gradient where one element of each row was read: a comparison, which fuses."""
    pairs = enumerate(zip(source.shape, index.shape, strict=True))
    same = all(builder.known_equal(a, b) for place, (a, b) in pairs if place != axis)
    if index.shape[axis] is not ONE or not same:
        return None
    column = tuple(ONE if place == axis else size for place, size in enumerate(source.shape))
    index, g = builder.resized(index, column), builder.resized(g, column)
    row = builder.iota(0, 1, INT64, source.shape[axis], source.device)
    lying = tuple(size if place == axis else ONE for place, size in enumerate(source.shape))
    places = builder.expand(builder.reshape(row, lying), source.shape)
    hit = builder.pointwise("eq", places, builder.expand(index, source.shape))
    zero = builder.full(0, g.dtype, source.shape, g.device)
    return builder.pointwise("where", hit, builder.expand(g, source.shape), zero)


# ---- where eager adds gradients in any order, and kernels can --------------------------------------------------------


@vjp_derived("elements_added")
def elements_in_any_order(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    source, index = node.inputs[1:]
    (axis,) = node.attr("parameters")
    alone = element_of_rows(builder, g, index, source, axis)
    if alone is not None:
        return [None, alone, None]
    zero = builder.full(0, g.dtype, source.shape, g.device)
    return [None, builder.scatter_add(zero, index, g, axis), None]


@vjp_derived("rows_added")
def rows_in_any_order(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    source, index = node.inputs[1:]
    (axis,) = node.attr("parameters")
    lying = tuple(size if place == axis else ONE for place, size in enumerate(g.shape))
    places = builder.expand(builder.reshape(builder.cast(index, INT64), lying), g.shape)
    zero = builder.full(0, g.dtype, source.shape, g.device)
    return [None, builder.scatter_add(zero, places, g, axis), None]
