"""Turns batch norm in training into moments and arithmetic where kernels of ours are faster than the library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from framefuse.fuse.addressing.layout import estimate, order_of_strides
from framefuse.fuse.addressing.ranges import ONE
from framefuse.fuse.setting import Setting
from framefuse.ir import costs
from framefuse.ir.builder import Builder, builder_for
from framefuse.ir.dtypes import FLOAT32, FLOAT64, DType
from framefuse.ir.graph import Arg, Graph, Node, Output, Path
from framefuse.ir.numbers import Expr, Symbol, product
from framefuse.ir.rename import rebuilt
from framefuse.ir.target import Target

KEPT = "batch_norm_kept"  # the call that gives (value, mean, deviation)


def with_own_norms(graph: Graph, setting: Setting) -> Graph:
    """The graph in which batch norms whose mean and deviation a backward needs are computed by kernels, which do what
    is behind them as well.
    """
    own = {node for node in graph.nodes if node.op == "library" and _is_own(node, setting, graph.hints)}
    if not own:
        return graph
    builder = builder_for(graph)
    parts: dict[Node, Mapping[Path, Node]] = {}

    def change(node: Node, inputs: tuple[Node, ...]) -> Sequence[Node]:
        if node in own:
            start = len(builder.nodes)
            builder.line = node.line
            parts[node] = _norm(builder, node, inputs, setting.target(node.device))
            return *builder.nodes[start:], next(iter(parts[node].values()))
        if node.op == "result" and node.inputs[0] in own:
            return (parts[node.inputs[0]][node.attr("path")],)
        return (node if inputs == node.inputs else replace(node, inputs=inputs),)

    made = rebuilt(replace(graph, kept=tuple(node for node in graph.kept if node not in own)), change)
    outputs = (_shown(old, new, graph) for old, new in zip(graph.outputs, made.outputs, strict=True))
    return replace(made, outputs=tuple(outputs))


def _is_own(node: Node, setting: Setting, hints: Mapping[Symbol, int]) -> bool:
    target = setting.targets(node.device)
    if target is None or node.attr("name") != KEPT or costs.OWN_NORM[target.tiles] <= 0:
        return False
    input, order = node.inputs[0], node.attr("orders")[0]
    across = not target.tiles and input.dtype.size == 2 and order is not None and order[-1] == 1
    return not across or estimate(product(input.shape), hints) * input.dtype.size < costs.LIBRARY_NORM


def _shown(old: Output, new: Output, graph: Graph) -> Output:
    """An output that a norm gave lies as it lay."""
    result = old.node
    if new.node is result or result.op != "result" or old.input is not None or result.strides is None:
        return new
    return replace(new, order=order_of_strides(result, graph.hints) or new.order)


def _norm(builder: Builder, call: Node, inputs: Sequence[Node], target: Target) -> dict[Path, Node]:
    """What the call gives, by path: the value in its input's dtype, the rest in that of moments."""
    args = call.attr("args")
    input, weight, bias = [inputs[arg.index] if isinstance(arg, Arg) else None for arg in args[:3]]
    assert input is not None
    channels = Channels(builder, input, next((each.dtype for each in (weight, bias) if each is not None), input.dtype))
    mean, variance = channels.moments(target.tiles)
    deviation = builder.pointwise("rsqrt", builder.pointwise("add", variance, channels.number(args[7])))
    scale = deviation
    if weight is not None:
        scale = builder.pointwise("mul", deviation, builder.resized(weight, deviation.shape))
    value = builder.pointwise("mul", channels.centred(mean), channels.wide(scale))
    if bias is not None:
        value = builder.pointwise("add", value, channels.wide(builder.resized(bias, deviation.shape)))
    value = builder.cast(value, input.dtype)
    return {(0,): value, (1,): mean, (2,): deviation}


class Channels:
    """The second dimension of ``input``, whose values are summed up in the dtype ``inner``."""

    def __init__(self, builder: Builder, input: Node, inner: DType) -> None:
        self.builder = builder
        self.shape, self.dtype = input.shape, input.dtype
        self.values = builder.cast(input, inner)
        self.axes = [axis for axis in range(len(self.shape)) if axis != 1]
        self.count = builder.count(tuple(self.shape[axis] for axis in self.axes))

    def wide(self, channel: Node) -> Node:
        """A value of each channel at all of its points."""
        row = tuple(size if axis == 1 else ONE for axis, size in enumerate(self.shape))
        return self.builder.expand(self.builder.reshape(channel, row), self.shape)

    def centred(self, mean: Node) -> Node:
        """The distances from the mean."""
        return self.builder.pointwise("sub", self.values, self.wide(mean))

    def number(self, value: float | Expr, dtype: DType | None = None) -> Node:
        """The same for each channel."""
        return self.builder.full(value, dtype or self.values.dtype, (self.shape[1],), self.values.device)

    def moments(self, one_pass: bool) -> tuple[Node, Node]:
        """The mean of each channel, and the mean squared distance from it.

        On a CPU the sum of float32 is one of float64, as the library's: far from zero a mean is off by the rounding of
        a long sum, and all distances with it. Values of 16 bits are off by more than that themselves.
        """
        builder, inner = self.builder, self.values.dtype
        long = FLOAT64 if self.dtype is FLOAT32 and not one_pass else inner
        total = builder.reduce("sum", builder.cast(self.values, long), self.axes)
        mean = builder.cast(builder.pointwise("div", total, self.number(self.count, long)), inner)
        if one_pass:
            squares = builder.reduce("squares", self.values, self.axes)
        else:
            away = self.centred(mean)
            squares = builder.reduce("sum", builder.pointwise("mul", away, away), self.axes)
        return mean, builder.pointwise("div", squares, self.number(self.count))
