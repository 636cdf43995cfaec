"""Turns a reduction that a kernel needs into loops of that kernel, where its rows are the kernel's rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

from framefuse.fuse.addressing.indexing import Index, Split, reshaped_index
from framefuse.fuse.addressing.layout import Order, estimate
from framefuse.fuse.addressing.ranges import ONE, ZERO, address, dense_axes, row_major
from framefuse.fuse.addressing.strided import Strides
from framefuse.fuse.grouping.cells import Cell, Group, reduced_axes
from framefuse.fuse.grouping.memory_runs import run_of
from framefuse.fuse.grouping.softmax_columns import is_of_softmax_columns
from framefuse.ir import costs
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, Symbol, product
from framefuse.ir.ops import ELEMENTWISE, TABLE, VIEW


def may_join_reduction(
    group: Group, cell: Cell, orders: Mapping[Node, Order], few: Iterable[tuple[int, int]], tiles: bool,
    strides_of: Callable[[Node], Strides],
) -> bool:  # fmt: skip
    """Whether the reduction ``cell`` can be computed in ``group``: each of its results once, for one row, and with
    enough rows left to share between threads (``few``: what is not enough, each rows and elements). A kernel of
    ``tiles`` turns what lies across them, which one that walks along rows does not.
    """
    rows = group.covered(cell)
    if rows is None:
        return False
    domain = frozenset(group.domain)
    if group.rows is not None:
        if rows != group.rows:
            return False
    elif not rows <= domain:
        return False
    if rows == domain and not any(reduce.inner for reduce in group.reduces):
        return True
    if tiles and any(_turns(reduce.node, cell.node, orders) for reduce in group.reduces if reduce.inner):
        return False
    source = cell.node.inputs[0]
    elements = product(source.shape)
    count = max(estimate(elements, group.hints), group.size_hint(group.domain))
    reads_twice = rows != domain or any(_depends(reduce, cell) for reduce in group.reduces)
    if reads_twice and any(group.size_hint(rows) < least and count > most for least, most in few):
        return False
    if tiles and group.size_hint(rows) < costs.GPU_FEW_ROWS[0]:
        longest = _of_other_loops(group, cell)
        if longest and group.size_hint(rows) * longest > costs.GPU_FEW_OF_TWO:
            return False
    if reads_twice and tiles and is_inner(cell.node, orders):
        if reads_across(source, orders, reduced_axes(cell.node).__contains__, parts=True):
            return False
    columns = reads_twice and tiles and is_of_softmax_columns(group, cell, strides_of)
    if reads_twice and tiles and not columns:
        if any(lies_apart(group, root, domain - rows, strides_of) for root in group.roots.values()):
            return False
    if reads_twice and not is_inner(cell.node, orders):
        return columns or count <= costs.COLUMN * max(1, group.size_hint(rows))
    return True


def _turns(one: Node, other: Node, orders: Mapping[Node, Order]) -> bool:
    """Whether one of two reductions runs along memory and the other one across it, as those of a matrix of scores and
    of its transpose.
    """
    ways = {_along_memory(node, orders) for node in (one, other)}
    return ways == {True, False}


def _along_memory(node: Node, orders: Mapping[Node, Order]) -> bool | None:
    """Whether a reduction runs along neighbours of what its operand is computed from, element by element and in
    another order of dimensions; None where that lies in several ways.
    """
    ways: set[bool] = set()
    waiting, seen = [(node.inputs[0], frozenset(reduced_axes(node)))], set[Node]()
    while waiting and len(seen) < costs.SOURCES:
        current, axes = waiting.pop()
        seen.add(current)
        if current.op == "permute":
            moved = current.attr("axes")
            waiting.append((current.inputs[0], frozenset(moved[axis] for axis in axes)))
        elif TABLE[current.op].kind in ELEMENTWISE:
            alike = (each for each in current.inputs if each.shape == current.shape and each not in seen)
            waiting += [(each, axes) for each in alike]
        elif current.op in ("input", "result", "matmul"):
            wide = [axis for axis in orders.get(current) or range(len(current.shape)) if current.shape[axis] is not ONE]
            ways.add(not wide or wide[-1] in axes)
    return ways.pop() if len(ways) == 1 else None


def lies_apart(
    group: Group, cell: Cell, inner: frozenset[Symbol], strides_of: Callable[[Node], Strides]
) -> bool:
    """Whether only a few neighbours in memory of a value are in one of a kernel's rows, which are long."""
    sizes = {axis: group.size_hint((axis,)) for axis in inner}
    length = math.prod(sizes.values())
    if length <= costs.COLUMN or not any(position.symbols & inner for position in cell.index):
        return False
    return run_of(address(cell.index, strides_of(cell.node)), sizes, group.hints) < costs.GPU_ALONG


def _of_other_loops(group: Group, cell: Cell) -> int:
    """How long the longest loop would be over a row that had one for the cell and others for the group's reductions:
    few such rows cannot be cut into chunks. 0 where one loop does for all.
    """
    own = product(cell.node.inputs[0].shape[axis] for axis in reduced_axes(cell.node))
    theirs = [product(group.axes[axis] for axis in reduce.inner) for reduce in group.reduces if reduce.inner]
    if all(size is own for size in theirs):
        return 0
    return max(estimate(size, group.hints) for size in (own, *theirs))


def few_long_rows(group: Group, node: Node) -> tuple[int, int]:
    """How many long rows are few for a kernel of tiles that reduces them, and of how many elements they are then."""
    given = _reduction_read(node)
    if given is None and not group.reduces:
        return costs.GPU_FEW_LONG_ROWS
    beside = [reduce.node for reduce in group.reduces] if given is None else [given]
    of_exponentials = {node.op, *(each.op for each in beside)} == {"amax", "sum"}
    return costs.GPU_FEW_SOFTMAX_ROWS if of_exponentials else costs.GPU_FEW_LONG_ROWS_TWICE


def _reduction_read(node: Node) -> Node | None:
    """The reduction from which what is reduced is computed, with nothing but arithmetic and views between."""
    waiting, seen = list(node.inputs), set[Node]()
    while waiting:
        current = waiting.pop()
        kind = TABLE[current.op].kind
        if kind == "reduce":
            return current
        if current not in seen and kind in (*ELEMENTWISE, VIEW):
            seen.add(current)
            waiting += current.inputs
    return None


def _depends(user: Cell, cell: Cell) -> bool:
    """Whether ``user`` is computed from the cell's node."""
    seen: set[int] = set()
    stack = list(user.kids)
    while stack:
        current = stack.pop()
        if current.node is cell.node:
            return True
        if id(current) not in seen:
            seen.add(id(current))
            stack.extend(current.kids)
    return False


def is_inner(node: Node, orders: Mapping[Node, Order]) -> bool:
    """Whether a reduction runs along neighbouring elements of its operand's memory."""
    source = node.inputs[0]
    rank = len(source.shape)
    wide = [axis for axis in orders.get(source) or range(rank) if source.shape[axis].constant != 1]
    return not wide or wide[-1] in reduced_axes(node)


def reads_across(
    node: Node, orders: Mapping[Node, Order], along: Callable[[int], bool], parts: bool = False
) -> bool:
    """Whether a value is computed, element by element, from memory whose last dimension is not one that lies ``along``
    a row; of ``parts`` that are joined, whether one is.
    """
    stack, seen = [node], {node}
    while stack and len(seen) < costs.SOURCES:
        current = stack.pop()
        if TABLE[current.op].kind in ELEMENTWISE or (parts and current.op == "cat"):
            joins = current.op == "cat"
            fresh = [each for each in current.inputs if each not in seen and (joins or each.shape == current.shape)]
            seen.update(fresh)
            stack.extend(fresh)
        elif current.op in ("input", "result"):
            wide = [axis for axis in orders.get(current, ()) if current.shape[axis].constant != 1]
            if wide and not along(wide[-1]):
                return True
    return False


def inner_index(group: Group, cell: Cell) -> tuple[Index, tuple[Symbol, ...]]:
    """The index along the reduced dimensions and its axes, shared with other loops of the kernel where sizes agree.

    First choice is the index at which the kernel already reads the same operand, then axes of an equal number of
    points, then new axes.
    """
    found = shared_index(group, cell)
    if found is not None:
        return found
    sizes = [cell.node.inputs[0].shape[axis] for axis in reduced_axes(cell.node)]
    inner = tuple(ZERO if size.constant == 1 else group.fresh(size).expr for size in sizes)
    return inner, tuple(symbol for position in inner for symbol in position.symbols)


def shared_index(group: Group, cell: Cell) -> tuple[Index, tuple[Symbol, ...]] | None:
    """The same over axes that the kernel has; None where new ones are needed."""
    node = cell.node
    source = node.inputs[0]
    reduced = reduced_axes(node)
    sizes = [source.shape[axis] for axis in reduced]
    rows = {symbol for position in cell.index for symbol in position.symbols}
    for index in _known_indices(group, source):
        kept = [position for axis, position in enumerate(index) if axis not in reduced]
        if kept == list(cell.index):
            inner = tuple(index[axis] for axis in reduced)
            axes = dense_axes(address(inner, row_major(sizes)), product(sizes), group.axes)
            if axes is not None and not rows & set(axes):
                return inner, _in_order(group, axes)
    for candidate in _candidates(group, rows):
        if product(group.axes[axis] for axis in candidate) is product(sizes):
            index_and_axes = _over(group, candidate, sizes)
            if index_and_axes is not None:
                return index_and_axes
    return None


def _over(
    group: Group, candidate: tuple[Symbol, ...], sizes: Sequence[Expr]
) -> tuple[Index, tuple[Symbol, ...]] | None:
    extents = [group.axes[axis] for axis in candidate]
    try:
        inner = reshaped_index([axis.expr for axis in candidate], extents, sizes, group.axes, may_split=True)
    except Split:
        return None
    axes = dense_axes(address(inner, row_major(sizes)), product(sizes), group.axes)
    return None if axes is None else (inner, _in_order(group, axes))


def _in_order(group: Group, axes: Sequence[Symbol]) -> tuple[Symbol, ...]:
    return tuple(axis for axis in group.axes if axis in axes)


def _candidates(group: Group, rows: set[Symbol]) -> Iterable[tuple[Symbol, ...]]:
    yield tuple(axis for axis in group.domain if axis not in rows)
    for reduce in group.reduces:
        yield reduce.inner


def _known_indices(group: Group, source: Node) -> Iterable[Index]:
    """Indices at which the kernel reads ``source`` or a pointwise operand of it."""
    stack, seen = [source], {source}
    while stack and len(seen) < costs.SOURCES:
        node = stack.pop()
        for cell in group.demands.get(node, {}).get(group, ()):
            if not cell.mask:
                yield cell.index
        if TABLE[node.op].kind in ELEMENTWISE:
            fresh = [operand for operand in node.inputs if operand not in seen]
            seen.update(fresh)
            stack.extend(fresh)
