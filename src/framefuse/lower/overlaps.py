"""Tells whether an in-place call reads memory that it writes elsewhere: then what it gives depends on eager's order.

Eager refuses some of these calls (dense tensors of one memory in part), others read what they wrote before.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from framefuse.ir.builder import ONE, Unprovable
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr
from framefuse.ir.ops import ELEMENTWISE, TABLE
from framefuse.ir.trace import Call, refs
from framefuse.ir.values import Value
from framefuse.lower.aliases import VIEWS, Path, path_between, replay
from framefuse.lower.context import Lowering
from framefuse.lower.indexing import getitem
from framefuse.lower.rules import Unsupported
from framefuse.lower.values import Values

THROUGH = ("cast", "expand", "reshape", "derived", "full")  # beside pointwise rows, what keeps each element in place


def overlaps(
    lo: Lowering, values: Values, call: Call, written: Sequence[int], index: Value, contents: Node | None
) -> bool:
    """Whether some operand of the call shares memory with a tensor that it writes, in part or at other places.

    ``index`` is that of an assignment to items, in nodes; ``contents`` the new ones where a rule gives them. Relations
    of the builder keep tensors apart that sizes keep apart.
    """
    operands = list(refs((call.args, call.kwargs)))
    for value in written:
        others = [o for o in _without_first(operands, value) if o not in written or o == value]
        sharing = [other for other in others if other == value or other in values.shares(value)]
        if not sharing:
            continue
        whole = _seen(lo, values, value, value)
        target = _items(lo, whole, index) if call.assigns and whole is not None else whole
        for other in sharing:
            read = _seen(lo, values, value, other)
            same = target is not None and read is not None and _is_same(target, read)
            if same and (call.assigns or _keeps_places(contents, {values.contents[o] for o in operands})):
                continue
            if same or target is None or read is None or not _apart(lo, target, read):
                return True
    return False


def _without_first(operands: Iterable[int], value: int) -> list[int]:
    """The operands without the one that is written."""
    rest = list(operands)
    if value in rest:
        rest.remove(value)
    return rest


def _seen(lo: Lowering, values: Values, root: int, value: int) -> Node | None:
    """The value as views of the memory of ``root``, of whatever contents and history."""
    shared = values.sets[values.trace.metas[root].storage]
    path = shared.paths[value]
    return None if path is None else replay(lo, path, next(iter(shared.seen.values())))


def _items(lo: Lowering, whole: Node, index: Value) -> Node | None:
    """What an assignment to items writes, as a view of ``whole``; None where it is none."""
    before = dict(lo.relations)
    try:
        part = getitem(lo, whole, index)
    except (Unsupported, Unprovable, TypeError, ValueError, IndexError):
        lo.relations = before
        return None
    return part if isinstance(part, Node) and path_between(part, whole) is not None else None


def _is_same(target: Node, read: Node) -> bool:
    """Whether both are the same elements in the same order: they differ in dimensions of size 1 at most."""
    if target is read:
        return True
    sizes = [tuple(size for size in node.shape if size is not ONE) for node in (target, read)]
    return sizes[0] == sizes[1] and _without_reshape(target) is _without_reshape(read)


def _without_reshape(node: Node) -> Node:
    while node.op == "reshape":
        node = node.inputs[0]
    return node


def _keeps_places(contents: Node | None, leaves: set[Node]) -> bool:
    """Whether each element of the new contents is made of the operands' elements at the same place."""
    if contents is None:
        return False
    waiting, met = [contents], set()
    while waiting:
        node = waiting.pop()
        if node in met or node in leaves:
            continue
        met.add(node)
        if TABLE[node.op].kind not in ELEMENTWISE and node.op not in THROUGH:
            return False
        waiting += node.inputs
    return True


def _apart(lo: Lowering, target: Node, read: Node) -> bool:
    """Whether two views of a memory have no element in common; sizes that decide it are required."""
    first, second = _steps(target), _steps(read)
    for a, b in zip(first, second, strict=False):
        if a is b:
            continue
        if a.op != "slice" or b.op != "slice" or a.inputs[0] is not b.inputs[0]:
            return False
        return any(_ranges_apart(lo, a, b, axis) for axis in range(len(a.shape)))
    return False


def _steps(node: Node) -> Path:
    path = [node]
    while path[-1].op in VIEWS:
        path.append(path[-1].inputs[0])
    return tuple(reversed(path))


def _ranges_apart(lo: Lowering, a: Node, b: Node, axis: int) -> bool:
    """Whether the positions of two slices along an axis are apart: one ends before the other begins, or both have the
    same step and begin at different places of it.
    """
    starts = [node.attr("starts")[axis] for node in (a, b)]
    steps = [node.attr("steps")[axis] for node in (a, b)]
    ends: list[Expr] = [
        start + (node.shape[axis] - 1) * step + 1 for node, start, step in zip((a, b), starts, steps, strict=True)
    ]
    between = (starts[0] - starts[1]).constant
    if steps[0] == steps[1] and between is not None and between % steps[0]:
        return True
    for end, start in ((ends[0], starts[1]), (ends[1], starts[0])):
        try:
            lo.require("<=", end, start, "memory that is read and written")
        except Unprovable:
            continue
        return True
    return False
