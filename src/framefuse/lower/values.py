"""Keeps, for each value of the trace, the node of its present contents and history, through writes and shared memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence

from framefuse.errors import Stop
from framefuse.ir.builder import Unprovable
from framefuse.ir.graph import Node
from framefuse.ir.source import Line
from framefuse.ir.stops import reason
from framefuse.ir.strides import dense_order
from framefuse.ir.trace import Trace, outside, refs
from framefuse.lower.aliases import VIEWS, AliasSet, Inexpressible, Path, is_detached, replay, scatter
from framefuse.lower.context import Lowering

END = 1 << 60
KEPT = "kept"  # the name of ``derived`` nodes that are other contents under an unchanged history
Settle = Callable[[Node, Callable[[Node], Node]], Node]  # of the whole memory, and what makes it of the written part
Keep = Callable[[Node, Node], Node]  # new contents with the history of those that they replace


class Values:
    """The contents of values by number. ``written`` counts the writes to each input; autograd saw one of those that
    are ``tracked``, with as many counted behind the last that it saw.
    """

    def __init__(self, lowering: Lowering, trace: Trace) -> None:
        self.lowering = lowering
        self.trace = trace
        self.inputs = {entry.value: place for place, entry in enumerate(trace.assumptions.inputs)}
        self.contents: dict[int, Node] = {}
        self.written: dict[int, int] = {}
        self.tracked: dict[int, int] = {}
        self.last_write: dict[int, int] = {}  # by storage: the number of the last call that counted a write
        self.counted: Counter[int] = Counter()  # by storage, up to where the trace is lowered
        self.last_use = _last_uses(trace)
        self.sets: dict[int, AliasSet] = {}
        self.writes = Counter(trace.metas[value].storage for call in trace.calls for value in call.written)

    def define(self, value: int, contents: Node, node: Node) -> None:
        """A new value with these ``contents``; ``node`` is them with eager's history. Its place among the views of its
        storage is found from the form of what was made.
        """
        self.contents[value] = node
        meta = self.trace.metas[value]
        known = self.sets.get(meta.storage)
        if known is None:
            if self.writes[meta.storage]:
                node = self.contents[value] = self._root(node)
            self.sets[meta.storage] = AliasSet(value, {value: ()}, {meta.family: node})
            return
        path, family = known.place(contents, meta.family)
        if path is not None and meta.family not in known.seen:
            whole = known.seen[family]
            alike = node is contents and not is_detached(contents, whole)
            known.seen[meta.family] = whole if alike else self.lowering.detach(whole)
        known.paths[value] = path

    def assign(
        self, value: int, node: Node, index: int, line: Line | None, tracked: bool, keep: Keep, counted: int = 1,
        settle: Settle | None = None,
    ) -> None:  # fmt: skip
        """New contents of ``value`` by call number ``index``; raises Stop when a view of them cannot follow.

        The write becomes part of the history of the value's family where it is ``tracked``; all others ``keep`` theirs.
        ``counted`` is how many versions eager counts for the write; ``settle`` makes something else of the contents.
        """
        meta = self.trace.metas[value]
        shared = self.sets[meta.storage]
        path = shared.paths[value]
        if path is not None:
            whole = self._whole(shared, path, meta.family, node, line)
            if settle is not None:
                whole = settle(whole, lambda part: self._whole(shared, path, meta.family, part, line))
            if not path and self.writes[meta.storage] > 1:
                node = whole = self._root(whole)
            elif settle is not None:
                node = replay(self.lowering, path, whole)
            for family, before in shared.seen.items():
                shared.seen[family] = whole if tracked and family == meta.family else keep(whole, before)
        elif tracked or not _is_empty(node):  # one without elements changes nothing but histories
            raise _stop("a view of unknown form is written", line)
        node = node if tracked else keep(node, self.contents[value])
        for other, seen in shared.paths.items():
            if seen is not None:
                self.contents[other] = replay(self.lowering, seen, shared.seen[self.trace.metas[other].family])
            elif self.last_use.get(other, -1) > index and not _is_empty(self.contents[other]):
                raise _stop("memory is written that another tensor of unknown form shares", line)
        self.contents[value] = node
        if counted:
            self.last_write[meta.storage] = index
            self.counted[meta.storage] += counted
        if shared.root in self.inputs:
            self.written[shared.root] = self.written.get(shared.root, 0) + counted
            if tracked and meta.family == self.trace.metas[shared.root].family:
                self.tracked[shared.root] = 0
            elif shared.root in self.tracked:
                self.tracked[shared.root] += counted

    def counted_before(self, written: Sequence[int]) -> tuple[int, ...]:
        """How often eager has counted writes of these values so far; nothing where it has of none, or of an input."""
        storages = [self.trace.metas[value].storage for value in written]
        own = not any(self.sets[storage].root in self.inputs for storage in storages if storage in self.sets)
        counts = tuple(self.counted[storage] for storage in storages)
        return counts if own and any(counts) else ()

    def _whole(self, shared: AliasSet, path: Path, family: int, node: Node, line: Line | None) -> Node:
        """The contents of the root with ``node`` where the path leads."""
        root = self.trace.metas[shared.root]
        rows = tuple(range(len(root.sizes)))
        gaps = shared.root in self.inputs and dense_order(root.sizes, root.strides) != rows
        try:
            return scatter(self.lowering, path, shared.seen[family], node, gaps)
        except (Inexpressible, Unprovable) as error:
            raise _stop(f"a write goes through a view ({error}) that has no pure form", line) from error

    def _root(self, node: Node) -> Node:
        """The node as one of its own, where it is a view of another's: a view of it is found by what lies between."""
        if node.op not in VIEWS:
            return node
        if self.lowering.differentiable and node.dtype.kind == "complex":
            return node
        as_own = self.lowering.derived(node, KEPT, (node,))
        return self.lowering.detach(node) if as_own is node else as_own

    def is_known(self, value: int) -> bool:
        """Whether the history of the value's family is known: it is a view of a value that came before."""
        meta = self.trace.metas[value]
        return meta.storage in self.sets and meta.family in self.sets[meta.storage].seen

    def shares(self, value: int) -> Iterator[int]:
        """The other values of the same storage, one by one: of ten thousand parts, the first often says it all."""
        return (other for other in self.sets[self.trace.metas[value].storage].paths if other != value)


def _is_empty(node: Node) -> bool:
    return any(size.constant == 0 for size in node.shape)


def _last_uses(trace: Trace) -> dict[int, int]:
    last: dict[int, int] = {}
    for index, call in enumerate(trace.calls):
        for value in refs(call.args):
            last[value] = index
        if call.kwargs:
            for value in refs(call.kwargs):
                last[value] = index
    for value in outside(trace.result, trace.effects):
        last[value] = END
    return last


def _stop(fact: str, line: Line | None) -> Stop:
    advice = "Compute a new tensor in place of the write, or keep this part outside the compiled function."
    return Stop(reason("in-place", f"In-place operation: {fact}.", line, advice))
