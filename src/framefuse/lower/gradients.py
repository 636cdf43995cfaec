"""Follows which nodes carry a gradient as eager's autograd does, and puts a cut where eager cut it."""

from __future__ import annotations

from collections.abc import Callable, Container

from framefuse.errors import Stop
from framefuse.ir.custom_calls import CustomCall
from framefuse.ir.graph import Node
from framefuse.ir.ops import TABLE, VIEW
from framefuse.ir.pairs import is_joined, joined, parts
from framefuse.ir.stops import reason
from framefuse.ir.trace import Call, Trace, outside, refs
from framefuse.lower.context import Lowering
from framefuse.lower.values import KEPT, Values

SHOWN = "shown"  # of those that are views which leave, as what is computed from them reads them; with their number
OWN = "own"  # of those that moved elements into a tensor of its own: what is computed from it rests on it
REPLACED = "replaced"  # of those to whose operand's history a write of new contents leads back, with a slope of zero


class Gradients:
    """Nodes that carry a gradient: inputs that require grad, and what is computed from them in float dtypes.

    Contents and history go apart where memory is written behind autograd's back: with gradients off, or through another
    tensor that was detached. Then the value is what was written, and the gradient goes where it went before.

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
        self._carrying: dict[Node, int] = {}  # with their places in the program
        self._seen = 0
        self._leaves: set[int] = set()  # views made where gradients are off, of what requires grad: as leaves

    def carries(self, node: Node) -> bool:
        """Whether a gradient can flow from the node to an input."""
        nodes = self.builder.nodes
        for place in range(self._seen, len(nodes)):
            new = nodes[place]
            if new.op == "input":
                carries = new.attr("index") in self.differentiable
            else:
                carries = any(operand in self._carrying for operand in new.inputs)
                real = new.op == "library" or new.dtype.kind in ("float", "complex")
                carries = carries and real and new.op != "detach"
            if carries:
                self._carrying[new] = place
        self._seen = len(nodes)
        return node in self._carrying

    def made(self, call: Call, value: int, node: Node) -> Node:
        """The contents of a new value that eager says requires grad or not."""
        if not self.on:
            return node
        meta, carries = self.trace.metas[value], self.carries(node)
        if carries and not meta.requires_grad:
            return self.builder.detach(node)
        if meta.requires_grad and (not carries or not (call.grad_enabled or self._is_view(call, value))):
            raise Stop(reason("gradient", f"{call.name} gives a tensor that requires grad in its own way", call.line))
        if self._is_view(call, value) and not (call.grad_enabled and self._leaves.isdisjoint(refs(call.args))):
            self._leaves.add(value)
        return node

    def _is_view(self, call: Call, value: int) -> bool:
        meta = self.trace.metas[value]
        return meta.view and any(self.trace.metas[operand].family == meta.family for operand in refs(call.args))

    def reads(self, call: Call) -> None:
        """Raises Stop where a call in grad mode reads a view that was made where gradients are off: it collects a
        gradient of its own. A custom autograd function reads no gradient of what its forward made.
        """
        if not call.grad_enabled or not self._leaves or isinstance(call.target, CustomCall):
            return
        for value in refs((call.args, call.kwargs)):
            if value in self._leaves and self.carries(self.values.contents[value]):
                text = "A view that was made where gradients are off requires grad by itself"
                raise Stop(reason("gradient", text, call.line))

    def shown(self, call: Call, value: int, node: Node, leaving: Container[int]) -> Node:
        """The contents of what leaves: what is computed from it rests on it: its own gradient may be asked."""
        meta = self.trace.metas[value]
        if not self.on or value not in leaving or not meta.requires_grad:
            return node
        if not meta.view and is_joined(node):  # what reads it reads its memory, not what that was joined of
            self.builder.whole.add(node)
        if not meta.view:
            return self._own(node) if node.dtype.is_float else node
        written = {self.trace.metas[each].storage for other in self.trace.calls for each in other.written}
        if not call.grad_enabled or not self._is_view(call, value) or meta.storage in written:
            return node
        if node.dtype.kind != "complex":
            return self.builder.derived(node, SHOWN, (node,), value)
        attrs = (("name", SHOWN), ("parameters", (value,)))
        return self.builder.make("derived", (node, node), attrs, node.dtype, node.shape)

    def _own(self, node: Node) -> Node:
        """The contents of a tensor that is no view, though its elements were only moved there: a row that moves them
        further would else be made of what they were before.
        """
        moved = TABLE[node.op].kind == VIEW and node.op not in ("detach", "derived")
        return self.builder.derived(node, OWN, (node,)) if moved and self.carries(node) else node

    def asked(self) -> None:
        """Raises Stop where the trace ends at a call of ``autograd.grad``, or the like, and a view of written memory
        leaves from which others were computed: that call, or the next, may ask for its gradient, and such a view is
        made last, so that no way leads to it. Behind a step of its own it is an input.
        """
        if not self.on or not self.trace.asks:
            return
        shown = {node.attr("parameters")[0] for node in self.builder.nodes if is_shown(node)}
        leaving = set(outside(self.trace.result, ())) - shown
        for place, call in enumerate(self.trace.calls):
            for value in leaving.intersection(refs(call.result)):
                read = any(value in refs((later.args, later.kwargs)) for later in self.trace.calls[place + 1 :])
                if read and self.trace.metas[value].requires_grad and self._is_view(call, value):
                    raise Stop(reason("gradient", f"{call.name} gives a view whose own gradient is asked", call.line))

    def written(self, call: Call, value: int, node: Node) -> Node:
        """What a tracked write makes of a value: its earlier history gets a gradient of zeros where the new contents
        do not rest on it.
        """
        before = self.values.contents[value]
        node = self._own(node) if self.on else node
        if not self.on or not self.carries(before) or self._rests(node, before):
            return node
        if node.dtype.kind == "complex":
            return self._by_parts(node, before, self._replaced)
        return self._replaced(node, before)

    def _replaced(self, node: Node, before: Node) -> Node:
        if not self.carries(before) or self._rests(node, before):
            return node
        return self.builder.derived(node, REPLACED, (node, before))

    def _rests(self, node: Node, before: Node) -> bool:
        """Whether a way for gradients leads from ``node`` to ``before``."""
        if not self.carries(node):
            return False
        first, waiting, met = self._carrying[before], [node], {node}
        while waiting:
            here = waiting.pop()
            if here is before:
                return True
            for operand in here.inputs:
                if operand not in met and self._carrying.get(operand, -1) >= first:
                    met.add(operand)
                    waiting.append(operand)
        return False

    def _by_parts(self, node: Node, before: Node, change: Callable[[Node, Node], Node]) -> Node:
        """The change of complex contents, made of their parts."""
        (real, imag), (first, second) = parts(self.builder, node), parts(self.builder, before)
        return joined(self.builder, (change(real, first), change(imag, second)))

    def keep(self, node: Node, before: Node) -> Node:
        """New contents that were written behind autograd's back, under the history of those ``before``."""
        if not self.on or not self.carries(before):
            return self.builder.detach(node) if self.on and self.carries(node) else node
        if node.dtype.kind == "complex":
            return self._by_parts(node, before, self.keep)
        return self.builder.derived(peel(node), KEPT, (history(before),))


def is_shown(node: Node) -> bool:
    """Whether the node stands for a view that leaves."""
    return node.op == "derived" and node.attr("name") == SHOWN


def history(node: Node) -> Node:
    """The node whose gradient these contents have."""
    while node.op == "derived" and node.attr("name") == KEPT:
        node = node.inputs[1]
    return node


def peel(node: Node) -> Node:
    """The node whose values these are, without what is said of its gradient alone."""
    while node.op == "detach" or (node.op == "derived" and node.attr("name") in (KEPT, REPLACED)):
        node = node.inputs[0]
    return node
