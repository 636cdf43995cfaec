"""Gives the result shapes of calls that count elements: one size is known once the call has run, the others before."""

from __future__ import annotations

from framefuse.ir.builder import Shape
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, expr
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering
from framefuse.lower.rules import Counted, OpenShape, Shapes, Unsupported, rule


@rule("nonzero")
def nonzero(lo: Lowering, input: Node, *, as_tuple: bool = False, out: Value = None) -> Shapes:
    return positions(input) if as_tuple else Shapes(((Counted(input), expr(len(input.shape))),))


@rule("argwhere")
def argwhere(lo: Lowering, input: Node) -> Shapes:
    return nonzero(lo, input)


def positions(mask: Node) -> Shapes:
    """One line of positions for each dimension of a mask; a number counts as a line of one."""
    return Shapes(((Counted(mask),),) * max(1, len(mask.shape)))


@rule("masked_select")
def masked_select(lo: Lowering, input: Node, mask: Node, *, out: Value = None) -> Shapes:
    return Shapes(((Counted(mask if mask.shape == input.shape else None),),))


@rule("unique")
def unique(
    lo: Lowering, input: Node, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False,
    dim: Value = None,
) -> Shapes:  # fmt: skip
    if dim is not None or return_counts:
        raise Unsupported("two results of one size that nothing tells")
    shapes: tuple[OpenShape, ...] = ((Counted(),),)
    return Shapes((*shapes, input.shape) if return_inverse else shapes)


@rule("bincount")
def bincount(lo: Lowering, input: Node, weights: Value = None, minlength: Value = 0) -> Shapes:
    return Shapes(((Counted(),),))


def repeated(own: Shape, counts: tuple[Value, ...]) -> Shapes:
    """The shape of what repeats dimensions of the sizes ``own`` so often; a tensor's element may say how often."""
    wide = (*(expr(1) for _ in counts[len(own) :]), *own)
    shape = tuple(
        size * expr(count) if isinstance(count, (int, Expr)) else Counted()
        for count, size in zip(counts, wide, strict=True)
    )
    return Shapes((shape,))


def read_by_mask(mask: Node, axis: int, rest: Shape) -> Shapes:
    """What a mask reads, which lies at ``axis`` among the ``rest`` of the dimensions."""
    return Shapes(((*rest[:axis], Counted(mask), *rest[axis:]),))
