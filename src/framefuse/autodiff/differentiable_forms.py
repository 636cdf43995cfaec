"""Gives library calls a form that gives what their gradients need too: another call that has a rule, or a tape."""

from __future__ import annotations

from collections.abc import Container, Sequence
from dataclasses import replace

from framefuse.autodiff.library import row_major
from framefuse.autodiff.registry import CALLS, DIFFERENTIABLE_FORMS, has_rules
from framefuse.autodiff.reverse import active
from framefuse.autodiff.tapes import STATE, hollow, refuse_sparse
from framefuse.errors import Stop
from framefuse.ir.builder import Unprovable, builder_for
from framefuse.ir.dtypes import BY_NAME
from framefuse.ir.facts import Source
from framefuse.ir.graph import Arg, Graph, Node
from framefuse.ir.numbers import expr
from framefuse.ir.stops import reason
from framefuse.ir.taped_calls import Taped, drawn_on
from framefuse.ir.target import default_generator

UINT8 = BY_NAME["uint8"]
NORMS = ("batch_norm",)


def with_differentiable_forms(graph: Graph) -> Graph:
    """The graph with another form of each library call through which a gradient flows from ``graph.differentiable`` to
    an output that requires grad, and that has no rule of its own.
    """
    roots = [output.node for output in graph.outputs if output.requires_grad]
    wanted = {graph.inputs[place] for place in graph.differentiable}
    path = set(active(graph.nodes, roots, wanted))
    if not any(node.op == "library" and _needs_form(node) for node in path):
        return graph
    return _changed(graph, _Rebuilding(graph, path))


def with_kept_moments(graph: Graph, devices: Container[str]) -> Graph:
    """The graph, which no gradient flows through, in which batch norms in training on ``devices`` give their moments
    too: from these on fuse may compute them by kernels, and running statistics are written by kernels.
    """
    norms = {node for node in graph.nodes if node.op == "library" and node.attr("name") in NORMS}
    norms = {node for node in norms if node.device in devices and not _lies_last(node)}
    return _changed(graph, _Rebuilding(graph, norms, tapes=False)) if norms else graph


def _lies_last(call: Node) -> bool:
    """Whether a norm reads an input of the program whose channels are neighbours, which the library reads once (H100,
    32 x 64 x 128 x 128 float32: 0.15 ms, by kernels 0.20).
    """
    order = call.attr("orders")[0]
    return call.inputs[0].op == "input" and order is not None and len(order) > 2 and order[-1] == 1


def _changed(graph: Graph, rebuilding: _Rebuilding) -> Graph:
    for node in graph.nodes:
        known = len(rebuilding.builder.nodes)
        rebuilding.add(node)
        if node in graph.regions:
            rebuilding.regions.update(dict.fromkeys(rebuilding.builder.nodes[known:], graph.regions[node]))
    return rebuilding.result()


def _needs_form(node: Node) -> bool:
    if isinstance(node.attr("target"), Taped) or not has_rules(node):
        return True
    return node.attr("name") in DIFFERENTIABLE_FORMS or node.attr("name") not in CALLS


class _Rebuilding:
    """Gives calls on ``path`` their forms; without ``tapes`` those that have none stay as they are."""

    def __init__(self, graph: Graph, path: set[Node], tapes: bool = True) -> None:
        self.graph = graph
        self.path = path
        self.tapes = tapes
        self.builder = builder_for(graph)  # a form finds what is computed before it, never what is computed behind
        self.made: dict[Node, Node] = {}
        self.users: dict[Node, list[Node]] = {}
        self.regions: dict[Node, int] = {}  # of the new nodes
        for node in graph.nodes:
            if node.op == "result":
                self.users.setdefault(node.inputs[0], []).append(node)

    def add(self, node: Node) -> None:
        """Takes over a node; the results of a call that got another form are there already."""
        if node in self.made:
            return
        self.builder.line = node.line
        if node.op == "library" and node in self.path and _needs_form(node):
            self._differentiable(node)
            return
        inputs = tuple(self.made[operand] for operand in node.inputs)
        same = all(new is old for new, old in zip(inputs, node.inputs, strict=True))
        self._keep(node, node if same else node.over(inputs))

    def _keep(self, old: Node, new: Node) -> None:
        self.made[old] = new
        self.builder.adopt((new,))

    def _differentiable(self, node: Node) -> None:
        inputs = tuple(self.made[operand] for operand in node.inputs)
        moved = node.over(inputs)
        results = self.users.get(node, [])
        if isinstance(node.attr("target"), Taped):
            self.made.update({part: part for part in results if part.attr("path")[0] != 0})  # nobody reads them again
        own = not isinstance(node.attr("target"), Taped) and has_rules(node)
        rule = DIFFERENTIABLE_FORMS.get(node.attr("name")) if own else None
        need = [operand in self.path for operand in node.inputs]
        before, replaced = dict(self.builder.relations), None
        try:
            replaced = rule(self.builder, moved, results, need) if rule is not None else None
        except Unprovable:  # sizes known only at run time decide whether the form may stand for the call
            self.builder.relations = before
        if replaced is None and not self.tapes:
            self._keep(node, moved)
            return
        if replaced is None:
            replaced = self._taped(moved, results, node)
        self.made[node] = next((new.inputs[0] for new in replaced.values() if new.op == "result"), moved)
        self.made.update(replaced)

    def _taped(self, node: Node, results: Sequence[Node], old: Node) -> dict[Node, Node]:
        if any(isinstance(value, Source) for value in node.attr("kwargs").values()):
            raise Stop(reason("gradient", f"{node.attr('name')} draws from a generator of its own and", node.line))
        refuse_sparse(node)
        wanted = tuple(index for index, operand in enumerate(old.inputs) if operand in self.path)
        attrs, target = dict(node.attrs), node.attr("target")
        if isinstance(target, Taped):  # for other operands, it may be
            results = [result for result in results if result.attr("path")[0] == 0]
            results = sorted(results, key=lambda result: result.attr("path"))
            attrs["target"] = replace(target, wanted=wanted)
        else:
            paths = tuple(result.attr("path") for result in results)
            operands = tuple(Arg(index) for index in range(len(node.inputs)))
            attrs["target"] = Taped(target, wanted, paths, bool(node.attr("random")))
            attrs["args"], attrs["kwargs"] = (operands, hollow(node.attr("args")), hollow(node.attr("kwargs"))), {}
        taped = replace(node, attrs=tuple(attrs.items()))
        self.builder.nodes.append(taped)

        def result(like: Node, *path: int) -> Node:
            node = replace(like, op="result", inputs=(taped,), attrs=(("path", path),))
            self.builder.nodes.append(node)
            return node

        replaced = {}
        for number, part in enumerate(results):
            place = part.attr("path")[1] if isinstance(target, Taped) else number
            replaced[part] = result(part, 0, place)
            result(part, 1, place)
        for place, index in enumerate(wanted):
            operand = node.inputs[index]
            leaf = replace(operand, strides=operand.strides or row_major(operand.shape), line=node.line)
            result(leaf, 2, place)
        if attrs["target"].draws:
            generator = default_generator(drawn_on(operand.device for operand in node.inputs))
            assert generator is not None, "a device that draws has a generator"
            size = (expr(generator.get_state().numel()),)
            state = Node("result", (taped,), STATE, UINT8, size, row_major(size), node.line)
            self.builder.nodes.append(state)
        return replaced

    def result(self) -> Graph:
        """The whole graph, without calls that another form replaced."""
        graph, forms = self.graph, self.made
        return replace(
            graph,
            nodes=tuple(self.builder.nodes),
            outputs=tuple(replace(output, node=forms[output.node]) for output in graph.outputs),
            writes=tuple(replace(write, node=forms[write.node]) for write in graph.writes),
            bound=tuple((symbol, forms[node], dimension) for symbol, node, dimension in graph.bound),
            kept=tuple(forms[node] for node in graph.kept),
            lasting=frozenset(forms[node] for node in graph.lasting if node in forms),
            results=frozenset(forms[node] for node in graph.results if node in forms),
            regions=self.regions,
            relations=tuple(self.builder.relations),
        )
