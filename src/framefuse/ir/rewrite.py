"""Makes a graph out of another by saying, node by node, what comes in its place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from framefuse.errors import UserError
from framefuse.ir.builder import Builder, builder_for
from framefuse.ir.graph import Graph, Node
from framefuse.ir.rename import rebuilt

# ``change(node, operands, build)``: the node that comes in the place of ``node``, made by ``build`` from the new
# operands, or None to keep it.
Change = Callable[[Node, tuple[Node, ...], Builder], Node | None]


def rewritten(graph: Graph, change: Change) -> Graph:
    """As :func:`framefuse.rewritten`."""
    return replaced(graph, lambda node, operands, build, now: change(node, operands, build))


def replaced(
    graph: Graph,
    change: Callable[[Node, tuple[Node, ...], Builder, Mapping[Node, Node]], Node | None],
    gone: Collection[Node] = (),
) -> Graph:
    """As :func:`rewritten`; ``change`` also gets what every earlier node has become, and the nodes that it puts into
    ``gone`` need no longer run for the errors that they may raise.
    """
    builder = builder_for(graph)
    now: dict[Node, Node] = {}

    def step(node: Node, operands: tuple[Node, ...]) -> Sequence[Node]:
        known = len(builder.nodes)
        builder.line = node.line
        new = None if node.op == "input" else change(node, operands, builder, now)
        if new is None:
            same = all(mine is old for mine, old in zip(operands, node.inputs, strict=True))
            new = node if same else node.over(operands)
            builder.adopt((new,))
        elif new.dtype is not node.dtype or not _same_shape(builder, new, node):
            raise UserError(f"{new!r} cannot come in the place of {node!r}. Give a node of its dtype and shape")
        now[node] = new
        return (*builder.nodes[known:], new)

    whole = rebuilt(graph, step)
    if all(old is new for old, new in now.items()):
        return graph
    whole = replace(whole, kept=tuple(now[node] for node in graph.kept if node not in gone))
    live = reached(_ends(whole))
    was = reached(_ends(graph))
    unread = {new for old, new in now.items() if old not in was}  # before as well: not this pass's to remove
    nodes = tuple(node for node in whole.nodes if node in live or node in unread)
    return replace(whole, nodes=nodes, relations=tuple(builder.relations))


def _ends(graph: Graph) -> list[Node]:
    """What a graph is computed for."""
    named = [*(output.node for output in graph.outputs), *(write.node for write in graph.writes)]
    return [*graph.inputs, *graph.kept, *named, *(node for _, node, _ in graph.bound)]


def reached(ends: Iterable[Node]) -> set[Node]:
    """``ends`` and all that they are made of."""
    seen: set[Node] = set()
    waiting = list(ends)
    while waiting:
        node = waiting.pop()
        if node not in seen:
            seen.add(node)
            waiting += node.inputs
    return seen


def _same_shape(builder: Builder, new: Node, old: Node) -> bool:
    if len(new.shape) != len(old.shape):
        return False
    return all(builder.known_equal(a, b) for a, b in zip(new.shape, old.shape, strict=True))
