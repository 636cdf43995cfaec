"""Gradients of reductions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from framefuse.autodiff.formulas import run
from framefuse.autodiff.library import call, calls, inside
from framefuse.autodiff.registry import Gradient, vjp, vjp_derived
from framefuse.autodiff.tapes import Hole, Vjp, unheard
from framefuse.ir.builder import ONE, Builder
from framefuse.ir.graph import Node
from framefuse.ir.numbers import expr


def spread(builder: Builder, node: Node, reduce: Node) -> Node:
    """A node of a reduction's shape, repeated over what was reduced."""
    source, axes = reduce.inputs[0], reduce.attr("axes")
    kept = tuple(ONE if axis in axes else size for axis, size in enumerate(source.shape))
    return builder.expand(builder.reshape(node, kept), source.shape)


@vjp("sum")
def sum_(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    return [spread(builder, g, node)]


@vjp("amax", "amin")
def extreme(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """Equal extremes share the gradient; where none equals the result, which is NaN, 0 / 0 says so."""
    source = node.inputs[0]
    hit = builder.cast(builder.pointwise("eq", source, spread(builder, node, node)), source.dtype)
    count = spread(builder, builder.reduce("sum", hit, node.attr("axes")), node)
    return [run(builder, "div(mul(g, a), b)", {"g": spread(builder, g, node), "a": hit, "b": count})]


@vjp("cumsum")
def cumsum(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """The sum of the gradients from each element on."""
    axis = node.attr("axis")
    return [_turned(builder, builder.scan("cumsum", _turned(builder, g, axis), axis), axis)]


@inside
def products_backward(g: torch.Tensor, source: torch.Tensor, axis: int, products: torch.Tensor) -> torch.Tensor:
    """The gradient of all products of elements up to each along an axis, also where some are zero."""
    gradient: torch.Tensor = torch.ops.aten.cumprod_backward.default(g, source, axis, products)
    return gradient


@vjp_derived("cumprod")
def cumprod(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    (axis,) = node.attr("parameters")
    return [None, call(builder, products_backward, (g, node.inputs[1], axis, node), like=g)]


def _turned(builder: Builder, node: Node, axis: int) -> Node:
    """From the end to the start of an axis."""
    starts = [size - 1 if place == axis else expr(0) for place, size in enumerate(node.shape)]
    return builder.slice(node, starts, [-1 if place == axis else 1 for place in range(len(starts))], node.shape)


@vjp("prod")
def prod(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """The product of the others: the result over the element, and for a lone zero the product of what is not zero."""
    source, axes = node.inputs[0], node.attr("axes")
    zeros = builder.pointwise("eq", source, builder.full(0, source.dtype, source.shape, source.device))
    one = builder.full(1, source.dtype, source.shape, source.device)
    safe = builder.pointwise("where", zeros, one, source)
    count = builder.reduce("sum", builder.cast(zeros, source.dtype), axes)
    lone = builder.pointwise("eq", count, builder.full(1, count.dtype, count.shape, count.device))
    rest = builder.reduce("prod", safe, axes)
    rest = builder.pointwise("where", lone, rest, builder.full(0, rest.dtype, rest.shape, rest.device))
    letters = {
        "g": spread(builder, g, node), "a": zeros, "b": spread(builder, rest, node), "c": safe,
        "r": spread(builder, node, node),
    }  # fmt: skip
    gradient = run(builder, "where(a, mul(g, b), div(mul(g, r), c))", letters)
    assert gradient is not None
    return [builder.derived(gradient, "others", (source, g), *axes)]


@dataclass(frozen=True, slots=True)
class Others:
    """The gradient of a product over ``axes`` by torch's own formula, which holds for several zeros as well."""

    axes: tuple[int, ...]

    def __call__(self, source: torch.Tensor, g: torch.Tensor) -> torch.Tensor:
        leaf = unheard(source) if source.requires_grad else source.detach().requires_grad_()
        kept = [axis for axis in range(leaf.dim()) if axis not in self.axes]
        rows = leaf.permute(*kept, *self.axes).flatten(len(kept)) if self.axes else leaf.unsqueeze(-1)
        return torch.autograd.grad(rows.prod(-1), leaf, g, create_graph=True)[0]

    @property
    def __name__(self) -> str:
        return "product_of_others"


@vjp_derived("others")
def others(builder: Builder, node: Node, g: Node, need: Sequence[bool]) -> Sequence[Gradient]:
    """What zeros hide from the formula above shows where it is differentiated again."""
    wanted = tuple(place for place in (0, 1) if need[1 + place])
    operands = node.inputs[1:]
    target = Vjp(Others(node.attr("parameters")), wanted, ((),))
    results = [((place,), operands[index].dtype, operands[index].shape) for place, index in enumerate(wanted)]
    gradients = calls(builder, target, (operands, (Hole(0), Hole(1)), {}, (g,)), results)
    parts: list[Gradient] = [None, None, None]
    for index, part in zip(wanted, gradients, strict=True):
        parts[1 + index] = part
    return parts
