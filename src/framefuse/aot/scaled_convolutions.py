"""Multiplies the weights of convolutions by what follows them for each channel, as normalisation by running statistics
does: what is left behind the call are functions of its results alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

from framefuse.ir.graph import Arg, Graph, Node
from framefuse.ir.numbers import Expr, expr
from framefuse.ir.ops import CREATE, ELEMENTWISE, TABLE, VIEW
from framefuse.ir.rename import rebuilt

CONVOLUTIONS = {"conv1d": 1, "conv2d": 2}  # with how many dimensions a window has
REAL = frozenset(("float32", "float64"))
ONE = expr(1)


@dataclass(frozen=True, slots=True)
class Scaled:
    """A convolution, its result, and the steps behind it in order, each with its numbers for the channels."""

    call: Node
    result: Node
    steps: tuple[tuple[Node, Node], ...]


def with_scaled_convolutions(graph: Graph) -> Graph:
    """The graph in which such factors and terms are part of the weights and the bias."""
    fixed = _fixed(graph)
    readers = _readers(graph)
    found = [scaled for node in graph.nodes if (scaled := _scaled(node, readers, fixed)) is not None]
    if not found:
        return graph
    first = [node for node in graph.nodes if node in fixed]
    rest = [node for node in graph.nodes if node not in fixed]
    calls = {scaled.call: scaled for scaled in found}
    last = {scaled.steps[-1][0]: scaled.result for scaled in found}
    passed = {step for scaled in found for step, _ in scaled.steps}
    results: dict[Node, Node] = {}

    def change(node: Node, inputs: tuple[Node, ...]) -> Sequence[Node]:
        if node in calls:
            return _with_weights(calls[node], inputs)
        changed = node if inputs == node.inputs else replace(node, inputs=inputs)
        if node.op == "result" and node.inputs[0] in calls:
            results[node] = changed
        if node in passed:
            scaled = last.get(node)
            return (results[scaled] if scaled is not None else changed,)
        return (changed,)

    return rebuilt(replace(graph, nodes=(*first, *rest)), change)


def _fixed(graph: Graph) -> set[Node]:
    """The values that are computed element by element of the graph's inputs with one dimension of more than one place,
    as weights for channels are: of no size that may be another one.
    """
    fixed: set[Node] = set()
    for node in graph.nodes:
        plain = TABLE[node.op].kind in (*ELEMENTWISE, CREATE, VIEW)
        if node.op == "input":
            plain = len(node.shape) != 2 and sum(size != ONE for size in node.shape) <= 1
        if plain and all(size.constant is not None for size in node.shape) and fixed.issuperset(node.inputs):
            fixed.add(node)
    return fixed


def _readers(graph: Graph) -> dict[Node, list[Node | None]]:
    """Who reads each value; None: it leaves, or is more than a value."""
    readers: dict[Node, list[Node | None]] = defaultdict(list)
    for node in graph.nodes:
        for operand in node.inputs:
            readers[operand].append(node)
    pinned = [output.node for output in graph.outputs] + [write.node for write in graph.writes]
    for node in (*pinned, *(node for _, node, _ in graph.bound), *graph.lasting):
        readers[node].append(None)
    return readers


def _scaled(call: Node, readers: dict[Node, list[Node | None]], fixed: set[Node]) -> Scaled | None:
    if call.op != "library" or call.attr("name") not in CONVOLUTIONS or call.attr("random"):
        return None
    args = call.attr("args")
    wanted = (Arg(0), Arg(1), Arg(2) if len(call.inputs) == 3 else None)
    results = readers[call]
    plain = args[:3] == wanted and not call.attr("kwargs") and all(number == 0 for number, _ in call.attr("views"))
    if not plain or len(results) != 1 or results[0] is None:
        return None
    result, weight = results[0], call.inputs[1]
    alike = {node.dtype.name for node in (*call.inputs, result)}
    if len(alike) > 1 or not alike <= REAL or weight.shape[0].constant is None:
        return None
    steps: list[tuple[Node, Node]] = []
    value = result
    while len(readers[value]) == 1:
        reader = readers[value][0]
        if reader is None or reader.op not in ("mul", "add") or reader.shape != result.shape or reader in fixed:
            break
        other = reader.inputs[1] if reader.inputs[0] is value else reader.inputs[0]
        numbers = _of_channels(other, result, CONVOLUTIONS[call.attr("name")], fixed)
        if numbers is None:
            break
        steps.append((reader, numbers))
        value = reader
    while steps and None in readers[steps[-1][0]]:  # a result lies as the program's does
        steps.pop()
    return Scaled(call, result, tuple(steps)) if steps else None


def _of_channels(node: Node, result: Node, rank: int, fixed: set[Node]) -> Node | None:
    """The numbers that ``node`` spreads over the channels of a convolution's result, as they are computed."""
    if node.op != "expand" or node.inputs[0] not in fixed or node.dtype is not result.dtype:
        return None
    spread = node.inputs[0]
    channels = result.shape[len(result.shape) - rank - 1]
    before, wanted = spread.shape[: -rank - 1], (channels, *(ONE,) * rank)
    return spread if spread.shape[-rank - 1 :] == wanted and all(size == ONE for size in before) else None


def _with_weights(scaled: Scaled, inputs: tuple[Node, ...]) -> Sequence[Node]:
    """The call with other weights, behind what computes them."""
    call, (picture, weight, *biases) = scaled.call, inputs
    made: list[Node] = []

    def node(op: str, operands: tuple[Node, ...], shape: tuple[Expr, ...]) -> Node:
        made.append(Node(op, operands, (), weight.dtype, shape, None, call.line, call.device))
        return made[-1]

    channels = weight.shape[:1]
    factor: Node | None = None
    term = biases[0] if biases else None
    for step, spread in scaled.steps:
        numbers = node("reshape", (spread,), channels)
        if step.op == "mul":
            factor = numbers if factor is None else node("mul", (factor, numbers), channels)
            term = term and node("mul", (term, numbers), channels)
        else:
            term = numbers if term is None else node("add", (term, numbers), channels)
    if factor is not None:
        shaped = node("reshape", (factor,), (*channels, *(ONE,) * (len(weight.shape) - 1)))
        weight = node("mul", (weight, node("expand", (shaped,), weight.shape)), weight.shape)
    operands = (picture, weight) if term is None else (picture, weight, term)
    args, orders = call.attr("args"), call.attr("orders")
    changed = {
        "args": (*args[:2], None if term is None else Arg(2), *args[3:]),
        "orders": (*orders[:2], *(((0,),) if term is not None else ())),
    }
    attrs = tuple((name, changed.get(name, value)) for name, value in call.attrs)
    return (*made, replace(call, inputs=operands, attrs=attrs))
