"""Turns the values that leave a trace into outputs: inputs themselves, fresh tensors, or eager's own views."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from framefuse.errors import Reason, Stop
from framefuse.ir.builder import ONE, Shape, Unprovable
from framefuse.ir.graph import Late, Node, Output, Write
from framefuse.ir.stops import reason
from framefuse.ir.strides import dense_order, row_major, unclear
from framefuse.ir.trace import Call, Ref, TensorMeta, Trace
from framefuse.lower.context import Lowering
from framefuse.lower.gradients import Gradients, peel
from framefuse.lower.values import Values, refs


@dataclass(frozen=True, slots=True)
class Definition:
    """Where a value came from: result ``path`` of ``call``; ``own`` is its library result, when it is one."""

    call: Call
    path: tuple[int, ...]
    own: Node | None


MADE = Ref(-1)  # the operand of a call of our own
Library = Callable[..., tuple[Node, ...]]


class Outputs:
    """Decides for each value that leaves the trace how its memory comes about."""

    def __init__(
        self,
        builder: Lowering,
        trace: Trace,
        values: Values,
        definer: Mapping[int, Definition],
        library: Library,
        gradients: Gradients,
        late_argument: Callable[[Any], Any],
    ) -> None:
        self.builder = builder
        self.trace = trace
        self.values = values
        self.definer = definer
        self.library = library
        self.gradients = gradients
        self.late_argument = late_argument
        self.real: dict[int, Node] = {}
        self.given: set[Node] = set()
        self.found: dict[int, Output] = {}
        self.late: list[Late] = []

    def outputs(self, numbers: Sequence[int]) -> tuple[Output, ...]:
        """One output for each value, in order, but for the results of late calls; then what these read."""
        leaving = set(numbers)
        self.gradients.leaves(leaving)
        self._late_writes()
        for value in numbers:
            if not self._is_late(value, leaving):
                self.found[value] = self._output(value, leaving)
        for value in numbers:
            if self._is_late(value, leaving):
                self._make_late(value)
        return tuple(self.found.values())

    def writes(self) -> tuple[Write, ...]:
        """New contents of inputs through which no gradient flows."""
        return tuple(
            Write(self.values.inputs[value], peel(self.values.contents[value]), bumps)
            for value, bumps in self.values.written.items()
            if not self._carries(value)
        )

    # ---- results that require grad -----------------------------------------------------------------------------------

    def _carries(self, value: int) -> bool:
        return self.gradients.on and self.gradients.carries(self.values.contents[value])

    def _is_late(self, value: int, leaving: set[int]) -> bool:
        """Whether a value that leaves is made by eager's own call after everything else: a view that requires grad, in
        grad mode, or one of an input that was written, since autograd sees whether it was made before that.
        """
        if value in self.values.inputs or not self._bases(value):
            return False
        if not self._carries(value) and not self._follows_write(value):
            return False
        meta = self.trace.metas[value]
        return self._shared(value, leaving) or dense_order(meta.sizes, meta.strides) is None

    def _shared(self, value: int, leaving: set[int]) -> bool:
        return any(other in leaving or other in self.values.inputs for other in self.values.shares(value))

    def _follows_write(self, value: int) -> bool:
        """Whether it is a view of a written input, which sizes and strides alone decide: it cannot fail any more."""
        root = self.values.sets[self.trace.metas[value].storage].root
        return root in self.values.inputs and root in self.values.written and self._is_plain_view(value)

    def _is_plain_view(self, value: int) -> bool:
        if value in self.values.inputs:
            return True
        definition, bases = self.definer[value], self._bases(value)
        call = definition.call
        plain = definition.own is None and set(refs((call.args, call.kwargs))) == set(bases)
        return plain and all(map(self._is_plain_view, bases))

    def _bases(self, value: int) -> list[int]:
        """The operands of the value's call in whose memory it lies."""
        call, storage = self.definer[value].call, self.trace.metas[value].storage
        return [operand for operand in refs(call.args) if self.trace.metas[operand].storage == storage]

    def _make_late(self, value: int) -> None:
        """Lists the calls that make a view, and the one output that is its base."""
        if value in self.found or value in self.values.inputs or any(late.value == value for late in self.late):
            return
        definition = self.definer[value]
        call, bases = definition.call, self._bases(value)
        if not bases:
            meta = self.trace.metas[value]
            order = dense_order(meta.sizes, meta.strides)
            if order is None or self.values.sets[meta.storage].root != value or not self._carries(value):
                text = f"{call.name} gives a tensor whose memory others share in a way that is not followed"
                raise Stop(reason("gradient", text, call.line))
            node = self._tensor(value)
            rows = tuple(range(len(order)))
            self.found[value] = Output(value, node, order if node.op != "result" else rows, None, True)
            return
        if set(refs((call.args, call.kwargs))) - set(bases):
            raise Stop(reason("gradient", f"{call.name} gives a view that depends on further tensors", call.line))
        for base in bases:
            self._make_late(base)
        args, kwargs = self.late_argument(call.args), self.late_argument(call.kwargs)
        grad = self._carries(value)
        self.late.append(Late(call.target, call.name, args, kwargs, value, definition.path, grad))

    def _late_writes(self) -> None:
        """Contents that require grad are written to their inputs by eager's copy_, which carries the gradient."""
        for value, bumps in self.values.written.items():
            if not self._carries(value):
                continue
            hidden = -1 - len(self.late)
            contents = self.values.contents[value]
            self.given.add(contents)
            self.found[hidden] = Output(hidden, contents, tuple(range(len(contents.shape))), None, True)
            self.late.append(Late(torch.Tensor.copy_, "copy_", (Ref(value), Ref(hidden)), {}))
            if bumps > 1:
                more = Late(torch._C._increment_version, "version", ([Ref(value)] * (bumps - 1),), {})
                self.late.append(more)

    # ---- results -----------------------------------------------------------------------------------------------------

    def _output(self, value: int, leaving: set[int]) -> Output:
        found = self._place(value, leaving)
        self._settle_order(value, found)
        return replace(found, requires_grad=True) if found.input is None and self._carries(value) else found

    def _settle_order(self, value: int, found: Output) -> None:
        """Requires that sizes are 1 where they do not tell in which order the dimensions of larger ones would lie."""
        meta = self.trace.metas[value]
        if found.input is not None or found.node.op == "result":
            return
        for axis in unclear(meta.sizes, meta.strides):
            try:
                self.builder.require("==", found.node.shape[axis], ONE, "the order of dimensions in memory")
            except Unprovable as error:
                fact = f"Sizes that are known only while it runs decide how a result lies in memory ({error})."
                line = self.definer[value].call.line
                raise Stop(Reason("memory-order", fact, "Return its .contiguous().", line)) from error

    def _place(self, value: int, leaving: set[int]) -> Output:
        meta = self.trace.metas[value]
        order = dense_order(meta.sizes, meta.strides)
        place = self.values.inputs.get(value)
        rows = tuple(range(len(meta.sizes)))
        if place is not None:
            return Output(value, self._input_node(value), order or rows, place)
        if self._shared(value, leaving) or order is None:
            node = self._tensor(value)
            return Output(value, node, order if order is not None and node.op != "result" else rows)
        node = peel(self.values.contents[value])
        if self._is_real(node, value) and node not in self.given:
            self.given.add(node)
            return Output(value, node, order)
        if node.op in ("input", "result"):
            return Output(value, self._clone(node, meta), rows)
        if node in self.given:  # equal contents, but eager gave two tensors
            return Output(value, self._clone(node, meta), rows)
        self.given.add(node)
        return Output(value, node, order)

    def _input_node(self, value: int) -> Node:
        for node in self.builder.nodes:
            if node.op == "input" and node.attr("index") == self.values.inputs[value]:
                return node
        raise AssertionError("every input has a node")

    def _is_real(self, node: Node, value: int) -> bool:
        """Whether the node is the library result that is this value's own memory."""
        return value in self.definer and self.definer[value].own is node

    def _clone(self, node: Node, meta: TensorMeta) -> Node:
        """A copy of an input or library result with eager's memory order."""
        rank = len(meta.sizes)
        order, mine = dense_order(meta.sizes, meta.strides) or tuple(range(rank)), tuple(range(rank))
        if node.strides is not None:
            mine = dense_order(meta.sizes, self.builder.sizes(node.strides)) or ()
        if order == mine:
            return self._plain_call(torch.clone, "clone", (node,), {}, meta, node.shape)
        return self._in_order(node, order, meta)

    def _in_order(self, node: Node, order: tuple[int, ...], meta: TensorMeta) -> Node:
        """The node as a real tensor with its dimensions in ``order``: made row-major, turned by a library view, and
        copied as it lies, since eager's is a view of nothing.
        """
        rows = self.builder.permute(node, order)
        inverse = tuple(order.index(axis) for axis in range(len(order)))
        if rows.op in ("input", "result"):
            sizes = tuple(meta.sizes[axis] for axis in order)
            turned = replace(meta, sizes=sizes, strides=row_major(sizes))
            layout = {"memory_format": torch.contiguous_format}
            rows = self._plain_call(torch.clone, "clone", (rows,), layout, turned, rows.shape)
        turned_node = self._plain_call(torch.permute, "permute", (rows, inverse), {}, meta, node.shape)
        return self._plain_call(torch.clone, "clone", (turned_node,), {}, meta, node.shape)

    # ---- tensors whose memory is shared ------------------------------------------------------------------------------

    def _tensor(self, value: int) -> Node:
        """A node that is a real tensor with this value's own memory: an input, a library result, or a base that is
        made in memory.
        """
        found = self.real.get(value)
        if found is None:
            found = self.real[value] = self._make_tensor(value)
            self.given.add(found)
        return found

    def _make_tensor(self, value: int) -> Node:
        if value in self.values.inputs:
            return self._input_node(value)
        definition = self.definer[value]
        call = definition.call
        meta = self.trace.metas[value]
        storage = meta.storage
        bases = [operand for operand in refs(call.args) if self.trace.metas[operand].storage == storage]
        if not bases:
            base = self._base(value)
            if not meta.view or self._is_real(base, value) or self._carries(value):
                return base
            # Eager's is a view of a tensor that torch kept to itself, as others of this memory are: all or none.
            return self._plain_call(torch.Tensor.view_as, "view_as", (base, MADE), {}, meta, base.shape)
        contents = self.values.contents[value]
        operands = {operand: self._tensor(operand) for operand in bases}
        # Made again even where contents are this call's result: kernels may have had that one copied to dense memory.
        metas, shapes = [self.trace.metas[value]], [contents.shape]
        return self.library(call, call.target, [definition.path], metas, shapes, operands, {})[0]

    def _base(self, value: int) -> Node:
        """The first value of a storage, in the memory order that eager gave it."""
        node, meta = peel(self.values.contents[value]), self.trace.metas[value]
        family = self.values.sets[meta.storage]
        if family.root != value:
            if self._is_real(node, value) and self._beside(family.root, value):
                return node
            fact = "Two results share memory in a way that is not followed."
            raise Stop(Reason("shared-memory", fact, "Return one of them, or a clone.", self.definer[value].call.line))
        if self._is_real(node, value):
            return node
        order = dense_order(meta.sizes, meta.strides)
        if order is None:
            fact = "A result is a view of memory with gaps."
            raise Stop(Reason("shared-memory", fact, "Return its clone().", self.definer[value].call.line))
        if node.op in ("input", "result") or node in self.given:  # the contents may be another tensor's too
            return self._clone(node, meta)
        if order == tuple(range(len(order))):
            return node
        return self._in_order(node, order, meta)

    def _beside(self, root: int, value: int) -> bool:
        """Whether both are unchanged results of one library call, which share memory as that call gave them."""
        same = root in self.definer and self.definer[root].call is self.definer[value].call
        return same and self._is_real(peel(self.values.contents[root]), root)

    def _plain_call(
        self, target: Any, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], meta: TensorMeta, shape: Shape
    ) -> Node:
        """A library call of our own on the node that is its first argument."""
        call = Call(target, name, (MADE, *args[1:]), kwargs, None, None)
        return self.library(call, target, [()], [meta], [shape], {MADE.value: args[0]}, {})[0]
