"""Has a CPU's library read weights that stay as it packs them, where it would turn them in each call."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from framefuse.fuse.addressing.layout import dense_strides, estimate
from framefuse.fuse.graph.fixed import count_of, cut_out, first_fixed, fixed_nodes, pruned, told_by
from framefuse.fuse.setting import Setting
from framefuse.ir import costs
from framefuse.ir.derivations import Packed, Window
from framefuse.ir.dtypes import FLOAT32
from framefuse.ir.graph import Arg, Graph, Node, call_attrs
from framefuse.ir.rename import rebuilt
from framefuse.ir.values import Value


def with_packed_weights(graph: Graph, setting: Setting) -> Graph:
    """The graph in which convolutions and large products with a weight that stays are calls on its packed form."""
    fixed = fixed_nodes(graph, setting)
    packs = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_convolution_pointwise")
    if not fixed or not packs:
        return graph
    results = (node for node in graph.nodes if node.op == "result")
    windows = {node.inputs[0]: found for node in results if (found := _window(node, graph, fixed, setting)) is not None}
    products = {node for node in graph.nodes if _is_large_product(node, graph, fixed, setting)}
    if not windows and not products:
        return graph
    ordered = first_fixed(graph, fixed)

    def change(node: Node, inputs: tuple[Node, ...]) -> Sequence[Node]:
        changed = node if inputs == node.inputs else replace(node, inputs=inputs)
        if node in windows:
            bias = node.inputs[2:]
            return (_call(node, inputs[0], ordered, (node.inputs[1], *bias), windows[node], setting),)
        if node in products:
            call = _call(node, inputs[0], ordered, (node.inputs[1],), None, setting)
            strides = dense_strides(node.shape, None)
            path = (("path", ()),)
            return call, Node("result", (call,), path, node.dtype, node.shape, strides, node.line, node.device)
        return (changed,)

    return pruned(rebuilt(ordered, change))


def _call(
    node: Node, operand: Node, graph: Graph, weights: tuple[Node, ...], window: Window | None, setting: Setting
) -> Node:
    """The call on what is packed of ``weights``, in the place of a convolution or product."""
    alone, parents = cut_out(graph, dict.fromkeys(weights))
    order = node.attr("orders")[0] if node.op == "library" else None
    sizes = tuple(estimate(size, graph.hints) for size in operand.shape)
    target = Packed(alone, window, sizes, len(weights) > 1, told_by(graph, parents, setting))
    args = (Arg(0), tuple(Arg(place) for place in range(1, len(parents) + 1)))
    attrs = call_attrs(target, args, (order, *(None,) * len(parents)))
    return Node("library", (operand, *parents), attrs, node.dtype, (), None, node.line, node.device)


def _window(result: Node, graph: Graph, fixed: frozenset[Node], setting: Setting) -> Window | None:
    """Padding, step and dilation of the convolution of pictures that gives a result, if its weight and bias stay."""
    node = result.inputs[0]
    if node.op != "library" or node.attr("name") != "conv2d" or not _is_here(node, setting):
        return None
    args = (*node.attr("args"), *(None, 1, 0, 1, 1)[len(node.attr("args")) - 2 :])
    if args[:2] != (Arg(0), Arg(1)) or args[2] not in (None, Arg(2)) or node.attr("kwargs") or len(node.inputs) > 3:
        return None
    picture = node.inputs[0]
    if len(picture.shape) != 4 or any(each.dtype is not FLOAT32 for each in node.inputs):
        return None
    if not fixed.issuperset(node.inputs[1:]) or picture in fixed or args[6] != 1:
        return None
    if node.attr("orders")[0] != (0, 2, 3, 1):
        return None  # channels-last: how the library lays the result of another picture depends on what it packed
    step, padding, dilation = (_pair(value) for value in args[3:6])
    if step is None or padding is None or dilation is None:
        return None
    return (padding, step, dilation) if _repays(result, node.inputs[1], graph) else None


def _repays(result: Node, weight: Node, graph: Graph) -> bool:
    points = all(size.constant == 1 for size in weight.shape[2:])
    count = count_of(weight)
    for size in (result.shape[0], *result.shape[2:]):
        count *= estimate(size, graph.hints)
    return count >= (costs.PACKED_POINTS if points else costs.PACKED_WINDOWS)


def _pair(value: Value) -> tuple[int, int] | None:
    if isinstance(value, int):
        return value, value
    if isinstance(value, (tuple, list)) and len(value) in (1, 2) and all(type(each) is int for each in value):
        return value[0], value[-1]
    return None


def _is_here(node: Node, setting: Setting) -> bool:
    target = setting.targets(node.device)
    return node.device == "cpu" and target is not None and target.library


def _is_large_product(node: Node, graph: Graph, fixed: frozenset[Node], setting: Setting) -> bool:
    if node.op != "matmul" or node.dtype is not FLOAT32 or len(node.shape) != 2 or not _is_here(node, setting):
        return False
    rows, weight = node.inputs
    if weight not in fixed or rows in fixed or rows.dtype is not FLOAT32 or weight.dtype is not FLOAT32:
        return False
    m, n = (estimate(size, graph.hints) for size in node.shape)
    return m > 1 and m * n * estimate(rows.shape[1], graph.hints) >= costs.PACKED_PRODUCT
