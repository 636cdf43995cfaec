"""Gradients of what selects elements along a dimension: each goes to the position that the library gave."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.autodiff.library import arguments, calls, order_of
from framefuse.autodiff.registry import CallVjp, Given, Gradient, vjp_call
from framefuse.autodiff.rules.indexing import element_of_rows
from framefuse.ir.backward_calls import elements_added, elements_placed
from framefuse.ir.builder import ONE, Builder
from framefuse.ir.dtypes import INT64
from framefuse.ir.graph import Node

# The parameters of each; a result has one element for each of the dimension where ``keepdim`` is none of them.
PARAMETERS = {
    "topk": "input k dim=-1 largest=True sorted=True",
    "sort": "input dim=-1 descending=False stable=None",
    "kthvalue": "input k dim=-1 keepdim=False",
    "median": "input dim keepdim=False",
    "nanmedian": "input dim keepdim=False",
    "mode": "input dim=-1 keepdim=False",
}


def _selected(names: str) -> CallVjp:
    def rule(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient] | None:
        args, parts = arguments(node, names), builder.results(node)
        if args is None or set(given) != {(0,)} or len(node.inputs) != 1 or not isinstance(args["dim"], int):
            return None
        input, g, value = args["input"], given[(0,)], parts[(0,)]
        if not input.shape:
            return None
        places = parts.get((1,)) or builder.opaque(
            "result", (node,), (("path", (1,)),), INT64, value.shape, value.strides, value.device
        )
        axis = args["dim"] % len(input.shape)
        if not args.get("keepdim", True):
            column = (*input.shape[:axis], ONE, *input.shape[axis + 1 :])
            places, g = builder.reshape(places, column), builder.reshape(g, column)
        alone = element_of_rows(builder, g, places, input, axis) if input.device == "cpu" else None
        if alone is not None:
            return [alone]
        numbers, results = (g, places, axis, list(input.shape)), [((), input.dtype, input.shape)]
        orders = {places: order_of(builder, places)}
        return [calls(builder, elements_placed, numbers, results, name="selected_backward", orders=orders)[0]]

    return rule


def _running(builder: Builder, node: Node, given: Given, need: Sequence[bool]) -> Sequence[Gradient] | None:
    """Of the extremes up to each element: several may be at one position."""
    args, parts = arguments(node, "input dim"), builder.results(node)
    if args is None or set(given) != {(0,)} or not isinstance(args["dim"], int) or not args["input"].shape:
        return None
    input, value = args["input"], parts[(0,)]
    places = parts.get((1,)) or builder.opaque(
        "result", (node,), (("path", (1,)),), INT64, value.shape, value.strides, value.device
    )
    orders = {places: order_of(builder, places)}
    numbers = (given[(0,)], places, args["dim"], list(input.shape))
    return [calls(builder, elements_added, numbers, [((), input.dtype, input.shape)], orders=orders)[0]]


vjp_call("cummax", "cummin")(_running)
for _name, _names in PARAMETERS.items():
    vjp_call(_name)(_selected(_names))
