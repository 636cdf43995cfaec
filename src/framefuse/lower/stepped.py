"""Lowers ``as_strided`` of row-major memory to views that kernels read where they lie."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.ir.builder import ONE, ZERO
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr
from framefuse.ir.strides import dense_order, dense_strides
from framefuse.ir.values import Value
from framefuse.lower.context import Lowering
from framefuse.lower.line_windows import in_place
from framefuse.lower.rules import Unsupported, rule

WHY = "how a view lies in its memory"


@rule("as_strided")
def as_strided(lo: Lowering, input: Node, size: Value, stride: Value, storage_offset: Value = None) -> Node:
    """Steps that lie in one another, as rows and what is in them do, are rows cut and cut again, and rows that overlap
    are windows. What begins elsewhere is the library's: an offset counts from where the memory begins, which is not
    where the tensor does.
    """
    shape, strides = lo.shape_of(size), lo.shape_of(stride)
    if storage_offset is not None or len(shape) != len(strides) or not _is_row_major(lo, input):
        raise Unsupported("memory in another order")
    if any(lo.size(count) == 0 for count in shape):
        raise Unsupported("no element")
    axes = [axis for axis, step in enumerate(strides) if _moves(lo, shape[axis], step)]
    axes.sort(key=lambda axis: lo.size(strides[axis]), reverse=True)
    node = _cut(lo, lo.reshape(input, (lo.count(input.shape),)), [(shape[axis], strides[axis]) for axis in axes])
    node = lo.permute(node, [axes.index(axis) for axis in sorted(axes)])
    node = lo.reshape(node, tuple(size if axis in axes else ONE for axis, size in enumerate(shape)))
    return lo.expand(node, shape)


def _moves(lo: Lowering, size: Expr, stride: Expr) -> bool:
    """Whether another place in a dimension is another element."""
    for value, still in ((size, ONE), (stride, ZERO)):
        if lo.size(value) == lo.size(still):
            lo.require("==", value, still, WHY)
            return False
    return True


def _is_row_major(lo: Lowering, node: Node) -> bool:
    """Whether eager's operand is an argument that is row-major without gaps, whatever its sizes."""
    meta = lo.memory.get(node)
    rows = tuple(range(len(node.shape)))
    if meta is None or dense_order(meta.sizes, meta.strides) != rows:
        return False
    while node.op in ("detach", "derived", "reshape"):
        node = node.inputs[0]
    return node.op == "input" and node.strides == dense_strides(node.shape, tuple(range(len(node.shape))))


def _cut(lo: Lowering, line: Node, steps: Sequence[tuple[Expr, Expr]]) -> Node:
    """The last dimension of ``line`` as dimensions of these sizes and steps, the widest step first."""
    *front, length = line.shape
    plain, axis = [1] * len(front), len(front)
    if not steps:
        return lo.reshape(lo.narrow(line, axis, ZERO, ONE), tuple(front))
    (count, step), *rest = steps
    if not rest and step.constant is not None:
        lo.require("<=", (count - 1) * step, length - 1, WHY)
        return lo.slice(line, [ZERO] * len(line.shape), [*plain, step.constant], (*front, count))
    reach = sum(((inner - 1) * stride for inner, stride in rest), ONE)
    if lo.size(reach) > lo.size(step):
        if not reach.constant or not step.constant:
            raise Unsupported("rows that overlap")
        lo.require("<=", (count - 1) * step + reach, length, WHY)
        return _cut(lo, in_place(lo, line, axis, count, reach.constant, step.constant), rest)
    lo.require("<=", count * step, length, WHY)
    whole = lo.narrow(line, axis, ZERO, count * step)
    return _cut(lo, lo.reshape(whole, (*front, count, step)), rest)
