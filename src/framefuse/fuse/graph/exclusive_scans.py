"""Turns what comes before each element, a scan without its last one behind zeros, into a scan of what is moved so."""

from __future__ import annotations

from dataclasses import dataclass

from framefuse.ir.builder import ONE, ZERO, Builder
from framefuse.ir.graph import Graph, Node
from framefuse.ir.numbers import expr
from framefuse.ir.rewrite import rewritten

BEGINS = {"cumsum": 0, "cumprod": 1}  # what a scan begins with


@dataclass(frozen=True, slots=True)
class _Moved:
    """A ``scan`` whose elements lie one place further on along its axis, the last one left out by ``part``, if that is
    not left out before it.
    """

    scan: Node
    part: Node | None


def with_exclusive_scans(graph: Graph) -> Graph:
    """The graph in which ``cat((zeros, x.cumsum()[:-1]))`` is the scan of ``cat((zeros, x[:-1]))``, one kernel."""
    if not any(node.op in BEGINS for node in graph.nodes):
        return graph
    users: dict[Node, int] = {}
    read = (operand for node in graph.nodes for operand in node.inputs)
    for operand in (*read, *(output.node for output in graph.outputs), *(write.node for write in graph.writes)):
        users[operand] = users.get(operand, 0) + 1

    def change(node: Node, operands: tuple[Node, ...], build: Builder) -> Node | None:
        moved = _moved(node, users)
        if moved is None:
            return None
        scan = operands[-1]
        while scan.op != moved.scan.op:
            scan = scan.inputs[0]
        (source,), axis = scan.inputs, scan.attr("axis")
        if moved.part is not None:
            source = build.slice(source, moved.part.attr("starts"), moved.part.attr("steps"), moved.part.shape)
        before = [expr(int(place == axis)) for place in range(len(source.shape))]
        begins: bool | int | float = BEGINS[scan.op]
        placed = build.pad(source, before, [ZERO] * len(before), float(begins) if scan.dtype.is_float else begins)
        single = placed.shape[axis].constant == 1  # what the scan begins with is all that is left
        return build.cast(placed if single else build.scan(scan.op, placed, axis), node.dtype)

    return rewritten(graph, change)


def _moved(node: Node, users: dict[Node, int]) -> _Moved | None:
    """The scan whose elements a node has behind what the scan begins with."""
    if node.op not in ("pad", "cat") or len(node.inputs) > 2:
        return None
    scan, part = node.inputs[-1], None
    while users[scan] == 1 and (scan.op == "cast" or (scan.op == "slice" and part is None)):
        part = scan if scan.op == "slice" else part
        scan = scan.inputs[0]
    if scan.op not in BEGINS or users[scan] > 1:
        return None
    axis, begins = scan.attr("axis"), BEGINS[scan.op]
    if part is not None and not _is_front(part):
        return None
    if node.op == "cat":
        front = node.inputs[0]
        placed = node.attr("axis") == axis and front.shape[axis] is ONE and _is_full(front, begins)
    else:
        places = [size.constant for size in node.attr("before")]
        placed = places == [int(place == axis) for place in range(len(places))] and node.attr("value") == begins
        placed = placed and node.shape[axis] is node.inputs[0].shape[axis] + 1
        rest = [place for place in range(len(places)) if place != axis]
        placed = placed and all(node.shape[place] is node.inputs[0].shape[place] for place in rest)
    return _Moved(scan, part) if placed else None


def _is_front(part: Node) -> bool:
    """Whether a slice leaves out what is at the end alone."""
    return all(step == 1 for step in part.attr("steps")) and all(start is ZERO for start in part.attr("starts"))


def _is_full(node: Node, number: int) -> bool:
    """Whether all elements are that number."""
    while node.op in ("expand", "reshape", "permute", "slice", "cast"):
        node = node.inputs[0]
    return node.op == "full" and node.attr("value") == number
