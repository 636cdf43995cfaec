"""Follows which nodes carry a gradient as eager's autograd does, and puts a cut where eager cut it."""

from __future__ import annotations

from collections.abc import Iterable

from framefuse.errors import Stop
from framefuse.ir.graph import Node
from framefuse.ir.stops import reason
from framefuse.ir.trace import Call, Trace
from framefuse.lower.context import Lowering
from framefuse.lower.values import Values, refs


class Gradients:
    """Nodes that carry a gradient: inputs that require grad, and what is computed from them in float dtypes.

    ``on`` is False where no input requires grad: then nothing is looked at.
    """

    def __init__(self, builder: Lowering, trace: Trace, values: Values) -> None:
        self.builder = builder
        self.trace = trace
        self.values = values
        self.differentiable = tuple(
            place for place, entry in enumerate(trace.assumptions.inputs) if entry.spec.requires_grad
        )
        self.on = bool(self.differentiable)
        self._carrying: set[Node] = set()
        self._seen = 0
        self._leaves: set[int] = set()  # views made where gradients are off that eager says require grad: as leaves
        self._cut: set[int] = set()  # storages written where gradients are off, though their tensors require grad

    def carries(self, node: Node) -> bool:
        """Whether a gradient can flow from the node to an input."""
        nodes = self.builder.nodes
        for new in nodes[self._seen :]:
            if new.op == "input":
                carries = new.attr("index") in self.differentiable
            else:
                carries = any(operand in self._carrying for operand in new.inputs)
                real = new.op == "library" or new.dtype.kind in ("float", "complex")
                carries = carries and real and new.op != "detach"
            if carries:
                self._carrying.add(new)
        self._seen = len(nodes)
        return node in self._carrying

    def made(self, call: Call, value: int, node: Node) -> Node:
        """The contents of a new value that eager says requires grad or not."""
        if not self.on:
            return node
        meta, carries = self.trace.metas[value], self.carries(node)
        if meta.requires_grad and carries and not call.grad_enabled:
            self._leaves.add(value)
            return self.builder.detach(node)
        if meta.requires_grad and not carries:
            raise Stop(reason("gradient", f"{call.name} gives a tensor that requires grad in its own way", call.line))
        return self.builder.detach(node) if carries and not meta.requires_grad else node

    def reads(self, call: Call) -> None:
        """Raises Stop where a call in grad mode reads what was written behind autograd's back."""
        if not call.grad_enabled:
            return
        self.leaves(refs((call.args, call.kwargs)), call)
        for value in refs((call.args, call.kwargs)):
            if self.trace.metas[value].storage in self._cut:
                text = f"{call.name} reads a tensor that requires grad and was written where gradients are off"
                raise Stop(reason("gradient", text, call.line))

    def leaves(self, values: Iterable[int], call: Call | None = None) -> None:
        """Raises Stop where one of the values collects a gradient of its own: a view made where gradients are off."""
        if not self._leaves.isdisjoint(values):
            line = self.trace.line if call is None else call.line
            text = "A view that was made where gradients are off requires grad by itself"
            raise Stop(reason("gradient", text, line))

    def written(self, call: Call, value: int, node: Node, statistics: bool) -> Node:
        """The new contents of a written value."""
        if not self.on:
            return node
        carries, before = self.carries(node), self.carries(self.values.contents[value])
        if statistics:
            return self.builder.detach(node) if carries else node
        if call.grad_enabled:
            if before and not carries:
                raise Stop(reason("gradient", f"{call.name} replaces what requires grad", call.line))
            return node
        if before:
            storage = self.trace.metas[value].storage
            if self.values.sets[storage].root not in self.values.inputs:
                text = f"{call.name} writes, where gradients are off, to a tensor that requires grad"
                raise Stop(reason("gradient", text, call.line))
            self._cut.add(storage)
        return self.builder.detach(node) if carries else node


def peel(node: Node) -> Node:
    """The node whose values these are, without the cuts of its gradient."""
    while node.op == "detach":
        node = node.inputs[0]
    return node
