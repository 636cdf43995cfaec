"""Lowers functions that give a tensor with a view of it replaced by another tensor, as a write to a copy of it does."""

from __future__ import annotations

from collections.abc import Callable

from framefuse.ir.builder import Unprovable
from framefuse.ir.graph import Node
from framefuse.ir.numbers import product
from framefuse.ir.values import Value
from framefuse.lower import cuts, diagonals, indexing
from framefuse.lower.aliases import Inexpressible, path_between, scatter
from framefuse.lower.context import Lowering
from framefuse.lower.gradients import REPLACED
from framefuse.lower.rules import Shapes, Unsupported, rule


@rule("select_scatter")
def select_scatter(lo: Lowering, input: Node, src: Node, dim: Value, index: Value) -> Node | Shapes:
    return _replaced(lo, input, src, lambda: cuts.select(lo, input, dim, index))


@rule("diagonal_scatter")
def diagonal_scatter(
    lo: Lowering, input: Node, src: Node, offset: Value = 0, dim1: Value = 0, dim2: Value = 1
) -> Node | Shapes:
    return _replaced(lo, input, src, lambda: diagonals.view(lo, input, offset, dim1, dim2))


@rule("slice_scatter")
def slice_scatter(
    lo: Lowering, input: Node, src: Node, dim: Value = 0, start: Value = None, end: Value = None, step: Value = 1
) -> Node | Shapes:
    axis = lo.axis(dim, len(input.shape))
    return _replaced(lo, input, src, lambda: _sliced(lo, input, axis, slice(start, end, step)))


def _sliced(lo: Lowering, input: Node, axis: int, part: slice) -> Node:
    shown = indexing.getitem(lo, input, (*[slice(None)] * axis, part))
    assert isinstance(shown, Node)
    return shown


def _replaced(lo: Lowering, input: Node, src: Node, view: Callable[[], Node]) -> Node | Shapes:
    """The operand's contents with ``src`` where the view is; eager's own call where that has no pure form."""
    before = dict(lo.relations)
    try:
        shown = view()
        path = path_between(shown, input)
        if path is None or src.dtype is not input.dtype or len(src.shape) != len(shown.shape):
            raise Unsupported("another form")
        for given, wanted in zip(src.shape, shown.shape, strict=True):
            lo.require("==", given, wanted, "a part")
        result = scatter(lo, path, input, src)
        whole = product(shown.shape) is product(input.shape)  # eager's gradient of what is replaced is zeros, not None
        return lo.derived(result, REPLACED, (result, input)) if whole else result
    except (Unsupported, Unprovable, Inexpressible):
        lo.relations = before
        return Shapes((input.shape,))
