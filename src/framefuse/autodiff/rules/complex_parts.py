"""Gradients of the calls that join real numbers into complex ones and split them, by torch's convention: the gradient
of a real result by the real part, and by the imaginary part times i.
"""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.autodiff.registry import Given, Gradient, vjp_call
from framefuse.ir.builder import ONE, ZERO, Builder
from framefuse.ir.graph import Node
from framefuse.ir.pairs import JOIN, SPLIT, joined, parts


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
