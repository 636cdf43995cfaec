"""The gradient of a custom autograd function: a call of the user's backward."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.autodiff.accumulate import total
from framefuse.autodiff.library import row_major
from framefuse.autodiff.registry import Given, Gradient, vjp_call
from framefuse.autodiff.rules.collectives import exchanged
from framefuse.ir.builder import Builder
from framefuse.ir.collectives import EXCHANGES
from framefuse.ir.custom_calls import NAME, CustomBackward, CustomCall
from framefuse.ir.graph import Arg, Node, call_attrs, node_of, template_of
from framefuse.ir.values import Value


@vjp_call(NAME, when=lambda node: isinstance(node.attr("target"), CustomCall))
def custom_function(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient]:
    call: CustomCall = node.attr("target")
    raw, operands, leaves = node.attr("args")
    wanted = [
        place
        for place, operand in enumerate(operands)
        if isinstance(operand, Arg) and need[operand.index] and call.needs[place] and place not in call.none
    ]
    if not wanted:
        return [None] * len(need)
    if not builder.differentiable and call.function in EXCHANGES:
        (place,), (g,), (group,) = wanted, given.values(), leaves or (None,)
        number = operands[place].index
        gradient = exchanged(builder, call.function, g, group, node.inputs[number])
        return [gradient if each == number else None for each in range(len(need))]
    came = tuple(given.get((place,), _absent(call, part, node)) for place, part in enumerate(raw))
    likes = [node.inputs[operands[place].index] for place in wanted]
    gradients = _call(builder, CustomBackward(call, tuple(wanted)), (came, _now(builder, node, leaves)), likes)
    parts: list[Gradient] = []
    for number in range(len(need)):
        here = [part for part, place in zip(gradients, wanted, strict=True) if operands[place].index == number]
        parts.append(total(builder, here) if here else None)
    return parts


def _absent(call: CustomCall, part: Value, node: Node) -> Value:
    """What stands for the gradient of a result that got none."""
    if not call.materialize or not isinstance(part, Arg):
        return None
    return _form(node.inputs[part.index])


def _form(node: Node) -> tuple[Value, ...]:
    return (node.shape, node.dtype.torch, node.device)


def _now(builder: Builder, node: Node, leaves: Sequence[Value]) -> tuple[Value, ...]:
    """The leaves as nodes; for what forward gave the results that the program got, which have a history."""
    results = {}
    if builder.differentiable:
        for each in builder.nodes:
            if each.op == "derived" and each.inputs[-1].op == "result" and each.inputs[-1].inputs[0] is node:
                results[node.inputs[node.attr("args")[0][each.inputs[-1].attr("path")[0]].index]] = each
    call: CustomCall = node.attr("target")
    seen = builder.detach if builder.differentiable and call.once else lambda each: each
    nodes = (node_of(leaf, node.inputs) for leaf in leaves)
    return tuple(seen(results.get(each, each)) if isinstance(each, Node) else each for each in nodes)


def _call(
    builder: Builder, target: CustomBackward, args: tuple[Value, ...], likes: Sequence[Node]
) -> list[Node]:
    """The gradients of arguments like these. What calls the user's code alike is another call."""
    operands: list[Node] = []
    template = template_of((*args, tuple(map(_form, likes))), operands)
    attrs = call_attrs(target, template, [tuple(range(len(node.shape))) for node in operands])
    first = likes[0]
    call = builder.opaque("library", tuple(operands), attrs, first.dtype, (), None, first.device)
    results = []
    for place, like in enumerate(likes):
        path, strides = (("path", (place,)),), row_major(like.shape)
        results.append(builder.opaque("result", (call,), path, like.dtype, like.shape, strides, like.device))
    return results
