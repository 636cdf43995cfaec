"""Lowers reads and writes by index: basic indexing as views, integer tensors as reads at positions."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

from framefuse.ir import costs
from framefuse.ir.builder import ONE, ZERO, Shape
from framefuse.ir.dtypes import BOOL, INT64
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, ceildiv, expr
from framefuse.ir.values import Value
from framefuse.lower.aliases import Inexpressible, path_between, scatter
from framefuse.lower.context import Lowering
from framefuse.lower.counted_shapes import read_by_mask
from framefuse.lower.cuts import in_bounds
from framefuse.lower.logic import select_where
from framefuse.lower.promotion import is_number
from framefuse.lower.rules import Lowered, Shapes, Unsupported, rule

LAST = 2**63 - 1  # how an operator says: to the end


@dataclass(slots=True)
class _Box:
    """A basic index applied: where each operand axis starts, its step and length, and the result's dimensions.

    ``shown`` lists them in order: an operand axis, or None for a new dimension. ``tensors`` pairs an operand axis (it
    stays whole in the box) with the integer tensor that reads it.
    """

    starts: list[Expr]
    steps: list[int]
    lengths: list[Expr]
    shown: list[int | None]
    tensors: list[tuple[int, Node]]
    listed: list[tuple[int, Shape]] = field(default_factory=list)  # the same for positions written as a list


def _parse(lo: Lowering, node: Node, index: Value) -> _Box:
    items = list(index) if isinstance(index, tuple) else [index]
    used = sum(_axes_of(item) for item in items)
    rank = len(node.shape)
    if used > rank:
        raise Unsupported("too many indices")
    if ... not in [item for item in items if not isinstance(item, Node)]:
        items.append(...)
    box = _Box([expr(0)] * rank, [1] * rank, list(node.shape), [], [])
    axis = 0
    for item in items:
        if item is ...:
            box.shown += range(axis, axis + rank - used)
            axis += rank - used
        elif item is None:
            box.shown.append(None)
        elif isinstance(item, slice):
            box.starts[axis], box.steps[axis], box.lengths[axis] = _slice(lo, item, node.shape[axis])
            box.shown.append(axis)
            axis += 1
        elif isinstance(item, Node):
            box.tensors.append((axis, item))
            box.shown.append(axis)
            axis += 1
        elif isinstance(item, list):
            box.listed.append((axis, (expr(len(item)),)))
            box.shown.append(axis)
            axis += 1
        else:
            place = in_bounds(lo, item, node.shape[axis])
            lo.require("<", place, node.shape[axis], "an index")
            box.starts[axis], box.lengths[axis] = place, ONE
            axis += 1
    return box


def _axes_of(item: Value) -> int:
    if item is None or item is ...:
        return 0
    if isinstance(item, Node):
        if not item.dtype.is_integral or item.dtype is BOOL or item.dtype.name == "uint8":
            raise Unsupported("a mask as index")
        return 1
    if isinstance(item, list) and all(type(place) is int for place in item):
        return 1
    if isinstance(item, bool) or not isinstance(item, (int, Expr, slice)):
        raise Unsupported(f"an index of type {type(item).__name__}")
    return 1


def _slice(lo: Lowering, item: slice, size: Expr) -> tuple[Expr, int, Expr]:
    """Start, step and length of a Python slice of a dimension, as decided by the recorded sizes."""
    target = lo.targets(lo.place)
    step = 1 if item.step is None else lo.fixed(item.step, "a step") if target and target.tiles else item.step
    if not isinstance(step, int) or step <= 0 or any(isinstance(bound, Node) for bound in (item.start, item.stop)):
        raise Unsupported("step or bounds of a slice")
    start = expr(0) if item.start is None else _clamped(lo, item.start, size)
    stop = size if item.stop is None else _clamped(lo, item.stop, size)
    if lo.size(stop) <= lo.size(start):
        lo.require("<=", stop, start, "an empty slice")
        return expr(0), 1, expr(0)
    lo.require("<=", start, stop, "a slice")
    return start, step, stop - start if step == 1 else ceildiv(stop - start, step)


def _clamped(lo: Lowering, bound: Value, size: Expr) -> Expr:
    place = expr(bound)
    if lo.size(place) < 0:
        if place.constant is None:
            lo.require("<", place, expr(0), "a negative bound")
        place = place + size
        if lo.size(place) < 0:
            lo.require("<=", place, expr(0), "a slice")
            return expr(0)
    if lo.size(place) <= lo.size(size):
        lo.require("<=", expr(0), place, "a slice")
        lo.require("<=", place, size, "a slice")
        return place
    lo.require("<=", size, place, "a slice")
    return size


@rule("__getitem__")
def getitem(lo: Lowering, input: Node, index: Value) -> Lowered:
    items = list(index) if isinstance(index, tuple) else [index]
    masks = [place for place, item in enumerate(items) if _is_mask(item)]
    if masks:
        return _by_mask(lo, input, items, *masks)
    items = [_places(lo, item, input) if isinstance(item, list) else item for item in items]
    box = _parse(lo, input, tuple(items))
    if box.listed:
        return _many(lo, box)
    view = lo.slice(input, box.starts, box.steps, box.lengths)
    if len(box.tensors) == 1:
        return _take(lo, view, box)
    return _many(lo, box) if box.tensors else _shown(lo, view, box)


def _places(lo: Lowering, item: list[Value], input: Node) -> Value:
    """A few positions written as a list, as a tensor."""
    if not 0 < len(item) <= costs.LISTED_PLACES or any(type(place) is not int for place in item):
        return item
    step = item[1] - item[0] if len(item) > 1 else 0
    if all(right - left == step for left, right in itertools.pairwise(item)):
        return lo.iota(item[0], step, INT64, expr(len(item)), input.device)
    return lo.cat([lo.full(place, INT64, (ONE,), input.device) for place in item], 0)


def _is_mask(item: Value) -> bool:
    return isinstance(item, Node) and bool(item.shape) and item.dtype.name in ("bool", "uint8")


def _by_mask(lo: Lowering, input: Node, items: list[Value], place: int, *more: int) -> Shapes:
    """What one mask, among ints, slices and new axes, reads."""
    mask: Node = items[place]
    rank = len(mask.shape)
    box = _parse(lo, input, (*items[:place], *[slice(None)] * rank, *items[place + 1 :]))
    ints = len(box.starts) != sum(axis is not None for axis in box.shown)
    if more or box.tensors or box.listed or (ints and rank > 1):
        raise Unsupported("a mask beside other positions")
    before = sum(item is None or isinstance(item, slice) for item in items[:place])
    if any(item is ... for item in items[:place]):
        behind = sum(item is None or isinstance(item, slice) for item in items[place + 1 :])
        before = len(box.shown) - rank - behind
    for axis, size in zip(box.shown[before : before + rank], mask.shape, strict=True):
        if axis is None:
            raise Unsupported("a mask of a new axis")
        lo.require("==", size, box.lengths[axis], "a mask")
    rest = tuple(ONE if axis is None else box.lengths[axis] for axis in box.shown)
    return read_by_mask(mask, before, (*rest[:before], *rest[before + rank :]))


def _shown(lo: Lowering, view: Node, box: _Box) -> Node:
    """What an index of ints, slices and new axes shows of the sliced operand."""
    return lo.reshape(view, tuple(ONE if axis is None else box.lengths[axis] for axis in box.shown))


@rule("aten.index")
def index(lo: Lowering, input: Node, indices: Value) -> Lowered:
    """The operator behind tensors as index: None is a dimension that stays whole."""
    return getitem(lo, input, tuple(slice(None) if part is None else part for part in indices))


@rule("aten.slice")
def sliced(
    lo: Lowering, input: Node, dim: Value = 0, start: Value = None, end: Value = None, step: Value = 1
) -> Lowered:
    whole = isinstance(end, int) and end == LAST
    items = slice(start, None if whole else end, step)
    return getitem(lo, input, (*[slice(None)] * lo.axis(dim, len(input.shape)), items))


def _take(lo: Lowering, view: Node, box: _Box) -> Node:
    (axis, index), *_ = box.tensors
    taken = _rows(lo, view, index, axis, True)
    shape: list[Expr] = []
    for shown in box.shown:
        shape += index.shape if shown == axis else [ONE if shown is None else box.lengths[shown]]
    return lo.reshape(taken, tuple(shape))


def _rows(lo: Lowering, node: Node, index: Node, axis: int, wrap: bool) -> Node:
    """Rows at positions. Eager checks positions and the size of ``axis`` also where the rows hold nothing; a kernel
    looks at a position where it reads something there.
    """
    for place, size in enumerate(node.shape):
        if place != axis:
            lo.require("!=", size, ZERO, "rows at positions")
    return lo.take(node, index, axis, wrap)


def _many(lo: Lowering, box: _Box) -> Shapes:
    """Several integer tensors or a list side by side: torch reads; the result's shape is known."""
    shapes = {**{axis: index.shape for axis, index in box.tensors}, **dict(box.listed)}
    places = [box.shown.index(axis) for axis in sorted(shapes)]
    read = lo.broadcast(*shapes.values())
    sizes = [ONE if axis is None else box.lengths[axis] for axis in box.shown]
    if places != list(range(places[0], places[0] + len(places))):  # apart from each other
        return Shapes(((*read, *(size for place, size in enumerate(sizes) if place not in places)),))
    return Shapes(((*sizes[: places[0]], *read, *sizes[places[-1] + 1 :]),))


@rule("Tensor.__setitem__")
def setitem(lo: Lowering, input: Node, index: Value, value: Value) -> Node:
    """The operand's contents after the write."""
    if isinstance(index, Node) and index.dtype is BOOL:
        return _masked(lo, input, index, value)
    box = _parse(lo, input, index)
    if box.tensors or box.listed:
        raise Unsupported("positions are written")
    view = _shown(lo, lo.slice(input, box.starts, box.steps, box.lengths), box)
    path = path_between(view, input)
    if path is None:
        raise Unsupported("a view of unknown form")
    new = _fitted(lo, input, value, view.shape)
    try:
        return scatter(lo, path, input, new)
    except Inexpressible as error:
        raise Unsupported(str(error)) from error


def _fitted(lo: Lowering, input: Node, value: Value, shape: Shape) -> Node:
    if not isinstance(value, Node):
        if not is_number(value):
            raise Unsupported("value")
        return lo.full(value, input.dtype, shape, input.device)
    while len(value.shape) > len(shape) and lo.size(value.shape[0]) == 1:
        lo.require("==", value.shape[0], ONE, "a write")
        value = lo.reshape(value, value.shape[1:])
    if value.device != input.device or len(value.shape) > len(shape):
        raise Unsupported("value does not fit")
    for size, own in zip(lo.broadcast(shape, value.shape), shape, strict=True):
        lo.require("==", size, own, "a write")
    return lo.expand(lo.cast(value, input.dtype), shape)


def _masked(lo: Lowering, input: Node, mask: Node, value: Value) -> Node:
    if isinstance(value, Node) and value.shape:
        raise Unsupported("values for a mask")
    rank = len(mask.shape)
    for size, mine in zip(mask.shape, input.shape[:rank], strict=True):
        lo.require("==", size, mine, "a mask")
    wide = lo.reshape(mask, mask.shape + (ONE,) * (len(input.shape) - rank))
    return select_where(lo, wide, value, input, input.dtype)


# ---- positions -------------------------------------------------------------------------------------------------------


@rule("index_select")
def index_select(lo: Lowering, input: Node, dim: Value, index: Node, *, out: Value = None) -> Node:
    if len(index.shape) > 1:
        raise Unsupported("a matrix of positions")
    if not input.shape:
        return lo.reshape(lo.take(lo.reshape(input, (ONE,)), lo.reshape(index, (ONE,)), 0, False), ())
    line, axis = index if index.shape else lo.reshape(index, (ONE,)), lo.axis(dim, len(input.shape))
    rows = _rows(lo, input, line, axis, False)
    return lo.derived(rows, "rows_added", (input, line), axis) if lo.adds(input) else rows


@rule("gather")
def gather(lo: Lowering, input: Node, dim: Value, index: Node, *, sparse_grad: bool = False, out: Value = None) -> Node:
    if not input.shape or len(input.shape) != len(index.shape):
        raise Unsupported("a scalar")
    if sparse_grad and lo.differentiable:
        raise Unsupported("a sparse gradient")
    axis = lo.axis(dim, len(input.shape))
    for place, (mine, read) in enumerate(zip(input.shape, index.shape, strict=True)):
        if place != axis and mine is not read:
            lo.require("<=", read, mine, "gather")
    places = lo.cast(index, INT64)
    gathered = lo.gather(input, places, axis)
    return lo.derived(gathered, "elements_added", (input, places), axis) if lo.adds(input) else gathered


@rule("take_along_dim")
def take_along_dim(lo: Lowering, input: Node, indices: Node, dim: Value = None, *, out: Value = None) -> Node:
    if dim is None:
        line = lo.reshape(input, (lo.count(input.shape),))
        return lo.gather(line, lo.cast(lo.reshape(indices, (lo.count(indices.shape),)), INT64), 0)
    axis = lo.axis(dim, len(input.shape))
    if len(input.shape) != len(indices.shape) or not input.shape:
        raise Unsupported("ranks")
    read, held = list(indices.shape), list(input.shape)
    for place, (mine, other) in enumerate(zip(input.shape, indices.shape, strict=True)):
        if place != axis:
            read[place] = held[place] = lo.broadcast((mine,), (other,))[0]
    return lo.gather(lo.expand(input, tuple(held)), lo.cast(lo.expand(indices, tuple(read)), INT64), axis)
