"""Finds a graph in another, sizes and numbers open, and puts a third in its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from framefuse.ir.builder import Builder, Unprovable
from framefuse.ir.comparisons import Relation
from framefuse.ir.graph import Graph, Node
from framefuse.ir.nested import mapped
from framefuse.ir.numbers import Expr, Real, Symbol, expr
from framefuse.ir.ops import CREATE, TABLE, VIEW
from framefuse.ir.rewrite import replaced
from framefuse.ir.strides import dense_order
from framefuse.ir.values import Value

LAYOUT = "orders", "views"  # the attributes of a call that say how its operands lie: of no interest to a pattern
Pairs = list[tuple[Expr | Real | int, Value]]


@dataclass(frozen=True, slots=True)
class Template:
    """A graph with one output and the parameters of the function that it was recorded from: the places of the graph's
    inputs by parameter, and the names of run-time floats by parameter.
    """

    graph: Graph
    tensors: Mapping[str, int]
    floats: Mapping[str, str]

    @property
    def root(self) -> Node:
        """What the function returns."""
        return self.graph.outputs[0].node

    def same(self, other: Template) -> bool:
        """Whether both compute the same from the same parameters."""
        if (dict(self.tensors), dict(self.floats)) != (dict(other.tensors), dict(other.floats)):
            return False
        mine, theirs = self.graph.nodes, other.graph.nodes
        if len(mine) != len(theirs) or self.graph.relations != other.graph.relations:
            return False
        numbers = {node: number for nodes in (mine, theirs) for number, node in enumerate(nodes)}
        return all(
            (a.op, a.dtype, a.shape, a.strides, a.device) == (b.op, b.dtype, b.shape, b.strides, b.device)
            and a.attrs == b.attrs
            and [numbers[operand] for operand in a.inputs] == [numbers[operand] for operand in b.inputs]
            for a, b in zip(mine, theirs, strict=True)
        ) and numbers[self.root] == numbers[other.root]


@dataclass(slots=True)
class Match:
    """Where a pattern was found: what its nodes, sizes and floats are there."""

    nodes: dict[Node, Node]
    sizes: dict[Symbol, Expr] = field(default_factory=dict)
    floats: dict[str, Value] = field(default_factory=dict)
    relations: list[Relation] = field(default_factory=list)  # that must hold of sizes


@dataclass(frozen=True, slots=True)
class Exchange:
    """A pattern and what comes in its place; both take the same parameters."""

    pattern: Template
    replacement: Template

    def same(self, other: Exchange) -> bool:
        """Whether both exchange the same."""
        return self.pattern.same(other.pattern) and self.replacement.same(other.replacement)

    def applied(self, graph: Graph) -> tuple[Graph, int]:
        """The graph with every match exchanged, and how many there were. Matches do not overlap; one whose inner
        values others read too is left, since they would be computed twice.
        """
        matches = dict(self.matches(graph))
        if not matches:
            return graph, 0
        gone: set[Node] = set()  # what was only computed for what has been exchanged
        count = 0

        def change(
            node: Node, operands: tuple[Node, ...], builder: Builder, now: Mapping[Node, Node]
        ) -> Node | None:
            nonlocal count
            match = matches.get(node)
            result = _Exchanged(self, match, builder, now, node).made() if match is not None else None
            if match is not None and result is not None:
                gone.update(self._inner(match, node))
                count += 1
            return result

        return replaced(graph, change, gone), count

    def matches(self, graph: Graph) -> Iterator[tuple[Node, Match]]:
        """The matches by the node that the pattern's result is there, in program order."""
        readers: dict[Node, list[Node]] = {}
        for node in graph.nodes:
            for operand in node.inputs if _through(node) is node else ():
                readers.setdefault(_through(operand), []).append(node)
        ends = [*(output.node for output in graph.outputs), *(write.node for write in graph.writes)]
        asked = set(map(_through, ends))
        taken: set[Node] = set()
        for node in graph.nodes:
            if node.op != self.pattern.root.op or node.dtype is not self.pattern.root.dtype:
                continue
            match = _match(self.pattern, graph, node)
            if match is None:
                continue
            inner = self._inner(match, node)
            whole = {*inner, node}
            computed = [each for each in inner if TABLE[each.op].kind not in (VIEW, CREATE)]
            private = all(each not in asked and whole.issuperset(readers.get(each, ())) for each in computed)
            if private and taken.isdisjoint(computed) and node not in taken:
                taken |= {*computed, node}
                yield node, match

    def _inner(self, match: Match, root: Node) -> list[Node]:
        leaves = {match.nodes.get(node) for node in self.pattern.graph.inputs}
        return [node for node in match.nodes.values() if node is not root and node not in leaves]


# ---- matching --------------------------------------------------------------------------------------------------------


def _match(pattern: Template, graph: Graph, root: Node) -> Match | None:
    """The match whose result is ``root``, if there is one."""
    states: list[tuple[list[tuple[Node, Node]], dict[Node, Node], Pairs]] = [([(pattern.root, root)], {}, [])]
    turned: dict[tuple[Node, tuple[int, ...]], Node] = {}
    while states:
        waiting, bound, pairs = states.pop()
        while waiting:
            mine, theirs = waiting.pop()
            mine = _through(mine)
            while mine.op == "permute" and mine.inputs[0].op == "input":  # however the operand is turned there
                theirs = _turned(_through(theirs), mine.attr("axes"), turned)
                mine = mine.inputs[0]
            known = bound.get(mine)
            if known is not None:
                if known is not theirs and known is not _through(theirs):
                    break
                continue
            if mine.op == "input":
                if mine.dtype is not theirs.dtype or len(mine.shape) != len(theirs.shape):
                    break
                bound[mine] = theirs
                continue
            theirs = _through(theirs)
            if not _alike(mine, theirs, pairs):
                break
            bound[mine] = theirs
            if TABLE[mine.op].commutes:
                swapped = [*waiting, *zip(mine.inputs, reversed(theirs.inputs), strict=True)]
                states.append((swapped, dict(bound), list(pairs)))
            waiting += zip(mine.inputs, theirs.inputs, strict=True)
        else:
            match = _settled(pattern, graph, bound, pairs)
            if match is not None:
                return match
    return None


def _turned(node: Node, axes: Sequence[int], known: dict[tuple[Node, tuple[int, ...]], Node]) -> Node:
    """What ``node`` is a permutation of by ``axes``: a node of its graph, or one for :meth:`_Exchanged.place`."""
    order = tuple(sorted(range(len(axes)), key=axes.__getitem__)) if len(axes) == len(node.shape) else ()
    if not order:
        return node
    while node.op == "permute":
        inner = node.attr("axes")
        order, node = tuple([inner[axis] for axis in order]), node.inputs[0]
    if order == tuple(range(len(order))):
        return node
    if (node, order) not in known:
        shape = tuple([node.shape[axis] for axis in order])
        known[node, order] = Node("permute", (node,), (("axes", order),), node.dtype, shape, None, None, node.device)
    return known[node, order]


def _through(node: Node) -> Node:
    """The node behind expansions that leave its sizes as they are."""
    while node.op == "expand" and len(node.shape) == len(node.inputs[0].shape) and _is_whole(node):
        node = node.inputs[0]
    return node


def _is_whole(node: Node) -> bool:
    sizes = zip(node.shape, node.inputs[0].shape, strict=True)
    return all(new is old or old.constant != 1 for new, old in sizes)


def _alike(mine: Node, theirs: Node, pairs: Pairs) -> bool:
    """Whether two nodes are the same operation, if the pairs of numbers that it adds turn out equal."""
    if mine.op != theirs.op or mine.dtype is not theirs.dtype or len(mine.inputs) != len(theirs.inputs):
        return False
    if len(mine.shape) != len(theirs.shape) or [name for name, _ in mine.attrs] != [name for name, _ in theirs.attrs]:
        return False
    pairs += zip(mine.shape, theirs.shape, strict=True)
    rows = zip(mine.attrs, theirs.attrs, strict=True)
    return all(name in LAYOUT or _agree(value, other, pairs) for (name, value), (_, other) in rows)


def _agree(mine: Value, theirs: Value, pairs: Pairs) -> bool:
    if isinstance(mine, (Expr, Real)):
        pairs.append((mine, theirs))
        return isinstance(theirs, (Expr, Real, int, float))
    if isinstance(theirs, (Expr, Real)) and isinstance(mine, (int, float)):
        pairs.append((mine if isinstance(mine, int) else Real("const", (mine,)), theirs))
        return True
    if type(mine) is not type(theirs):
        return False
    if isinstance(mine, (tuple, list)):
        return len(mine) == len(theirs) and all(map(_agree, mine, theirs, [pairs] * len(mine)))
    if isinstance(mine, dict):
        return list(mine) == list(theirs) and all(_agree(mine[key], theirs[key], pairs) for key in mine)
    if isinstance(mine, slice):
        return all(_agree(getattr(mine, part), getattr(theirs, part), pairs) for part in ("start", "stop", "step"))
    return mine is theirs or bool(mine == theirs)


def _settled(pattern: Template, graph: Graph, bound: dict[Node, Node], pairs: Pairs) -> Match | None:
    """The match with its sizes and floats, if all numbers agree on the recorded sizes."""
    match = Match(bound)
    for node in pattern.graph.inputs:
        matched = bound.get(node)
        if matched is None:
            continue
        for size, here in zip(node.shape, matched.shape, strict=True):
            symbol = _symbol(size)
            if symbol is not None:
                match.sizes.setdefault(symbol, here)
            pairs.append((size, here))
    for mine, theirs in pairs:
        if isinstance(mine, Real) and mine.op == "symbol":
            known = match.floats.setdefault(mine.args[0], theirs)
            if known is not theirs and known != theirs:
                return None
    if any(not _equal(mine, theirs, match, graph) for mine, theirs in pairs):
        return None
    relations = _over(pattern.graph.relations, match.sizes)
    return match if all(_holds(relation, match, graph) for relation in relations) else None


def _over(relations: Sequence[Relation], sizes: Mapping[Symbol, Expr]) -> list[Relation]:
    """The relations at another place; those that only named a size by another that is equal are gone: the shapes of a
    recorded graph are over one of the two.
    """
    known = sizes.keys()
    return [each.substitute(sizes) for each in relations if (each.left.symbols | each.right.symbols) <= known]


def _holds(relation: Relation, match: Match, graph: Graph) -> bool:
    """Whether something holds of the recorded sizes; notes it."""
    if relation.constant is not None:
        return relation.constant
    if not (relation.left.symbols | relation.right.symbols) <= graph.hints.keys() or not relation.holds(graph.hints):
        return False
    match.relations.append(relation)
    return True


def _symbol(size: Expr) -> Symbol | None:
    """The symbol that the size is, if it is nothing more."""
    symbols = size.symbols
    if len(symbols) != 1:
        return None
    symbol = next(iter(symbols))
    return symbol if symbol.expr is size or symbol.expr == size else None


def _equal(mine: Expr | Real | int, theirs: Value, match: Match, graph: Graph) -> bool:
    """Whether a number of the pattern is that of the graph, on the recorded sizes; notes what it takes of sizes."""
    if isinstance(mine, Expr) and isinstance(theirs, (Real, float)):  # a size that is a tensor's content is a float
        mine = Real("int", (mine,))
    if isinstance(mine, Real):
        if mine.op == "symbol":
            return True
        if not mine.symbols <= match.sizes.keys():
            return False
        value = mine.substitute(match.sizes)
        if isinstance(theirs, Real):
            return value == theirs
        if isinstance(theirs, Expr) or value.names:
            return False
        return float(value.evaluate({}, {})) == float(theirs)
    if not isinstance(theirs, (Expr, int)) or isinstance(theirs, bool):
        return False
    mine, theirs = expr(mine), expr(theirs)
    if not mine.symbols <= match.sizes.keys():
        return False
    mine = mine.substitute(match.sizes)
    if mine is theirs or mine == theirs:
        return True
    return _holds(Relation("==", mine, theirs, "a replaced pattern"), match, graph)


# ---- the exchange ----------------------------------------------------------------------------------------------------


class _Exchanged:
    """Makes the replacement's nodes where the pattern was found."""

    def __init__(
        self, exchange: Exchange, match: Match, builder: Builder, now: Mapping[Node, Node], root: Node
    ) -> None:
        self.exchange, self.match, self.builder, self.now, self.root = exchange, match, builder, now, root
        self.sizes: dict[Symbol, Expr] = {}
        self.floats: dict[str, Value] = {}

    def made(self) -> Node | None:
        """What comes in the place of the pattern's result; None where sizes that are known only at run time decide."""
        pattern, replacement = self.exchange.pattern, self.exchange.replacement
        nodes: dict[Node, Node] = {}
        for parameter, place in replacement.tensors.items():
            mine, theirs = replacement.graph.inputs[place], pattern.graph.inputs[pattern.tensors[parameter]]
            nodes[mine] = self.place(self.match.nodes[theirs])
            for size, here in zip(mine.shape, nodes[mine].shape, strict=True):
                symbol = _symbol(size)
                if symbol is not None:
                    self.sizes.setdefault(symbol, here)
        for symbol, _, dimension in replacement.graph.bound:  # an operator's result: sized as what it stands for
            self.sizes[symbol] = self.root.shape[dimension]
        for parameter, name in replacement.floats.items():
            if parameter in pattern.floats:
                self.floats[name] = self.match.floats[pattern.floats[parameter]]
        try:
            for relation in (*self.match.relations, *_over(replacement.graph.relations, self.sizes)):
                self.builder.require(relation.op, relation.left, relation.right, relation.why)
            for node in replacement.graph.nodes:
                if node.op != "input":
                    nodes[node] = self._node(node, tuple([nodes[operand] for operand in node.inputs]))
            result = self.builder.expand(nodes[replacement.root], self.root.shape)
            return self.builder.resized(result, self.root.shape)
        except Unprovable:
            return None

    def place(self, node: Node) -> Node:
        """What an operand of the match has become."""
        if node in self.now:
            return self.now[node]
        return self.builder.permute(self.now[node.inputs[0]], node.attr("axes"))

    def _node(self, node: Node, operands: tuple[Node, ...]) -> Node:
        shape = tuple([self._number(size) for size in node.shape])
        attrs = tuple((name, () if name == "views" else mapped(value, self._number)) for name, value in node.attrs)
        if node.op == "library":
            orders = node.attr("orders")
            operands = tuple(self._lying(each, order) for each, order in zip(operands, orders, strict=True))
            return self.builder.opaque(node.op, operands, attrs, node.dtype, shape, None, self.root.device)
        if node.op == "result":
            strides = None if node.strides is None else tuple([self._number(stride) for stride in node.strides])
            return self.builder.opaque(node.op, operands, attrs, node.dtype, shape, strides, self.root.device)
        if node.op in ("expand", "reshape") and operands[0].shape == shape:
            return operands[0]
        return self.builder.make(node.op, operands, attrs, node.dtype, shape, device=self.root.device)

    def _lying(self, node: Node, order: Sequence[int] | None) -> Node:
        """The operand, in a copy where it is memory that lies in another order than the call's results count on."""
        if node.op not in ("input", "result") or node.strides is None or order is None:
            return node
        if dense_order(self.builder.sizes(node.shape), self.builder.sizes(node.strides)) == tuple(order):
            return node
        return self.builder.opaque("expand", (node,), (), node.dtype, node.shape, None, node.device)

    def _number(self, value: Value) -> Value:
        """An attribute or size with the sizes and floats of this place."""
        if isinstance(value, Expr):
            return value.substitute(self.sizes)
        if isinstance(value, Real):
            return self._real(value)
        return value

    def _real(self, value: Real) -> Value:
        if value.op == "symbol":
            return self.floats.get(value.args[0], value)
        if value.op in ("const", "int", "bits"):
            return value.substitute(self.sizes)
        parts = tuple(map(self._as_real, map(self._real, value.args)))
        return Real(value.op, parts)

    @staticmethod
    def _as_real(value: Value) -> Real:
        if isinstance(value, Real):
            return value
        return Real("int", (value,)) if isinstance(value, Expr) else Real("const", (float(value),))


def with_one_output(graph: Graph) -> bool:
    """Whether a recorded function gives one tensor that it computes, and does nothing else."""
    return len(graph.outputs) == 1 and graph.outputs[0].input is None and not (graph.writes or graph.late)
