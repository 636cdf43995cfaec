"""Keeps, for each value of the trace, the node of its present contents, through writes and shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from framefuse.errors import Reason, Stop
from framefuse.ir.graph import Node
from framefuse.ir.source import Line
from framefuse.ir.strides import dense_order
from framefuse.ir.trace import Ref, Trace
from framefuse.lower.aliases import AliasSet, Inexpressible, Path, path_between, replay, scatter
from framefuse.lower.context import Lowering

END = 1 << 60


class Values:
    """The contents of values by number. ``written`` counts the writes to each input."""

    def __init__(self, lowering: Lowering, trace: Trace) -> None:
        self.lowering = lowering
        self.trace = trace
        self.inputs = {entry.value: place for place, entry in enumerate(trace.assumptions.inputs)}
        self.contents: dict[int, Node] = {}
        self.written: dict[int, int] = {}
        self.last_use = _last_uses(trace)
        self.sets: dict[int, AliasSet] = {}

    def define(self, value: int, node: Node) -> None:
        """A new value; its place among the views of its storage is found from the node's form."""
        self.contents[value] = node
        storage = self.trace.metas[value].storage
        known = self.sets.get(storage)
        if known is None:
            self.sets[storage] = AliasSet(value, {value: ()})
        else:
            known.paths[value] = path_between(node, self.contents[known.root])

    def assign(self, value: int, node: Node, index: int, line: Line | None, counted: int = 1) -> None:
        """New contents of ``value`` by call number ``index``; raises Stop when a view of them cannot follow.

        ``counted`` is how many versions eager counts for the write.
        """
        family = self.sets[self.trace.metas[value].storage]
        path = family.paths[value]
        if path is None:
            raise _stop("a view of unknown form is written", line)
        if family.root in self.inputs and path:
            root = self.trace.metas[family.root]
            if dense_order(root.sizes, root.strides) is None:  # elements of it may share memory
                raise _stop("a view of an input with gaps or shared elements is written", line)
        base = self._base(family, path, node, line)
        for other, seen in family.paths.items():
            if other in (value, family.root):
                continue
            if seen is not None:
                self.contents[other] = replay(self.lowering, seen, base)
            elif self.last_use.get(other, -1) > index:
                raise _stop("memory is written that another tensor of unknown form shares", line)
        self.contents[family.root] = base
        self.contents[value] = node
        if family.root in self.inputs:
            self.written[family.root] = self.written.get(family.root, 0) + counted

    def _base(self, family: AliasSet, path: Path, node: Node, line: Line | None) -> Node:
        try:
            return scatter(self.lowering, path, self.contents[family.root], node)
        except Inexpressible as error:
            raise _stop(f"a write goes through a view ({error}) that has no pure form", line) from error

    def shares(self, value: int) -> tuple[int, ...]:
        """The other values of the same storage."""
        return tuple(other for other in self.sets[self.trace.metas[value].storage].paths if other != value)


def refs(value: Any) -> Iterator[int]:
    """The values named anywhere in nested arguments or in a recipe."""
    if isinstance(value, Ref):
        yield value.value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from refs(part)
    elif isinstance(value, dict):
        for part in value.values():
            yield from refs(part)
    elif isinstance(value, slice):
        yield from refs((value.start, value.stop, value.step))
    elif hasattr(value, "parts"):
        yield from refs(value.parts)
        yield from refs(value.base)


def outside(trace: Trace) -> tuple[int, ...]:
    """The values that the result and the effects name, each once, in order."""
    found = dict.fromkeys(refs(trace.result))
    for effect in trace.effects:
        found.update(dict.fromkeys(refs((effect.target, effect.key, effect.value))))
    return tuple(found)


def _last_uses(trace: Trace) -> dict[int, int]:
    found: dict[int, int] = {}
    for index, call in enumerate(trace.calls):
        for value in refs(call.args):
            found[value] = index
        if call.kwargs:
            for value in refs(call.kwargs):
                found[value] = index
    for value in outside(trace):
        found[value] = END
    return found


def _stop(fact: str, line: Line | None) -> Stop:
    advice = "Compute a new tensor in place of the write, or keep this part outside the compiled function."
    return Stop(Reason("in-place", f"In-place operation: {fact}.", advice, line))
