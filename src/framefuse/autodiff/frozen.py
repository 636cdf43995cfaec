"""Has backward compute from copies what eager keeps as it was, where others may write what it is computed from."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from framefuse.autodiff.rebuild import MARKS
from framefuse.ir.graph import Graph, Node
from framefuse.ir.ops import CALL, CREATE, SCATTER, TABLE

FROZEN = "frozen"  # the name of ``derived`` nodes that stand for a copy of a tensor others see, made in forward
COPY = (("name", FROZEN), ("parameters", ()))


@dataclass(frozen=True, slots=True)
class Frozen:
    """``graph`` with further nodes. ``now`` gives for a node of it what its value is where backward computes it, where
    that is another node; ``origin`` the node that each further one is in forward. What is in ``once`` backward can only
    take from forward.
    """

    graph: Graph
    now: Mapping[Node, Node] = field(default_factory=dict)
    origin: Mapping[Node, Node] = field(default_factory=dict)
    once: frozenset[Node] = frozenset()


def is_frozen(node: Node) -> bool:
    """Whether the node stands for a copy that forward has to make."""
    return node.op == "derived" and node.attr("name") == FROZEN


def frozen(
    graph: Graph, seen: Collection[Node], dropped: Collection[Node] = (), borders: Collection[Node] = ()
) -> Frozen:
    """What backward computes in place of the graph's nodes, so that it reads the tensors ``seen`` by others only for
    what eager reads them.

    Eager saved those, but other values that rest on them as well, which last: the one follow a write behind autograd's
    back, the others do not. So each value that rests on what is seen may be needed twice: as it is now, and as it was.
    What lasts is always what it was; only copies lead there. What calls gave is saved, and is what it was, but for that
    which is ``dropped``, and so are the ``borders`` of that.
    """
    lasting = graph.lasting
    now: dict[Node, Node] = {}
    was: dict[Node, Node] = {}
    further: dict[Node, Node] = {}
    once: list[Node] = []
    for node in graph.nodes:
        if node in seen:
            if node in lasting and any(part in was for part in node.inputs):
                once.append(node)
            mark = replace(node, op="derived", inputs=(node,), attrs=COPY, strides=None)
            was[node], further[mark] = mark, node
            continue
        parts = node.inputs[:1] if node.op in MARKS else node.inputs
        given = TABLE[node.op].kind in (CALL, CREATE, SCATTER) and node not in dropped
        if given or node in borders or not any(part in was for part in parts):
            continue
        was[node] = _over(node, was, further)
        if node in lasting or all(now.get(part, part) is was.get(part, part) for part in parts):
            now[node] = was[node]
        elif any(part in now for part in parts):
            now[node] = _over(node, now, further)
    if not now:
        return Frozen(graph, once=frozenset(once))
    replacement = _with(graph, now, further)
    return replace(replacement, once=frozenset((*once, *filter(is_frozen, replacement.origin))))


def _over(node: Node, given: Mapping[Node, Node], further: dict[Node, Node]) -> Node:
    """What the node computes from others in place of its operands."""
    if node.op in MARKS:
        return given[node.inputs[0]]
    copy = node.over(tuple(given.get(part, part) for part in node.inputs))
    further[copy] = node
    return copy


def _with(graph: Graph, now: Mapping[Node, Node], further: Mapping[Node, Node]) -> Frozen:
    """The graph with those of the further nodes that backward may read, each behind what it is in forward."""
    needed: set[Node] = set()
    waiting = list(now.values())
    while waiting:
        node = waiting.pop()
        if node in further and node not in needed:
            needed.add(node)
            waiting += node.inputs
    behind: dict[Node, list[Node]] = {}
    for node, was in further.items():
        if node in needed:
            behind.setdefault(was, []).append(node)
    nodes = [each for node in graph.nodes for each in (node, *behind.get(node, ()))]
    origin = {node: was for node, was in further.items() if node in needed}
    return Frozen(replace(graph, nodes=tuple(nodes)), now, origin)
