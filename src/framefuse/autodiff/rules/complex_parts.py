"""Gradients of the calls that join real numbers into complex ones and split them, and of products of those, by torch's
convention: the gradient of a real result by the real part, and by the imaginary part times i.
"""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.autodiff.library import call
from framefuse.autodiff.registry import Given, Gradient, never, vjp_call
from framefuse.ir.backward_calls import conjugate_summed
from framefuse.ir.builder import ONE, ZERO, Builder
from framefuse.ir.graph import Arg, Node
from framefuse.ir.pairs import JOIN, SPLIT, in_memory, joined, parts


@vjp_call(JOIN)
def join(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient] | None:
    """Of each operand that part of the gradient, of one operand for both parts their sum."""
    real, imaginary = parts(builder, given[()])
    if any(part.shape != real.shape for part in node.inputs) or len(node.attr("args")) != 2:
        return None
    return (real, imaginary) if len(node.inputs) == 2 else (builder.pointwise("add", real, imaginary),)


@vjp_call(SPLIT)
def split(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient]:
    gradient = given[()]
    shape = gradient.shape[:-1]
    zeros, steps = [ZERO] * len(shape), [1] * len(gradient.shape)
    real, imaginary = (builder.slice(gradient, (*zeros, place), steps, (*shape, ONE)) for place in (0, 1))
    return [joined(builder, (builder.reshape(real, shape), builder.reshape(imaginary, shape)))]


def _of_two(node: Node) -> bool:
    kinds = all(operand.dtype is node.dtype for operand in node.inputs)
    return kinds and node.attr("args") == (Arg(0), Arg(1)) and not node.attr("kwargs")


@vjp_call("mul", "multiply", "__mul__", when=never, of_complex=_of_two)
def product(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient]:
    gradients: list[Gradient] = []
    for operand, other, wanted in zip(node.inputs, node.inputs[::-1], need, strict=True):
        args = given[()], other, operand.shape
        gradients.append(call(builder, conjugate_summed, args, like=operand) if wanted else None)
    return gradients


@vjp_call("view_as_complex", of_complex=lambda node: len(node.inputs) == 1)
def as_complex(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient]:
    return [in_memory(builder, given[()])]
