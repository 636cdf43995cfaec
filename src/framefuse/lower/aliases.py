"""Follows which values share memory, so that a write to one becomes new contents of all, each with its own history."""

from __future__ import annotations

from dataclasses import dataclass, field

from framefuse.ir.builder import Builder
from framefuse.ir.graph import Node
from framefuse.ir.numbers import expr

VIEWS = ("reshape", "permute", "slice", "expand")
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


def replay(builder: Builder, path: Path, contents: Node) -> Node:
    """The same views of other contents."""
    for step in path:
        contents = _view(builder, step, contents)
    return contents


def scatter(builder: Builder, path: Path, contents: Node, new: Node) -> Node:
    """``contents`` with what ``path`` shows of it replaced by ``new``; raises Inexpressible."""
    if not path:
        return new
    step, rest = path[0], path[1:]
    inner = scatter(builder, rest, _view(builder, step, contents), new)
    if step.op == "reshape":
        return builder.reshape(inner, contents.shape)
    if step.op == "permute":
        axes = step.attr("axes")
        return builder.permute(inner, [axes.index(axis) for axis in range(len(axes))])
    if step.op == "slice" and all(stride == 1 for stride in step.attr("steps")):
        return _into_slice(builder, contents, inner, step.attr("starts"), 0)
    raise Inexpressible(step.op)


def _view(builder: Builder, step: Node, contents: Node) -> Node:
    if step.op == "reshape":
        return builder.reshape(contents, step.shape)
    if step.op == "permute":
        return builder.permute(contents, step.attr("axes"))
    if step.op == "slice":
        return builder.slice(contents, step.attr("starts"), step.attr("steps"), step.shape)
    return builder.expand(contents, step.shape)


def _into_slice(builder: Builder, old: Node, new: Node, starts: tuple[object, ...], axis: int) -> Node:
    """``old`` with the box at ``starts`` replaced by ``new``, one axis at a time."""
    while axis < len(starts) and old.shape[axis] is new.shape[axis]:
        axis += 1
    if axis == len(starts):
        return new
    start, length, size = expr(starts[axis]), new.shape[axis], old.shape[axis]  # type: ignore[arg-type]
    middle = _into_slice(builder, builder.narrow(old, axis, start, length), new, starts, axis + 1)
    after = size - start - length
    pieces = [middle]
    if start.constant != 0:
        pieces.insert(0, builder.narrow(old, axis, expr(0), start))
    if after.constant != 0:
        pieces.append(builder.narrow(old, axis, start + length, after))
    return builder.reshape(builder.cat(pieces, axis), old.shape)
