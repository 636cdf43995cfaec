"""Makes a graph out of another by saying, node by node, what comes in its place."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

from framefuse.errors import UserError
from framefuse.ir.builder import Builder, builder_for
from framefuse.ir.graph import Graph, Node

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
    """As :func:`rewritten`; ``change`` also gets what every earlier node has become, and the nodes ``gone`` need not
    run for the errors that they may raise.
    """
    builder = builder_for(graph)
    now: dict[Node, Node] = {}
    for node in graph.nodes:
        operands = tuple([now[operand] for operand in node.inputs])
        builder.line = node.line
        found = None if node.op == "input" else change(node, operands, builder, now)
        if found is None:
            same = all(new is old for new, old in zip(operands, node.inputs, strict=True))
            found = node if same else node.over(operands)
            builder.adopt((found,))
        elif found.dtype is not node.dtype or not _same_shape(builder, found, node):
            raise UserError(f"{found!r} cannot come in the place of {node!r}. Give a node of its dtype and shape")
        now[node] = found
    if all(old is new for old, new in now.items()):
        return graph
    kept = tuple(now[node] for node in graph.kept if node not in gone)
    outputs = tuple(replace(output, node=now[output.node]) for output in graph.outputs)
    writes = tuple(replace(write, node=now[write.node]) for write in graph.writes)
    bound = tuple((symbol, now[node], dimension) for symbol, node, dimension in graph.bound)
    ends = [*(output.node for output in outputs), *(write.node for write in writes)]
    live = reached([*graph.inputs, *kept, *ends, *(node for _, node, _ in bound)])
    was = reached([*graph.kept, *(each.node for each in graph.outputs), *(each.node for each in graph.writes)])
    unread = {new for old, new in now.items() if old not in was}  # before as well: not this pass's to remove
    return replace(
        graph,
        nodes=tuple(node for node in dict.fromkeys(builder.nodes) if node in live or node in unread),
        outputs=outputs,
        writes=writes,
        bound=bound,
        kept=kept,
        relations=tuple(builder.relations),
        lasting=frozenset(now[node] for node in graph.lasting if node in now),
    )


def reached(ends: Iterable[Node]) -> set[Node]:
    """``ends`` and all that they are made of."""
    found: set[Node] = set()
    waiting = list(ends)
    while waiting:
        node = waiting.pop()
        if node not in found:
            found.add(node)
            waiting += node.inputs
    return found


def _same_shape(builder: Builder, new: Node, old: Node) -> bool:
    if len(new.shape) != len(old.shape):
        return False
    return all(builder.known_equal(a, b) for a, b in zip(new.shape, old.shape, strict=True))
