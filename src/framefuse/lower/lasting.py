"""Tells which values eager's autograd keeps as they were, whatever becomes of the tensors they were computed from."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise

from framefuse.errors import Stop
from framefuse.ir.graph import Node
from framefuse.ir.ops import ELEMENTWISE, REDUCE, TABLE, VIEW, reads_result
from framefuse.ir.pairs import is_joined, joined, parts, split_of
from framefuse.ir.stops import reason
from framefuse.ir.torch_calls import norm
from framefuse.ir.trace import Call, Trace, outside, refs
from framefuse.ir.values import Value
from framefuse.lower.aliases import replay
from framefuse.lower.context import Lowering
from framefuse.lower.values import KEPT, Settle, Values

# Calls in place whose gradients read, as eager's, what they wrote, whole: backward has it from where they wrote it.
BY_RESULT = frozenset(
    "celu copysign cumprod elu exp exp2 expm1 hypot leaky_relu pow reciprocal relu rrelu rsqrt selu sgn sigmoid sqrt "
    "tan tanh".split()
)
OF_RESULTS = ("relu", "softmax", "log_softmax", "log_softmax_of_one")  # rules that read the result, and nothing else
OF_BOTH = ("logsumexp", "length", "power_norm", "norm", "extreme_of_all")  # rules that read the operand as well


class Lasting:
    """The nodes that backward must not compute again from the memory of inputs or results, which the program may have
    written behind autograd's back (``w.data.mul_(2)``).

    Eager computes nothing again but what a formula takes from the tensors that its node saved. So these are the values
    that a node saved, and what a call computed of a tensor that its node did not save. Nothing is known, and so nothing
    lasts, where eager's graph is not.
    """

    def __init__(self, builder: Lowering, trace: Trace, values: Values) -> None:
        self.builder = builder
        self.trace = trace
        self.values = values
        self.holders = trace.autograd.holders if trace.autograd is not None else ()
        self.along = trace.autograd.along if trace.autograd is not None else {}
        given = {trace.metas[entry.value].storage for entry in trace.assumptions.inputs}
        self.shown = {trace.metas[value].storage for value in outside(trace.result, trace.effects)}
        self.unseen = dict(self._unseen())
        self.last = dict(self._written())
        given -= self.last.keys()
        self.kept = {storage for holder in self.holders for storage in holder.storages} - given
        self.parts = {holder.written for holder in self.holders}  # what nodes keep of writes to views
        self.evaluated = list(self._evaluated())
        self.starts: list[int] = []  # of each call: how many nodes there were before
        self.found: set[Node] = set()

    def begin(self) -> None:
        """The next call is lowered."""
        self.starts.append(len(self.builder.nodes))

    def by_call(self) -> Iterator[Sequence[Node]]:
        """The nodes that the lowering of each call made."""
        for start, end in pairwise((*self.starts, len(self.builder.nodes))):
            yield self.builder.nodes[start:end]

    def made(self, call: Call, value: int, node: Node) -> Node:
        """The contents that a call gave or wrote. What eager keeps as a copy is marked, since the operand may be
        another by then.
        """
        metas, storage = self.trace.metas, self.trace.metas[value].storage
        if storage not in self.kept:
            return node
        operands = refs(call.args)
        given = [self.values.contents[each] for each in operands]
        if value not in call.written:
            if any(metas[operand].storage == storage for operand in operands):  # a view follows what it is of
                return node
            node = self._of_its_own(node, set(map(source, given)))
            own = self._keeps_own(value, storage)
            if own and storage in self.shown:
                node = self._read_back(node)
            elif not own and node.dtype.is_float and any(map(_reads_result, _forms(node, given))):
                node = self._apart(node)  # its gradient computes it again, from what eager's node keeps
                self.found.add(node)
                return node
        self.found.update(_forms(node, given))
        return node

    def _of_its_own(self, node: Node, others: Collection[Node]) -> Node:
        """The node, as another one where it is an operand in memory of its own."""
        if node.dtype.is_float and source(node) in others:
            return self.builder.derived(node, KEPT, (node,))
        if is_joined(node) and any(source(part) in others for part in node.inputs[0].inputs):
            pair = [self.builder.derived(part, KEPT, (part,)) for part in parts(self.builder, node)]
            alike = joined(self.builder, (pair[0], pair[1]), node.inputs[0].attr("orders")[0])
            self.builder.lying[alike.inputs[0]] = self.builder.lying.get(node.inputs[0], ())
            return alike
        return node

    def _read_back(self, node: Node) -> Node:
        """A rounded or turned result whose gradient eager computes from itself, as one whose gradient reads what is in
        memory.
        """
        result = node.inputs[0] if is_rounded(node) else node
        exact = result.inputs[0] if result.op == "reshape" else result
        rule = None if exact is node else by_result(exact, OF_BOTH)
        if rule is None:
            return node
        there = self.builder.detach(node)
        whole = self.builder.reshape(self.builder.cast(there, exact.dtype), exact.shape)
        part = self.builder.derived(whole, rule[0], rule[1], *rule[2])
        part = self.builder.cast(self.builder.reshape(part, node.shape), node.dtype)
        return self.builder.derived(there, KEPT, (part,))

    def unseen_write(self, value: int, index: int) -> Call | None:
        """The ``.data`` through which call number ``index`` writes to memory that the function made and that eager's
        node of an earlier call saved: its gradient follows the write.
        """
        meta = self.trace.metas[value]
        if meta.family not in self.unseen or meta.storage not in self.kept:
            return None
        earlier = [number for call in self.trace.calls[:index] for number in (*refs(call.result), *call.written)]
        holders = [self.holders[self.along[number]] for number in earlier if number in self.along]
        return self.unseen[meta.family] if any(meta.storage in holder.storages for holder in holders) else None

    def _unseen(self) -> Iterator[tuple[int, Call]]:
        """The families whose writes are not counted for the tensor that is their base, with the ``.data`` that made
        them: what that gave, and what is an alias of such a tensor.
        """
        metas, found = self.trace.metas, dict[int, Call]()
        for call in self.trace.calls:
            for value in refs(call.result) if not call.written else ():
                alike = [metas[each] for each in refs(call.args) if metas[each].storage == metas[value].storage]
                origins = [found[each.family] for each in alike if each.family in found]
                origin = call if call.name == "data" else next(iter(origins), None)
                if origin is not None and metas[value].family not in found:
                    found[metas[value].family] = origin
                    yield metas[value].family, origin

    def _written(self) -> Iterator[tuple[int, int]]:
        """The memory that calls write so that the tensors which show it count it, with the number of each call: what
        eager's nodes keep of that, they keep as it is behind the last of them.
        """
        for index, call in enumerate(self.trace.calls):
            if call.written and norm(call.target, call.name) is None and (not call.counts or any(call.counts)):
                metas = [self.trace.metas[value] for value in call.written]
                yield from ((meta.storage, index) for meta in metas if meta.family not in self.unseen)

    def settled(self, call: Call, value: int, index: int, node: Node, seen: Collection[int]) -> Settle | None:
        """What is made of the ``node`` that call number ``index`` writes, where eager's nodes keep that memory as it is
        behind the write, and others may write it: it is that of an input, or of a value ``seen``. None where nothing
        is to be made of it; raises Stop where backward could not read it there.
        """
        storage = self.trace.metas[value].storage
        if storage not in self.kept or self.last.get(storage) != index:
            return None
        shared = self.values.sets[storage]
        given = shared.root in self.values.inputs
        if not given and all(self.trace.metas[each].storage != storage for each in seen):
            return None
        path, keeps, real = shared.paths[value], self._keeps_own(shared.root, storage), node.dtype.kind != "complex"
        if not keeps:
            return (lambda whole, again: self._apart(whole)) if given and real else None
        exact = node.inputs[0] if is_rounded(node) else node
        if path == () and real and exact is node and call.name.rstrip("_") in BY_RESULT:
            return None
        rule = by_result(exact)
        if path is None or rule is None:
            if not given:
                return None
            advice = "Write a clone(), or compute a new tensor."
            raise Stop(reason("in-place", f"Backward of {call.name} reads what it wrote.", call.line, advice))

        def settle(whole: Node, again: Callable[[Node], Node]) -> Node:
            there = self._apart(self.builder.detach(whole))
            part = self.builder.cast(replay(self.builder, path, there), exact.dtype)
            part = self.builder.cast(self.builder.derived(part, rule[0], rule[1], *rule[2]), node.dtype)
            return self.builder.derived(there, KEPT, (again(part),))

        return settle

    def _keeps_own(self, root: int, storage: int) -> bool:
        """Whether eager's node of the last write to memory keeps what that wrote."""
        number = self.along.get(root)
        own = number is not None and storage in self.holders[number].storages
        return own or storage in self.parts

    def _apart(self, node: Node) -> Node:
        """The node as one of its own, of which views are not made of what it is made of."""
        return self.builder.derived(node, KEPT, (node,))

    def updated(self, call: Call, value: int, index: int) -> None:
        """Raises Stop where call number ``index`` updates running statistics that backward of an earlier call reads."""
        if norm(call.target, call.name) is not None:
            for earlier, reader, storages in self.evaluated:
                if earlier < index and self.trace.metas[value].storage in storages:
                    fact = "Running statistics that backward reads are updated before."
                    raise Stop(reason("in-place", fact, reader.line, "Call a norm in training before it is evaluated."))

    def _evaluated(self) -> Iterator[tuple[int, Call, set[int]]]:
        """The norms that normalise by running statistics, with what their nodes in eager's graph saved: backward reads
        the statistics as they are by then, since an update is not counted.
        """
        for index, call in enumerate(self.trace.calls) if self.holders else ():
            if norm(call.target, call.name) is not None and not call.written:
                holders = [self.holders[self.along[number]] for number in refs(call.result) if number in self.along]
                yield index, call, {storage for holder in holders for storage in holder.storages}

    def nodes(self, live: Iterable[Node], leaving: Iterable[int]) -> tuple[frozenset[Node], frozenset[Node]]:
        """Those among the nodes that are alive, once all calls are lowered; and those of them that are results of
        eager's operations.
        """
        results = {*self.found}
        if self.holders:
            seen = {source(self.values.contents[value]) for value in (*self.values.inputs, *leaving)}
            for call, nodes in zip(self.trace.calls, self.by_call(), strict=True):
                if nodes and not call.region:  # a checkpoint computes again from what there is by then
                    results.update(self._of_call(call, nodes, seen))
        self.found |= self.builder.held
        lasting = frozenset(node for node in live if node in self.found)
        return lasting, lasting & results

    def _of_call(self, call: Call, nodes: Sequence[Node], seen: set[Node]) -> Collection[Node]:
        """Adds of a call's nodes what reads an operand that its node in eager's graph did not save, and statistics,
        where that saved more than values of the trace. Gives those that are results of operations which the call is
        made of; that of complex numbers is one operation.
        """
        results = [value for value in (*refs(call.result), *call.written) if value in self.along]
        holders = [self.holders[self.along[value]] for value in results]
        saved = {storage for holder in holders for storage in holder.storages}
        saved |= self.parts.intersection(self.trace.metas[value].storage for value in call.written)
        if not call.written:  # a view, as a lazy conjugate, follows what it is of
            saved |= {self.trace.metas[value].storage for value in refs(call.result)}
        operands = [value for value in refs((call.args, call.kwargs)) if self.trace.metas[value].storage not in saved]
        unsaved = seen.intersection(source(self.values.contents[value]) for value in operands)
        more = any(holder.more for holder in holders)
        statistics, inner = set[Node](), set[Node]()
        for node in nodes if unsaved or more else ():
            if more and _is_statistic(node, statistics):
                statistics.add(node)
            elif not is_same(node) and any(_told(operand) in unsaved for operand in node.inputs):
                inner.add(node)
        self.found |= statistics | inner
        return () if any(is_joined(self.values.contents[value]) for value in results) else inner


def by_result(node: Node, further: Collection[str] = ()) -> tuple[str, tuple[Node, ...], tuple[Value, ...]] | None:
    """The rule by which the gradient of a value is computed from that itself, with its operands and parameters: one of
    those that read nothing else, or a ``further`` one.
    """
    name = node.attr("name") if node.op == "derived" else ""
    if name in OF_RESULTS or name in further or name.endswith("_written"):
        return node.attr("name"), node.inputs[1:], node.attr("parameters")
    return (f"{node.op}_written", node.inputs, ()) if reads_result(TABLE[node.op]) else None


def _reads_result(node: Node) -> bool:
    """Whether the gradient of a value is computed from that itself."""
    return by_result(node, (*OF_BOTH, "standardise")) is not None


def source(node: Node) -> Node:
    """What a view is of."""
    while True:
        whole = node.inputs[0] if is_view(node) else split_of(node)
        if whole is None:
            return node
        node = whole


def _told(node: Node) -> Node:
    """What a view, also with more digits, is of."""
    node = source(node)
    while node.op == "cast" and is_same(node):
        node = source(node.inputs[0])
    return node


def is_same(node: Node) -> bool:
    """Whether the value has its operand's elements, perhaps with more digits."""
    kind, given = node.dtype.kind, node.inputs[0].dtype if node.inputs else None
    wider = node.op == "cast" and given is not None and given.kind == kind and node.dtype.size > given.size
    return wider or is_view(node)


def is_view(node: Node) -> bool:
    """Whether the value has its operand's elements."""
    return TABLE[node.op].kind == VIEW and node.op not in ("cat", "pad")


def _is_statistic(node: Node, statistics: set[Node]) -> bool:
    """Whether the node sums up rows, or is computed from what does alone."""
    if TABLE[node.op].kind == REDUCE:
        return True
    parts = [part for part in node.inputs if part.op != "full"]
    kind = TABLE[node.op].kind
    return kind in (*ELEMENTWISE, VIEW) and bool(parts) and all(part in statistics for part in parts)


def _forms(node: Node, operands: Collection[Node] = ()) -> Iterable[Node]:
    """The node, and what has its values before it was rounded, shaped or marked, up to what its call was given."""
    yield node
    while _is_form(node, operands):
        node = node.inputs[0]
        yield node
    for part in node.inputs[0].inputs if is_joined(node) else ():
        yield from _forms(part, operands)


def _is_form(node: Node, operands: Collection[Node]) -> bool:
    if node.op == "cast":
        return is_rounded(node)
    return node.op in ("detach", "derived") or (node.op == "reshape" and node.inputs[0] not in operands)


def is_rounded(node: Node) -> bool:
    """Whether the node has fewer digits than what it is of."""
    return node.op == "cast" and node.inputs[0].dtype.is_float and node.dtype.size < node.inputs[0].dtype.size
