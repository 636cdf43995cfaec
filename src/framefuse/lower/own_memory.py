"""Turns contents that another tensor holds already into a tensor of their own, in eager's memory order."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from framefuse.ir.builder import Shape
from framefuse.ir.graph import Node
from framefuse.ir.strides import dense_order, row_major
from framefuse.ir.target import type_of
from framefuse.ir.trace import Call, Ref, TensorMeta
from framefuse.ir.values import Value
from framefuse.ir.wrapped_calls import OnCopies, commits
from framefuse.lower.context import Lowering

MADE = Ref(-1)  # the operand of a call of our own
Order = tuple[int, ...]
# Devices on which a kernel copies memory into another order, by tiles that are wide in both. On an H100 96 channels of
# 24 x 112 x 112 points, from channels-last, take the library 0.24 ms, such tiles 0.09.
TURNED = {"cpu": False}


def computed(node: Node) -> Node:
    """The node without the rows that speak of gradients alone: equal ones are one tensor in the forward."""
    while node.op in ("detach", "derived"):
        node = node.inputs[0]
    return node


def copying(call: Call) -> Call:
    """A call that copied as one that copies whatever it is given: kernels may have put the operand into the order that
    is asked for, as the memory of another tensor that leaves.
    """
    if call.name == "to" and "memory_format" in call.kwargs and len(call.args) < 3:
        return replace(call, kwargs={**call.kwargs, "copy": True})
    if call.name != "contiguous":
        return call
    wanted = (*call.args[1:], *call.kwargs.values()) or (torch.contiguous_format,)
    return replace(call, target=torch.clone, name="clone", args=call.args[:1], kwargs={"memory_format": wanted[0]})


class Copies:
    """The tensors that were given out. ``given`` says in which order the dimensions of each lie."""

    def __init__(self, builder: Lowering, library: Callable[..., tuple[Node, ...]]) -> None:
        self.builder = builder
        self.library = library
        self.given: dict[Node, Order] = {}

    def own(self, node: Node, own: Node | None, meta: TensorMeta) -> Node:
        """A node with these contents that nobody else has; ``own`` is the library result that may be given as it is."""
        plain = computed(node)
        order = dense_order(meta.sizes, meta.strides) or tuple(range(len(meta.sizes)))
        alone = plain.op not in ("input", "result") or plain is own or self._is_fresh(plain, order)
        if plain in self.given or not alone:
            node = plain = self._clone(plain, order, meta)
        self.given[plain] = order
        return node

    def _is_fresh(self, node: Node, order: Order) -> bool:
        """Whether a node is a copy that a library call has written, which lies in this order: nobody else has it."""
        target = node.inputs[0].attr("target") if node.op == "result" else None
        if not isinstance(target, OnCopies) or commits(target) or node.strides is None:
            return False
        lies = dense_order(self.builder.sizes(node.shape), self.builder.sizes(node.strides))
        return node.attr("path")[0] > 0 and lies == order

    def _clone(self, node: Node, order: Order, meta: TensorMeta) -> Node:
        """A copy of an input, a library result or what is given already. One that lies in another order is a kernel's
        on a GPU.
        """
        mine = self.given.get(node)
        if mine is None:
            mine = tuple(range(len(order)))
            if node.strides is not None:
                mine = dense_order(meta.sizes, self.builder.sizes(node.strides)) or ()
        if order == mine:
            return self._call(torch.clone, "clone", (node,), {}, meta, node.shape)
        if TURNED.get(type_of(node.device), True) and node.dtype.llvm and not self.builder.differentiable:
            attrs = (("dtype", node.dtype), ("loose", False))
            return self.builder.opaque("cast", (node,), attrs, node.dtype, node.shape, None, node.device)
        return self._in_order(node, order, meta)

    def _in_order(self, node: Node, order: Order, meta: TensorMeta) -> Node:
        """The node as a real tensor with its dimensions in ``order``: copied row by row, turned by a library view, and
        copied as it lies, since eager's is a view of nothing.
        """
        rows = self.builder.permute(node, order)
        sizes = tuple(meta.sizes[axis] for axis in order)
        layout = {"memory_format": torch.contiguous_format}
        turned = replace(meta, sizes=sizes, strides=row_major(sizes))
        rows = self._call(torch.clone, "clone", (rows,), layout, turned, rows.shape)
        if order == tuple(range(len(order))):
            return rows
        inverse = tuple(order.index(axis) for axis in range(len(order)))
        view = self._call(torch.permute, "permute", (rows, inverse), {}, meta, node.shape)
        return self._call(torch.clone, "clone", (view,), {}, meta, node.shape)

    def _call(
        self,
        target: Value,
        name: str,
        args: tuple[Value, ...],
        kwargs: dict[str, Value],
        meta: TensorMeta,
        shape: Shape,
    ) -> Node:
        """A library call of our own on the node that is its first argument."""
        call = Call(target, name, (MADE, *args[1:]), kwargs, None, None)
        return self.library(call, target, [()], [meta], [shape], {MADE.value: args[0]}, {})[0]
