"""Differentiates library calls that have no rule by torch's autograd: on a tape that the forward keeps, or by calling
them again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from framefuse.autodiff.library import Order, calls, order_in, order_of
from framefuse.autodiff.registry import Given, Gradient
from framefuse.errors import Stop
from framefuse.ir.builder import Builder
from framefuse.ir.graph import Arg, Node, Path
from framefuse.ir.nested import mapped
from framefuse.ir.stops import reason
from framefuse.ir.taped_calls import ByRow, Hole, Replay, Taped, Vjp, from_tape, used_up
from framefuse.ir.torch_calls import TABLE
from framefuse.ir.values import Value

STATE = (("path", (3, 0)),)  # the attributes of a tape's result that is the generator's state


def hollow(value: Value) -> Value:
    """An argument template with holes in place of its tensors."""

    def leaf(part: Value) -> Value:
        if type(part) is Arg:
            return Hole(part.index)
        return Hole(part.index, part.depth + 1) if type(part) is Hole else part

    return mapped(value, leaf)


def refuse_sparse(node: Node) -> None:
    """Raises :class:`Stop` for a call whose gradients are sparse tensors."""
    name, args, kwargs = node.attr("name"), node.attr("args"), node.attr("kwargs")
    if isinstance(node.attr("target"), Taped):
        args, kwargs = args[1:]
    places = TABLE[name].sparse
    if any(args[place : place + 1] == (True,) for place in places) or any(kwargs.get(word) is True for word in FLAGS):
        raise Stop(reason("gradient", f"{name} gives a sparse gradient", node.line))


# The argument that asks a call for sparse gradients, by the name of the call.
FLAGS = ("sparse", "sparse_grad")


# Of which results, by their paths, a gradient leads to an operand, by its place among the arguments: torch gives the
# others none, where zeros would have an optimizer move what eager leaves alone.
LEADS: dict[str, dict[int, tuple[Path, ...]]] = {
    "convolution_backward": {0: ((0,), (1,), (2,)), 1: ((1,),), 2: ((0,),)},
}


def _led(node: Node, need: Sequence[bool], paths: Iterable[Path]) -> tuple[int, ...]:
    """The needed operands to which gradients of the results at ``paths`` lead."""
    needed, leads = [index for index, here in enumerate(need) if here], LEADS.get(node.attr("name"))
    if leads is None:
        return tuple(needed)
    args = node.attr("args")[1] if isinstance(node.attr("target"), Taped) else node.attr("args")
    known = set(paths)
    led = {args[place].index for place, of in leads.items() if known.intersection(of)}
    return tuple(index for index in needed if index in led)


# ---- graphs ----------------------------------------------------------------------------------------------------------


def call_again(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient]:
    """The gradients of a library node's operands by :class:`Vjp`. Raises :class:`Stop` for a random call that kept no
    state.
    """
    target, args, kwargs = node.attr("target"), hollow(node.attr("args")), hollow(node.attr("kwargs"))
    state: tuple[Node, ...] = ()
    orders = _as_results(builder, node, given)
    if isinstance(target, Taped):  # as the call was before it was taped
        args, kwargs = node.attr("args")[1:]
        given = {target.paths[path[1]]: g for path, g in given.items()}
        target = target.target
        state = tuple(part for part in builder.results(node).values() if part.attrs == STATE)
    if node.attr("random") and not state:
        raise Stop(reason("gradient", f"{node.attr('name')}, which draws random numbers,", node.line))
    refuse_sparse(node)
    wanted = _led(node, need, given)
    again = Vjp(target, wanted, tuple(given))
    taken = (node.inputs, args, kwargs, tuple(given.values()), *state)
    return _spread(builder, node, again, taken, wanted, orders)


def draws(node: Node) -> bool:
    """Whether this is a taped call that keeps the state from which it draws random numbers."""
    return node.op == "library" and isinstance(node.attr("target"), Taped) and bool(node.attr("target").draws)


def replayed(node: Node, inputs: tuple[Node, ...], state: Node) -> Node:
    """The call of a taped node made again on ``inputs``, from the state of the generator that was kept."""
    attrs = dict(node.attrs)
    attrs["target"] = Replay(attrs["target"].target, attrs["target"].paths)
    attrs["args"] = (*attrs["args"], Arg(len(inputs)))
    attrs["orders"] = (*attrs["orders"], (0,))
    attrs["name"], attrs["random"] = f"{attrs['name']}_again", False  # no rule of the call's own holds for it
    return replace(node, inputs=(*inputs, state), attrs=tuple(attrs.items()))


def read_tape(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient]:
    """The gradients of a taped node's operands."""
    target = node.attr("target")
    parts = builder.results(node)
    results = tuple(parts[(1, path[1])] for path in given)
    led = _led(node, need, [target.paths[path[1]] for path in given])
    wanted = [index for index in target.wanted if index in led]
    leaves = tuple(parts[(2, target.wanted.index(index))] for index in wanted)
    orders = _as_results(builder, node, given)
    reads: Callable[..., Value] = used_up if node.device == "cpu" else from_tape
    args = (results, leaves, tuple(given.values()))
    if not TABLE[node.attr("name")].alike:
        return _spread(builder, node, reads, args, wanted, orders)
    lying = [order_in(builder, node, node.inputs[index]) for index in wanted]
    return _spread(builder, node, ByRow(reads, tuple(lying)), args, wanted, orders, lying)


def _as_results(builder: Builder, node: Node, given: Given) -> dict[Node, Order]:
    """Gradients lie in memory as the results do. Under eager they mostly do, and cuDNN's attention is wrong where they
    once do and once do not: torch 2.11 remembers a kernel without how the gradient lay for which it was made.
    """
    parts = builder.results(node)
    return {g: order_of(builder, parts[path]) for path, g in given.items()}


def _spread(
    builder: Builder,
    node: Node,
    target: Callable[..., Value],
    args: Sequence[Value],
    wanted: Sequence[int],
    orders: Mapping[Node, Order],
    lying: Sequence[Order] = (),
) -> Sequence[Gradient]:
    """One gradient for each operand out of a call that gives those of the wanted ones, by row: as ``lying``, turned
    so, is.
    """
    parts: list[Gradient] = [None] * len(node.inputs)
    if not wanted:
        return parts
    operands = [node.inputs[index] for index in wanted]
    shapes = [operand.shape for operand in operands]
    if lying:
        shapes = [tuple(shape[axis] for axis in order) for shape, order in zip(shapes, lying, strict=True)]
    results = [((place,), operand.dtype, shapes[place]) for place, operand in enumerate(operands)]
    rows = [tuple(range(len(operand.shape))) for operand in operands]
    orders_of = {len(order): order for order in TABLE[node.attr("name")].gradients}
    given = [orders_of.get(len(order), order) for order in rows]
    name = f"{node.attr('name')}_backward"
    gradients = calls(builder, target, args, results, name=name, given=given, orders=orders)
    for place, (index, part) in enumerate(zip(wanted, gradients, strict=True)):
        order = lying[place] if lying else ()
        parts[index] = builder.permute(part, [order.index(axis) for axis in range(len(order))]) if order else part
    return parts
