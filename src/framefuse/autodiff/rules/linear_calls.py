"""Gradients of library calls that only move elements: they need the operand's sizes, so the operand is not kept."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.autodiff.library import arguments, calls, order_in
from framefuse.autodiff.registry import Given, Gradient, vjp_call
from framefuse.autodiff.rules.adjoints import ADJOINTS
from framefuse.autodiff.tapes import hollow
from framefuse.ir.builder import Builder
from framefuse.ir.graph import Arg, Node
from framefuse.ir.nested import leaves
from framefuse.ir.taped_calls import Adjoint

# Their result is linear in their first operand, and takes no arithmetic. The others are positions, masks and numbers.
NAMES = (
    "__getitem__", "index", "take", "masked_select", "roll", "rot90", "tril", "triu", "diag", "diagonal", "diag_embed",
    "diagflat", "trace", "unfold", "fold", "im2col", "col2im", "repeat_interleave", "tensor_split", "hsplit", "vsplit",
    "dsplit", "unflatten", "narrow_copy", "diagonal_copy", "unfold_copy", "pad",
)  # fmt: skip


@vjp_call(*NAMES)
def linear_call(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient] | None:
    if list(need).count(True) != 1 or hasattr(node.attr("target"), "places") or node.attr("random"):
        return None
    index = list(need).index(True)
    source = node.inputs[index]
    if node.attr("args")[:1] != (Arg(index),) or not source.dtype.is_float or _again(node, index):
        return None
    if index == 0 and set(given) == {()} and node.attr("name") in ADJOINTS:
        adjoint = ADJOINTS[node.attr("name")](builder, node, given[()])
        if adjoint is not None:
            return [adjoint, *[None] * (len(node.inputs) - 1)]
    others = tuple(None if number == index else operand for number, operand in enumerate(node.inputs))
    target = Adjoint(node.attr("target"), index, tuple(given))
    args = (others, source.shape, hollow(node.attr("args")), hollow(node.attr("kwargs")), tuple(given.values()))
    results = [((), source.dtype, source.shape)]
    parts: list[Gradient] = [None] * len(node.inputs)
    adjoint = calls(builder, target, args, results, orders={}, given=[order_in(builder, node, source)])[0]
    beside = builder.differentiable and reads_border(node)
    parts[index] = builder.derived(adjoint, "replaced", (adjoint, source)) if beside else adjoint
    return parts


def reads_border(node: Node) -> bool:
    """Whether this is padding with a tensor's own elements: eager's gradient of it leads to the operand, by zeros."""
    args = arguments(node, "input pad mode=constant value=None") if node.attr("name") == "pad" else None
    return args is not None and args["mode"] in ("reflect", "replicate")


def _again(node: Node, index: int) -> bool:
    """Whether the operand is read at a second place."""
    named = leaves((node.attr("args"), node.attr("kwargs")))
    return sum(isinstance(leaf, Arg) and leaf.index == index for leaf in named) != 1
