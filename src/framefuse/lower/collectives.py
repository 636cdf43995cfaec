"""Gives the result shapes of functional collectives."""

from __future__ import annotations

from framefuse.ir.graph import Node
from framefuse.ir.numbers import expr
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering
from framefuse.lower.rules import Shapes, Unsupported, rule


@rule("collective.all_reduce", "collective.broadcast")
def all_reduce(lo: Lowering, input: Node, reduction: Value, group: Value) -> Shapes:
    return Shapes((input.shape,))


@rule("collective.all_gather_into_tensor")
def all_gather_into_tensor(lo: Lowering, input: Node, size: Value, group: Value) -> Shapes:
    if not input.shape:
        raise Unsupported
    return Shapes(((input.shape[0] * expr(size), *input.shape[1:]),))


@rule("collective.reduce_scatter_tensor")
def reduce_scatter_tensor(lo: Lowering, input: Node, reduction: Value, size: Value, group: Value) -> Shapes:
    if not input.shape or input.shape[0].constant is None:
        raise Unsupported
    return Shapes(((expr(input.shape[0].constant // size), *input.shape[1:]),))


@rule("collective.all_to_all_single")
def all_to_all_single(lo: Lowering, input: Node, output_sizes: Value, input_sizes: Value, group: Value) -> Shapes:
    if not input.shape:
        raise Unsupported
    return Shapes(((sum(map(expr, output_sizes), expr(0)), *input.shape[1:]),))
