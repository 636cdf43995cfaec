"""Tells which values the program's own checkpoints drop, so that backward computes them again whatever that costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from framefuse.autodiff.joint import NOTHING
from framefuse.autodiff.rebuild import MARKS
from framefuse.ir.graph import Graph, Node
from framefuse.ir.ops import TABLE, VIEW
from framefuse.ir.taped_calls import Taped


@dataclass(frozen=True, slots=True)
class Regions:
    """``of`` numbers the checkpoint that a node of forward was made in, below zero where the checkpoint saves it.
    ``left`` are nodes that are there outside of it, and what they show the memory of.
    """

    of: Mapping[Node, int] = field(default_factory=dict)
    left: frozenset[Node] = frozenset()

    @staticmethod
    def in_graph(graph: Graph, origin: Mapping[Node, Node] = NOTHING) -> Regions:
        """Those of a graph, some of whose nodes stand for others of it (``origin``)."""
        if not graph.regions:
            return NO_REGIONS
        of = dict(graph.regions)
        of.update((node, of[was]) for node, was in origin.items() if was in of and node.op not in MARKS)
        left = {output.node for output in graph.outputs}
        for node in reversed(graph.nodes):
            region = abs(of.get(node, 0))
            for operand in node.inputs[:1] if node.op in MARKS else node.inputs:
                if operand in of and (abs(of[operand]) != region or (node in left and TABLE[node.op].kind == VIEW)):
                    left.add(operand)
        return Regions(of, frozenset(left))

    def parts(self, forward: Sequence[Node], made: Sequence[Node] = ()) -> tuple[set[Node], set[Node]]:
        """Which of the nodes, each in program order, are dropped, and which of forward's rest on those: they are saved
        where backward reads them, as computing them again would have all that was dropped computed at once. ``made``
        are further ones that gradients need.
        """
        dropped: set[Node] = set()
        borders: set[Node] = set()
        for node in forward if self.of else ():
            if _runs_once(node):
                continue
            if self.of.get(node, 0) > 0 and node not in self.left:
                dropped.add(node)
            elif not dropped.isdisjoint(node.inputs):
                borders.add(node)
        for node in made if dropped else ():
            if not dropped.isdisjoint(node.inputs) and not _runs_once(node):
                dropped.add(node)
        return dropped, borders


def _runs_once(node: Node) -> bool:
    """Whether the node is a library call that is not made again, or what that gave."""
    call = node.inputs[0] if node.op == "result" else node
    if call.op != "library":
        return False
    target = call.attr("target")
    return bool(call.attr("random")) or isinstance(target, Taped) or bool(getattr(target, "commits", False))


NO_REGIONS = Regions()
