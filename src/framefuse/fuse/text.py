"""Turns what stands between the passes of fuse into text: graphs, groups, drafts and schedules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from framefuse.fuse.addressing.indexing import MOVES
from framefuse.fuse.grouping.cells import Group
from framefuse.fuse.grouping.groups import Groups
from framefuse.fuse.memory.draft import Draft, Value
from framefuse.ir.graph import Graph, Node
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.printer import graph_text, node_names
from framefuse.ir.schedule import Allocate, Commit, Item, Memory, Release, RunCall, RunKernel, RunMatmul, Schedule


def graph_change_text(graph: Graph, before: Graph) -> str:
    """The graph, headed by the nodes that a pass removed and those that it added."""
    old, new = (Counter(map(_described, each.nodes)) for each in (before, graph))
    lines = [f"# removed: {text}" for text in (old - new).elements()]
    lines += [f"# added: {text}" for text in (new - old).elements()]
    return "\n".join((*lines, graph_text(graph)))


def _described(node: Node) -> str:
    where = "" if node.line is None else f"  {node.line.file.rpartition('/')[2]}:{node.line.line}"
    return f"{node.op} {node.dtype}[{', '.join(map(str, node.shape))}]{where}"


def groups_text(groups: Groups, before: object = None) -> str:
    """Each group in order with what it stores, computes and loads; then where the other nodes went. Nodes have the
    names that they have in the graph's text.
    """
    names = node_names(groups.graph)
    told: set[Node] = set()
    lines = [f"groups of {groups.graph.name}"]
    for group in groups.order:
        lines += _kernel(group, names, told) if group.node is None else _call(group, group.node, groups, names, told)
    for activated in groups.activated:
        lines.append(f"group {activated.group.number} becomes one call with its product, {activated.node.attr('name')}")
    for _, product in sorted(groups.products.items(), key=lambda pair: pair[0]):
        before = "".join(f", group {group.number}" for _, group in product.before)
        lines.append(f"group {product.group.number} may become one kernel with {names[product.node]}{before}")
    through = _through(told)
    left = [node for node in groups.graph.nodes if node not in told and node.op not in ("input", "result")]
    views = [node for node in left if node in through]
    gone = [node for node in left if node not in through and node not in groups.inside]
    wholes = dict.fromkeys(place.whole for place in groups.inside.values())
    for whole in wholes:
        parts = (names[node] for node, place in groups.inside.items() if place.whole is whole)
        lines.append(f"in one memory: {', '.join(parts)}")
    lines += [f"part of an index: {', '.join(_named(node, names) for node in views)}"] if views else []
    lines += [f"removed, nothing needs it: {', '.join(_named(node, names) for node in gone)}"] if gone else []
    return "\n".join(lines)


def _through(nodes: set[Node]) -> set[Node]:
    """The views through which these nodes read their operands."""
    views: set[Node] = set()
    waiting = [operand for node in nodes for operand in node.inputs]
    while waiting:
        node = waiting.pop()
        if node.op in MOVES and node not in views:
            views.add(node)
            waiting += node.inputs
    return views


def _named(node: Node, names: dict[Node, str]) -> str:
    return f"{names[node]} {node.op}"


def _kernel(group: Group, names: dict[Node, str], told: set[Node]) -> Iterator[str]:
    cells = list(group.cells.values())
    computed = dict.fromkeys(cell.node for cell in cells if cell.kind != "load" and cell.node not in group.roots)
    loaded = dict.fromkeys(cell.node for cell in cells if cell.kind == "load")
    told.update(group.roots, computed)
    yield f"group {group.number}: a kernel on {group.device}"
    for root in group.roots:
        yield f"    stores {_named(root, names)} {root.dtype}[{', '.join(map(str, root.shape))}]"
    if computed:
        yield f"    computes {', '.join(_named(node, names) for node in computed)}"
    if loaded:
        yield f"    loads {', '.join(names[node] for node in loaded)}"


def _call(group: Group, node: Node, groups: Groups, names: dict[Node, str], told: set[Node]) -> Iterator[str]:
    views = [groups.views[(node, number)] for number in range(len(node.inputs))]
    told.update((node, *(view.node for view in views)))
    title = str(node.attr("name")) if node.op == "library" else node.op
    yield f"group {group.number}: {title} on {node.device} makes {names[node]}"
    if views:
        yield "    reads " + ", ".join(
            names[view.base] if view.is_whole else f"{names[view.base]} as {names[view.node]}" for view in views
        )


def draft_text(draft: Draft, before: object = None) -> str:
    """Items and buffers; an item that is left out is marked."""
    lines = [f"draft of {draft.graph.name}: outputs {list(draft.outputs)}", *_buffers(draft.values)]
    for number, item in enumerate(draft.items):
        lines += _item(draft.before[number]) if number in draft.before else ()
        lines += ["# needless:"] if number in draft.needless else []
        lines += _item(item)
    return "\n".join(lines)


def schedule_text(schedule: Schedule, before: object = None) -> str:
    """Items and buffers."""
    lines = [f"schedule of {schedule.graph.name}: outputs {list(schedule.outputs)}", *_buffers(schedule.memories)]
    return "\n".join((*lines, *(line for item in schedule.items for line in _item(item))))


def _buffers(buffers: Sequence[Value | Memory]) -> Iterator[str]:
    for number, buffer in enumerate(buffers):
        sizes, strides = (", ".join(map(str, each)) for each in (buffer.sizes, buffer.strides))
        where = f" at {buffer.offset}" if buffer.offset is not None else ""
        where += f" of {buffer.base}" if buffer.base >= 0 else ""
        where += f", items {buffer.first} to {buffer.last}" if isinstance(buffer, Value) else ""
        yield f"buffer {number}: {buffer.dtype}[{sizes}] by ({strides}) on {buffer.device}, {buffer.place}{where}"


def _item(item: Item) -> Iterator[str]:
    match item:
        case RunKernel():
            yield f"kernel({', '.join(map(str, (*item.buffers, *item.numbers)))}) on {item.device}"
            yield from (f"    {line}" for line in kernel_text(item.kernel).splitlines())
        case RunMatmul():
            yield f"{item.out} = matmul({item.a}, {item.c}), {' x '.join(map(str, item.sizes))}"
        case RunCall():
            outs = ", ".join(str(number) for _, number in item.outs)
            yield f"{outs or '_'} = {item.node.attr('name')}({', '.join(map(str, item.operands))})"
        case Allocate():
            yield f"allocate {item.memory}"
        case Release():
            yield f"release {', '.join(map(str, item.memories))}"
        case Commit():
            yield f"commit {', '.join(str(number) for number, _ in item.inputs)}"
