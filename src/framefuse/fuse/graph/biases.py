"""Takes the bias out of convolutions on a GPU, where the library adds it in a kernel of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from framefuse.fuse.addressing.layout import dense_strides, shown_order
from framefuse.fuse.addressing.ranges import ONE
from framefuse.fuse.setting import Setting
from framefuse.ir.dtypes import BY_NAME, DType
from framefuse.ir.graph import Arg, Graph, Node, Output
from framefuse.ir.numbers import Expr
from framefuse.ir.ops import CALL, CREATE, TABLE, VIEW
from framefuse.ir.rename import rebuilt

CONVOLUTIONS = frozenset(f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3))


def with_biases_apart(graph: Graph, setting: Setting) -> Graph:
    """The graph in which the bias of a convolution whose result a kernel reads is added there: after the call, as the
    library adds it, and rounded as it rounds.
    """
    apart = _apart(graph, setting)
    if not apart:
        return graph
    biases: dict[Node, Node] = {}
    given: dict[Node, Node] = {}  # by a sum, the result of the call, whose sizes may be known at run time alone

    def change(node: Node, inputs: tuple[Node, ...]) -> Sequence[Node]:
        changed = node if inputs == node.inputs else replace(node, inputs=inputs)
        if node in apart:
            biases[node] = inputs[2]
            return (_without_bias(changed),)
        if node.op == "result" and node.inputs[0] in apart:
            made = _sum(changed, biases[node.inputs[0]], int(node.inputs[0].attr("name")[-2]))
            given[made[-1]] = changed
            return made
        return (changed,)

    changed = rebuilt(graph, change)
    outputs = []
    for before, output in zip(graph.outputs, changed.outputs, strict=True):
        order = shown_order(before, graph.hints) if output.node.op != "result" else None
        outputs.append(output if order is None else replace(output, order=order))
    bound = tuple((symbol, given.get(node, node), place) for symbol, node, place in changed.bound)
    return replace(changed, outputs=tuple(outputs), bound=bound)


def _apart(graph: Graph, setting: Setting) -> set[Node]:
    """The convolutions with a bias of their results' dtype, that a kernel will read, or that the program gets: what is
    left to do with those is a kernel as well, which may write them in another layout.
    """
    calls: set[Node] = set()
    readers = [node.inputs for node in graph.nodes if TABLE[node.op].kind not in (CALL, CREATE, VIEW)]
    for inputs in (*readers, tuple(output.node for output in graph.outputs if _is_left(output, graph))):
        for operand in inputs:
            while TABLE[operand.op].kind == VIEW:
                operand = operand.inputs[0]
            call = operand.inputs[0] if operand.op == "result" else None
            if call is not None and call not in calls and _has_bias(call, operand):
                target = setting.targets(call.device)
                if target is not None and target.tiles:
                    calls.add(call)
    return calls


def _is_left(output: Output, graph: Graph) -> bool:
    """Whether a kernel can give such a result with eager's strides. The bias of a depthwise convolution is added by the
    library's own kernel, which costs nothing; one of a single channel is taken for that.
    """
    order, call = shown_order(output, graph.hints), output.node.inputs[0] if output.node.op == "result" else None
    if order is None or call is None or len(call.inputs) != 3 or len(call.inputs[1].shape) < 3:
        return False
    single = call.inputs[1].shape[1].constant == 1
    return not single and output.node.strides == dense_strides(output.node.shape, order)


def _has_bias(call: Node, result: Node) -> bool:
    args = call.attr("args")
    plain = call.attr("name") in CONVOLUTIONS and not call.attr("random") and len(call.inputs) == 3
    if not plain or len(args) < 3 or args[:3] != (Arg(0), Arg(1), Arg(2)):
        return False
    bias = call.inputs[2]
    return result.dtype.is_float and all(each.dtype is result.dtype for each in call.inputs) and len(bias.shape) == 1


def _without_bias(call: Node) -> Node:
    changed = {"args": (*call.attr("args")[:2], None, *call.attr("args")[3:]), "orders": call.attr("orders")[:2]}
    attrs = tuple((name, changed.get(name, value)) for name, value in call.attrs)
    return replace(call, inputs=call.inputs[:2], attrs=attrs)


def _sum(result: Node, bias: Node, rank: int) -> Sequence[Node]:
    """The result of a call for ``rank`` dimensions of space, and what leads from it to its sum with the bias."""
    wide = BY_NAME[result.dtype.compute]
    sizes = (*(ONE,) * (len(result.shape) - rank - 1), bias.shape[0], *(ONE,) * rank)
    shaped = _like(result, "reshape", (bias,), sizes, result.dtype)
    spread = _like(result, "expand", (shaped,), result.shape, result.dtype)
    if wide is result.dtype:
        return result, shaped, spread, _like(result, "add", (result, spread), result.shape, wide)
    operands = [_cast(node, wide) for node in (result, spread)]
    total = _like(result, "add", tuple(operands), result.shape, wide)
    return result, shaped, spread, *operands, total, _cast(total, result.dtype)


def _like(result: Node, op: str, inputs: tuple[Node, ...], shape: tuple[Expr, ...], dtype: DType) -> Node:
    return Node(op, inputs, (), dtype, shape, None, result.line, result.device)


def _cast(node: Node, dtype: DType) -> Node:
    return replace(
        node, op="cast", inputs=(node,), attrs=(("dtype", dtype), ("loose", False)), dtype=dtype, strides=None
    )
