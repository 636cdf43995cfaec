"""Gives what the forward of a custom autograd function computed the gradient of the function itself."""

from __future__ import annotations

from collections.abc import Sequence

from framefuse.ir.builder import Builder
from framefuse.ir.custom_calls import NAME, CustomCall
from framefuse.ir.graph import Node, Path, call_attrs, template_of
from framefuse.ir.strides import dense_strides
from framefuse.ir.values import Value
from framefuse.lower.values import KEPT


def with_own_gradient(
    builder: Builder, call: CustomCall, raw: Sequence[Value], operands: Value, leaves: Value, paths: Sequence[Path]
) -> tuple[Node, ...]:
    """The nodes ``raw`` at ``paths``, whose gradients go to the ``operands`` by a call that is made in backward only: a
    library node that stands for the function, of which no result is ever read.
    """
    nodes: list[Node] = []
    template = template_of((raw, operands, leaves), nodes)
    attrs = call_attrs(call, template, [tuple(range(len(node.shape))) for node in nodes], name=NAME)
    first = raw[paths[0][0]]
    function = builder.opaque("library", tuple(nodes), attrs, first.dtype, (), None, first.device)
    results = []
    for path in paths:
        node = raw[path[0]]
        strides = dense_strides(node.shape, range(len(node.shape)))
        result = builder.opaque("result", (function,), (("path", path),), node.dtype, node.shape, strides, node.device)
        results.append(builder.derived(builder.detach(node), KEPT, (result,)))
    return tuple(results)
