"""Turns a mask that is drawn and what multiplies by it into eager's kernel of a GPU where that moves no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from framefuse.fuse.addressing.layout import estimate
from framefuse.ir.builder import Builder, builder_for
from framefuse.ir.dropout_masks import LEAST, DropoutMask, Dropped
from framefuse.ir.graph import Arg, Graph, Node
from framefuse.ir.numbers import product
from framefuse.ir.ops import TABLE, VIEW
from framefuse.ir.rename import rebuilt

IN_MEMORY = ("input", "result")  # what a kernel need not compute
CALLS = ("library", "dot")


@dataclass(frozen=True, slots=True)
class _Dropout:
    """``mask`` says what of ``source`` is left in ``rest``."""

    source: Node
    mask: Node
    rest: Node


def with_whole_dropouts(graph: Graph) -> Graph:
    """The graph in which what lies in memory is dropped from by eager's kernel: where no kernel reads the rest, which
    would multiply on its way, and where the mask is drawn by that kernel anyhow.
    """
    draws = [node for node in graph.nodes if node.op == "library" and isinstance(node.attr("target"), DropoutMask)]
    if not draws:
        return graph
    readers: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        for operand in node.inputs:
            readers.setdefault(operand, []).append(node)
    ends = {*(output.node for output in graph.outputs), *(write.node for write in graph.writes)}
    found = {draw: each for draw in draws if (each := _found(draw, readers, ends)) is not None}
    whole = {draw: each for draw, each in found.items() if _pays(each.rest, draw.attr("target").alone, readers, graph)}
    if not whole:
        return graph
    builder = builder_for(graph)
    now: dict[Node, Node] = {}
    made: dict[Node, Node] = {}  # by what they stand for: the results of the calls

    def change(node: Node, operands: tuple[Node, ...]) -> Sequence[Node]:
        dropout = whole.get(node)
        if dropout is not None and (dropout.source in now or dropout.source.op == "input"):
            source = now.setdefault(dropout.source, dropout.source)
            call = _call(builder, node, source)
            for place, part in enumerate((dropout.rest, dropout.mask)):
                strides = dropout.mask.strides
                path = (("path", (place,)),)
                made[part] = builder.opaque("result", (call,), path, part.dtype, part.shape, strides, part.device)
            now[node] = call
            return source, call
        same = all(new is old for new, old in zip(operands, node.inputs, strict=True))
        now[node] = made.get(node) or (node if same else node.over(operands))
        return (now[node],)

    return rebuilt(graph, change)


def _call(builder: Builder, draw: Node, source: Node) -> Node:
    target = draw.attr("target")
    attrs = dict(draw.attrs) | {"target": Dropped(target.p), "args": (Arg(0),), "orders": (target.order,)}
    attrs["name"] = attrs["target"].__name__
    return builder.opaque("library", (source,), tuple(attrs.items()), source.dtype, (), None, source.device)


def _found(draw: Node, readers: Mapping[Node, Sequence[Node]], ends: set[Node]) -> _Dropout | None:
    """What drops by the mask that is drawn, as lowering writes it; None where others read what is between."""
    results = readers.get(draw, ())
    if len(results) != 1:
        return None
    mask = node = results[0]
    factors: list[Node] = []
    while len(factors) < 2:
        following = readers.get(node, ())
        if len(following) != 1 or (node is not mask and node in ends):
            return None
        (after,) = following
        if after.op == "mul":
            factors += [operand for operand in after.inputs if operand is not node]
        elif after.op != "cast" or factors:
            return None
        node = after
    source, scale = factors
    wanted = draw.attr("target").dtype
    if source.op == "cast" and source.dtype.name == source.inputs[0].dtype.compute:
        source = source.inputs[0]
    if node.dtype.torch is not wanted:
        following = readers.get(node, ())
        if len(following) != 1 or following[0].op != "cast" or node in ends:
            return None
        node = following[0]
    same = source.dtype.torch is wanted and node.dtype is source.dtype and source.shape == node.shape == mask.shape
    return _Dropout(source, mask, node) if same and scale.op == "full" and source.op in IN_MEMORY else None


def _pays(rest: Node, alone: bool, readers: Mapping[Node, Sequence[Node]], graph: Graph) -> bool:
    """Whether no kernel reads the rest, or eager's kernel draws the mask anyhow."""
    if not alone or estimate(product(rest.shape), graph.hints) < LEAST:
        return True
    waiting = [rest]
    while waiting:
        for reader in readers.get(waiting.pop(), ()):
            if TABLE[reader.op].kind == VIEW:
                waiting.append(reader)
            elif reader.op not in CALLS:
                return False
    return True
