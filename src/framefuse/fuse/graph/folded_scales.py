"""Multiplies weights of convolutions by what a norm in inference does to their results: both stay what they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from framefuse.fuse.addressing.ranges import ONE
from framefuse.fuse.graph.biases import CONVOLUTIONS
from framefuse.fuse.graph.fixed import first_fixed, fixed_nodes, pruned
from framefuse.fuse.setting import Setting
from framefuse.ir.builder import Shape
from framefuse.ir.graph import Arg, Graph, Node
from framefuse.ir.rename import rebuilt


@dataclass(frozen=True, slots=True)
class Scaled:
    """A convolution ``call`` with one ``result``, which ``product`` multiplies by the vector ``scale`` along channels;
    ``total`` is that product with the vector ``shift`` added, if it is.
    """

    call: Node
    result: Node
    product: Node
    scale: Node
    total: Node | None
    shift: Node | None


def with_folded_scales(graph: Graph, setting: Setting) -> Graph:
    """The graph in which such a scale is part of the weight and of the bias, and such a shift of the bias."""
    fixed = fixed_nodes(graph, setting)
    found = _scaled(graph, fixed) if fixed else []
    if not found:
        return graph
    by_call = {each.call: each for each in found}
    ends = {each.total or each.product: each for each in found}
    results: dict[Scaled, Node] = {}

    def change(node: Node, inputs: tuple[Node, ...]) -> Sequence[Node]:
        changed = node if inputs == node.inputs else replace(node, inputs=inputs)
        if node in by_call:
            return _folded(replace(by_call[node], call=changed))
        if node in ends:
            return (results[ends[node]],)
        if node.op == "result" and node.inputs[0] in by_call:
            results[by_call[node.inputs[0]]] = changed
        return (changed,)

    return pruned(rebuilt(first_fixed(graph, fixed), change))


def _scaled(graph: Graph, fixed: frozenset[Node]) -> list[Scaled]:
    readers: dict[Node, list[Node | None]] = {}
    for node in graph.nodes:
        for operand in node.inputs:
            readers.setdefault(operand, []).append(node)
    for output in graph.outputs:
        readers.setdefault(output.node, []).append(None)
    for write in graph.writes:
        readers.setdefault(write.node, []).append(None)
    found = []
    for call in graph.nodes:
        result = _only(readers.get(call, []))
        if result is None or not _may_fold(call, result, fixed):
            continue
        product = _only(readers.get(result, []))
        scale = _vector(product, "mul", result, fixed)
        if product is None or scale is None:
            continue
        total = _only(readers.get(product, []))
        shift = _vector(total, "add", product, fixed)
        found.append(Scaled(call, result, product, scale, total if shift is not None else None, shift))
    return found


def _only(readers: Sequence[Node | None]) -> Node | None:
    return readers[0] if len(readers) == 1 else None


def _may_fold(call: Node, result: Node, fixed: frozenset[Node]) -> bool:
    """Whether it is a convolution, not a transposed one, whose weight and bias are fixed and of the result's dtype."""
    if call.op != "library" or call.attr("name") not in CONVOLUTIONS or "transpose" in call.attr("name"):
        return False
    args, operands = call.attr("args"), call.inputs
    plain = args[:2] == (Arg(0), Arg(1)) and not call.attr("random") and not call.attr("kwargs")
    if not plain or (len(args) > 2 and args[2] not in (None, Arg(2))) or not result.dtype.is_float:
        return False
    if result.op != "result" or result.dtype.compute != result.dtype.name:
        return False
    rank = int(call.attr("name")[-2])
    whole = len(operands[0].shape) == rank + 2 and result.shape[1].constant != 1  # of one, both show other strides
    return whole and all(each.dtype is result.dtype for each in operands) and fixed.issuperset(operands[1:])


def _vector(node: Node | None, op: str, other: Node, fixed: frozenset[Node]) -> Node | None:
    """The vector along channels with which ``node`` combines another value."""
    if node is None or node.op != op or node.shape != other.shape or node.dtype is not other.dtype:
        return None
    if other not in node.inputs or len(node.inputs) != 2 or node.inputs[0] is node.inputs[1]:
        return None
    operand = node.inputs[1 - node.inputs.index(other)]
    if operand.op == "expand":
        operand = operand.inputs[0]
    sizes = tuple(size.constant for size in operand.shape)
    channels = other.shape[1].constant
    if operand not in fixed or sizes != (1, channels, *(1,) * (len(other.shape) - 2)):
        return None
    while operand.op in ("reshape", "expand") and len(operand.shape) > 1:
        operand = operand.inputs[0]
    return operand if operand.shape == (other.shape[1],) else None


def _folded(each: Scaled) -> Sequence[Node]:
    """The convolution of the scaled weight, behind what it takes."""
    call = each.call
    weight = call.inputs[1]
    rows = (weight.shape[0], *(ONE,) * (len(weight.shape) - 1))
    shaped = _like(weight, "reshape", (each.scale,), rows)
    spread = _like(weight, "expand", (shaped,), weight.shape)
    scaled = _like(weight, "mul", (weight, spread), weight.shape)
    made = [shaped, spread, scaled]
    bias = call.inputs[2] if len(call.inputs) > 2 else None
    if bias is not None:
        bias = _like(bias, "mul", (bias, each.scale), bias.shape)
        made.append(bias)
    if each.shift is not None:
        if bias is not None:
            bias = _like(bias, "add", (bias, each.shift), bias.shape)
            made.append(bias)
        else:
            bias = each.shift
    args = call.attr("args")
    changed = {
        "args": (Arg(0), Arg(1), None if bias is None else Arg(2), *args[3:]),
        "orders": (*call.attr("orders")[:2], *((None,) if bias is not None else ())),
    }
    attrs = tuple((name, changed.get(name, value)) for name, value in call.attrs)
    operands = (call.inputs[0], scaled, *((bias,) if bias is not None else ()))
    return *made, replace(call, inputs=operands, attrs=attrs)


def _like(node: Node, op: str, inputs: tuple[Node, ...], shape: Shape) -> Node:
    return Node(op, inputs, (), node.dtype, shape, None, node.line, node.device)
