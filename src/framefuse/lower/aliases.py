"""Follows which values share memory, so that a write to one becomes new contents of all, each with its own history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from framefuse.ir import costs
from framefuse.ir.builder import ONE, ZERO, Builder
from framefuse.ir.dtypes import INT64
from framefuse.ir.graph import Node
from framefuse.ir.numbers import Expr, expr
from framefuse.ir.values import Value
from framefuse.lower.between import with_those_between

VIEWS = ("reshape", "permute", "slice", "expand", "diagonal")
Path = tuple[Node, ...]  # view nodes from the one next to the root outwards


class Inexpressible(Exception):
    """A write through this view has no pure form."""


@dataclass(slots=True)
class AliasSet:
    """The values of one storage: ``paths[v]`` says how value ``v`` is seen from ``root``, None when unknown.

    ``seen`` has for each family of values (a tensor with its views, apart from what was detached of them) the contents
    of the whole root: all have the same elements, each has the history that autograd keeps for that family.
    """

    root: int
    paths: dict[int, Path | None] = field(default_factory=dict)
    seen: dict[int, Node] = field(default_factory=dict)

    def place(self, node: Node, family: int) -> tuple[Path | None, int]:
        """How a new value with these contents is seen from the root, and the family in whose contents it was found."""
        for known in (family, *self.seen) if family in self.seen else self.seen:
            path = path_between(node, self.seen[known])
            if path is not None:
                return path, known
        return None, family


def path_between(node: Node, root: Node) -> Path | None:
    """The views that make ``node`` out of ``root``, or None when it is made otherwise."""
    steps = []
    while node is not root:
        if node.op in VIEWS:
            steps.append(node)
        elif node.op != "detach":
            return None
        node = node.inputs[0]
    return tuple(reversed(steps))


def is_detached(node: Node, root: Node) -> bool:
    """Whether the views that make ``node`` out of ``root`` are of what was detached on the way."""
    while node is not root and node.op != "detach":
        node = node.inputs[0]
    return node is not root


def replay(builder: Builder, path: Path, contents: Node) -> Node:
    """The same views of other contents."""
    for step in path:
        contents = _view(builder, step, contents)
    return contents


def scatter(builder: Builder, path: Path, contents: Node, new: Node, gaps: bool = False) -> Node:
    """``contents`` with what ``path`` shows of it replaced by ``new``; raises Inexpressible. ``gaps`` says that it is
    what an argument holds whose rows do not fill its memory: the part is written where it lies.
    """
    if not path:
        return new
    step, rest = path[0], path[1:]
    inner = scatter(builder, rest, _view(builder, step, contents), new, gaps)
    if step.op == "reshape":
        return builder.reshape(inner, contents.shape)
    if step.op == "permute":
        axes = step.attr("axes")
        return builder.permute(inner, [axes.index(axis) for axis in range(len(axes))])
    if step.op == "slice":
        return _into_slice(builder, contents, inner, step.attr("starts"), step.attr("steps"), 0, gaps)
    if step.op == "diagonal" and contents.device == "cpu":
        return _into_diagonal(builder, contents, inner)
    raise Inexpressible(step.op)


def _view(builder: Builder, step: Node, contents: Node) -> Node:
    if step.op == "reshape":
        return builder.reshape(contents, step.shape)
    if step.op == "permute":
        return builder.permute(contents, step.attr("axes"))
    if step.op == "slice":
        return builder.slice(contents, step.attr("starts"), step.attr("steps"), step.shape)
    if step.op == "diagonal":
        return builder.diagonal(contents)
    return builder.expand(contents, step.shape)


def _into_slice(
    builder: Builder, old: Node, new: Node, starts: Sequence[Value], steps: Sequence[int], axis: int, gaps: bool
) -> Node:
    """``old`` with the box at ``starts`` replaced by ``new``, one axis at a time."""
    while axis < len(starts) and steps[axis] == 1 and old.shape[axis] is new.shape[axis]:
        axis += 1
    if axis == len(starts):
        return new
    start, length, size = expr(starts[axis]), new.shape[axis], old.shape[axis]
    if not gaps and start.constant is not None and _is_every(builder, old, new, steps, axis):
        return _among(builder, old, new, start, steps[axis], axis)
    if steps[axis] == 1:
        middle = _into_slice(builder, builder.narrow(old, axis, start, length), new, starts, steps, axis + 1, gaps)
    else:
        builder.require("<", ZERO, length, "elements that lie apart")
        length = (length - 1) * steps[axis] + 1
        middle = _into_steps(builder, builder.narrow(old, axis, start, length), new, starts, steps, axis, gaps)
    after = size - start - length
    pieces = [middle]
    if start.constant != 0:
        pieces.insert(0, builder.narrow(old, axis, expr(0), start))
    if after.constant != 0:
        pieces.append(builder.narrow(old, axis, start + length, after))
    return builder.reshape(builder.cat(pieces, axis), old.shape)


def _is_every(builder: Builder, old: Node, new: Node, steps: Sequence[int], axis: int) -> bool:
    """Whether ``new`` has one of every two or more neighbours in memory, up to the end of a row."""
    step, sizes = steps[axis], (old.shape[axis], new.shape[axis] * steps[axis])
    near = 1 < step <= costs.WRITTEN_NEIGHBOURS
    if not near or axis != len(steps) - 1 or old.device != "cpu" or builder.size(sizes[1]) < 2 * step:
        return False
    if builder.size(sizes[0]) != builder.size(sizes[1]):
        return False
    builder.require("==", *sizes, "elements that lie apart")
    return True


def _among(builder: Builder, old: Node, new: Node, start: Expr, step: int, axis: int) -> Node:
    """``old`` as groups of ``step`` neighbours along the last axis, in which ``new`` has the place ``start``."""
    front, count = old.shape[:axis], new.shape[axis]
    apart, shape = [1] * axis + [step], (*front, count, ONE)
    parts = [builder.slice(old, [0] * axis + [place], apart, new.shape) for place in range(step)]
    assert start.constant is not None
    parts[start.constant] = new
    joined = builder.cat([builder.reshape(part, shape) for part in parts], axis + 1)
    return builder.reshape(joined, old.shape)


def _into_steps(
    builder: Builder, old: Node, new: Node, starts: Sequence[Value], steps: Sequence[int], axis: int, gaps: bool
) -> Node:
    """``old`` with every second, fourth, ... element of an axis, from the first to the last, replaced."""
    step, count = steps[axis], new.shape[axis]
    if step <= 0 or step & (step - 1) or old.device != "cpu":
        raise Inexpressible("steps")
    front, behind = old.shape[:axis], old.shape[axis + 1 :]
    apart = [step if place == axis else 1 for place in range(len(steps))]
    shown = builder.slice(old, [0] * len(steps), apart, (*front, count, *behind))
    new = _into_slice(builder, shown, new, starts, steps, axis + 1, gaps)
    rows = with_those_between(builder, new, axis, step, old.shape[axis]) if axis == len(steps) - 1 else None
    if rows is None:
        new = builder.reshape(new, (*front, count, ONE, *behind))
        rows = builder.expand(new, (*front, count, expr(step), *behind))
        rows = builder.narrow(builder.reshape(rows, (*front, count * step, *behind)), axis, 0, old.shape[axis])
    last, zero = (builder.full(number, INT64, old.shape, old.device) for number in (step - 1, 0))
    written = builder.pointwise("eq", builder.pointwise("bit_and", _along(builder, old, axis), last), zero)
    return builder.pointwise("where", written, rows, old)


def _into_diagonal(builder: Builder, old: Node, new: Node) -> Node:
    """``old``, square matrices, with ``new`` on their diagonals."""
    rank = len(old.shape)
    on = builder.pointwise("eq", _along(builder, old, rank - 2), _along(builder, old, rank - 1))
    rows = builder.expand(builder.reshape(new, (*new.shape, ONE)), old.shape)
    return builder.pointwise("where", on, rows, old)


def _along(builder: Builder, node: Node, axis: int) -> Node:
    """The place of each element along ``axis``."""
    line = builder.iota(0, 1, INT64, node.shape[axis], node.device)
    behind = (ONE,) * (len(node.shape) - axis - 1)
    return builder.expand(builder.reshape(line, (*line.shape, *behind)), node.shape)
