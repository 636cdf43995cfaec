"""Gradients of functional collectives are collectives: the sum of what all processes give for what each of them got."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.autodiff.library import row_major
from framefuse.autodiff.registry import Given, Gradient, vjp_call
from framefuse.errors import Stop
from framefuse.ir.builder import Builder
from framefuse.ir.collectives import Entering, Started, Waited
from framefuse.ir.graph import Node, call_attrs, node_of, template_of
from framefuse.ir.stops import reason
from framefuse.ir.values import Value


def _is_started(node: Node) -> bool:
    return isinstance(node.attr("target"), Started)


@vjp_call("wait_tensor", when=lambda node: isinstance(node.attr("target"), Waited))
def wait_tensor(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient]:
    return [given.get((place,)) for place in range(len(node.inputs))]


@vjp_call("all_reduce", when=_is_started)
def all_reduce(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient]:
    (operand, reduction, group), (g,) = _arguments(node), given.values()
    _require_sum(node, reduction)
    return [_collective(builder, "all_reduce", (g, reduction, group), operand)]


@vjp_call("all_gather_into_tensor", when=_is_started)
def all_gather_into_tensor(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient]:
    (operand, size, group), (g,) = _arguments(node), given.values()
    return [_collective(builder, "reduce_scatter_tensor", (g, "sum", size, group), operand)]


@vjp_call("reduce_scatter_tensor", when=_is_started)
def reduce_scatter_tensor(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient]:
    (operand, reduction, size, group), (g,) = _arguments(node), given.values()
    _require_sum(node, reduction)
    return [_collective(builder, "all_gather_into_tensor", (g, size, group), operand)]


@vjp_call("all_to_all_single", when=_is_started)
def all_to_all_single(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient]:
    (operand, output_sizes, input_sizes, group), (g,) = _arguments(node), given.values()
    return [_collective(builder, "all_to_all_single", (g, input_sizes, output_sizes, group), operand)]


def exchanged(builder: Builder, function: type, g: Node, group: Value, like: Node) -> Node:
    """The gradient of what layers split over processes exchange, as they are told in ``ir/collectives.py``."""
    return _collective(builder, "all_reduce", (g, "sum", group), like) if function is Entering else g


def _arguments(node: Node) -> tuple[Value, ...]:
    return tuple(node_of(part, node.inputs) for part in node.attr("args"))


def _require_sum(node: Node, reduction: str) -> None:
    if reduction.lower() != "sum":
        raise Stop(reason("gradient", f"{node.attr('name')} by {reduction}", node.line))


def _collective(builder: Builder, name: str, args: tuple[Value, ...], like: Node) -> Node:
    """A collective of backward, which keeps its place among the others; its result is as ``like``."""
    operands: list[Node] = []
    template = template_of(args, operands)
    orders = [tuple(range(len(node.shape))) for node in operands]
    attrs = call_attrs(Started(name, waits=True), template, orders, name=name, random=True)
    call = builder.opaque("library", tuple(operands), attrs, like.dtype, (), None, like.device)
    path = (("path", ()),)
    return builder.opaque("result", (call,), path, like.dtype, like.shape, row_major(like.shape), like.device)
