"""Turns the values that leave a trace into outputs: inputs themselves, fresh tensors, or eager's own views."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from framefuse.errors import Stop
from framefuse.ir.builder import ONE, ZERO, Unprovable
from framefuse.ir.classes import PLAIN_TENSORS
from framefuse.ir.graph import Late, Node, Output, Write
from framefuse.ir.ops import CALL, TABLE
from framefuse.ir.stops import reason
from framefuse.ir.strides import dense_order, row_major, shown_order, unclear
from framefuse.ir.torch_calls import TABLE as CALLS
from framefuse.ir.trace import Call, Ref, TensorMeta, Trace, refs
from framefuse.ir.values import Value
from framefuse.ir.wrapped_calls import BeforeWrite, InInference, Named, Plainly, ThroughView, Turned, bare
from framefuse.lower.context import Lowering
from framefuse.lower.gradients import Gradients, peel
from framefuse.lower.own_memory import Copies, computed
from framefuse.lower.values import KEPT, Values

# Calls that ask another tensor for its sizes alone, and those that take the sizes.
BY_SIZES: dict[str, Callable[..., Value]] = {
    "view_as": torch.Tensor.view,
    "reshape_as": torch.Tensor.reshape,
    "expand_as": torch.Tensor.expand,
}


@dataclass(frozen=True, slots=True)
class Definition:
    """Where a value came from: result ``path`` of ``call``, the trace's call number ``index``; ``own`` is its library
    result, when it is one.
    """

    call: Call
    path: tuple[int, ...]
    own: Node | None
    index: int


Form = tuple[Value, str, tuple[Value, ...], dict[str, Value]]  # a call: target, name, arguments


class Outputs:
    """Decides for each value that leaves the trace how its memory comes about.

    What is a view under eager, or shares memory in another way, is made by eager's own calls on the one tensor that is
    first in its memory, after everything else: so autograd and the counts of writes see what they see under eager.
    """

    def __init__(
        self,
        builder: Lowering,
        trace: Trace,
        values: Values,
        definer: Mapping[int, Definition],
        library: Callable[..., tuple[Node, ...]],
        gradients: Gradients,
        late_argument: Callable[[Value], Value],
        saved: Container[int],
    ) -> None:
        self.builder = builder
        self.trace = trace
        self.values = values
        self.definer = definer
        self.library = library
        self.gradients = gradients
        self.late_argument = late_argument
        self.saved = saved  # storages that eager's autograd keeps
        self.copies = Copies(builder, library)
        self.real: dict[int, Node] = {}
        self.found: dict[int, Output] = {}
        self.late: list[Late] = []
        self.late_values: set[int] = set()
        self.leaving: set[int] = set()
        self.families: dict[int, set[int]] = {}  # by storage, of the inputs and of what leaves
        self.tops: dict[int, int] = {}  # by storage: the value that is made as a tensor of its own

    def outputs(self, numbers: Sequence[int]) -> tuple[Output, ...]:
        """One output for each value, in order, but for the results of late calls; then what these read."""
        self.leaving = {*numbers, *self._watched(numbers)}
        for value in (*self.values.inputs, *self.leaving):
            meta = self.trace.metas[value]
            self.families.setdefault(meta.storage, set()).add(meta.family)
        self._late_writes()
        late = dict.fromkeys(value for value in numbers if self._is_late(value))
        for value in numbers:
            if value not in late:
                self._make_alone(value)
        writes = len(self.late)
        for value in late:
            self._make_late(value)
        self.late[writes:] = self._in_order(self.late[writes:])
        self.late = [self._plain(call) for call in self.late]
        return tuple(self.found.values())

    def _plain(self, call: Late) -> Late:
        """A call that no class of its operands decides about."""
        kinds = {self.trace.metas[value].type for value in refs((call.args, call.kwargs)) if value >= 0}
        return call if kinds <= {*PLAIN_TENSORS} else replace(call, target=Plainly(call.target))

    def _in_order(self, late: Sequence[Late]) -> list[Late]:
        """Calls in the order of the program: what it turns in place, it reads before and behind that."""
        places, place = [], 0
        for call in late:
            place = self.definer[call.results[0][0]].index if call.results else place
            places.append(place)
        return [late[number] for number in sorted(range(len(late)), key=places.__getitem__)]

    def _watched(self, numbers: Sequence[int]) -> set[int]:
        """What autograd keeps of values that leave through ``.data``, whose writes it does not see: these have counts
        of writes that are not those of the tensors it keeps.
        """
        saved: set[int] = set()
        waiting = [value for value in numbers if self.trace.metas[value].storage in self.saved]
        while waiting:
            value = waiting.pop()
            if value in self.definer and value not in self.values.inputs:
                call = self.definer[value].call
                operands = [each for each in refs(call.args) if self._share(value, each)]
                saved.update(operands if call.name == "data" else ())
                waiting += operands if self.trace.metas[value].view else ()
        return saved

    # ---- writes ------------------------------------------------------------------------------------------------------

    def writes(self) -> tuple[Write, ...]:
        """New contents of inputs of which autograd knows nothing."""
        return tuple(
            Write(self.values.inputs[value], peel(self.values.contents[value]), bumps)
            for value, bumps in self.values.written.items()
            if not self._is_tracked(value)
        )

    def _is_tracked(self, value: int) -> bool:
        """Whether autograd saw a write to an input that now has a history."""
        return value in self.values.tracked and self._carries(value)

    def _late_writes(self) -> None:
        """Contents with a history of their own are written to their inputs by eager's copy_, which carries the
        gradient.
        """
        for value, bumps in self.values.written.items():
            if not self._is_tracked(value):
                continue
            hidden, contents = self._hidden(), self._own(value, None)
            self.found[hidden] = replace(contents, value=hidden, requires_grad=True)
            copy = torch.Tensor.copy_ if self._is_written_itself(value) else ThroughView(torch.Tensor.copy_)
            write = Late(copy, "copy_", (Ref(value), Ref(hidden)), {}, requires_grad=True)
            behind = self.values.tracked[value]  # a view written behind that gets another history from torch
            self.late += [*self._counted(value, bumps - 1 - behind), write, *self._counted(value, behind)]

    def _counted(self, value: int, bumps: int) -> list[Late]:
        """What counts writes of an input that one write stands for."""
        return [Late(torch._C._increment_version, "version", ([Ref(value)] * bumps,), {})] if bumps > 0 else []

    def _is_written_itself(self, value: int) -> bool:
        """Whether the last write to an input that autograd saw was to the input itself, not to a part or another view
        of it.
        """
        family = self.trace.metas[value].family
        for call in reversed(self.trace.calls):
            for number in call.written if call.grad_enabled else ():
                if self.trace.metas[number].family == family:
                    return number == value and not (call.assigns and isinstance(call.args[1], (int, slice, tuple)))
        return True

    def _hidden(self) -> int:
        """The number of an output that only late calls read."""
        return -1 - sum(value < 0 for value in self.found)

    # ---- which values are views --------------------------------------------------------------------------------------

    def _carries(self, value: int) -> bool:
        return self.gradients.on and self.gradients.carries(self.values.contents[value])

    def _is_late(self, value: int) -> bool:
        """Whether eager's own calls make the value from another: a view, or one whose memory others share."""
        if value in self.values.inputs or not self._bases(value):
            return False
        meta = self.trace.metas[value]
        if self._shared(value) or dense_order(meta.sizes, meta.strides) is None:
            return self._carries(value) or self._is_plain_view(value)
        return meta.view and not (meta.bare and self._is_whole(value)) and self._is_plain_view(value)

    def _is_whole(self, value: int) -> bool:
        """Whether a view shows all elements of its base: only autograd sees that it is one."""
        metas, bases = self.trace.metas, self._bases(value)
        count = math.prod(metas[value].sizes)
        return all(math.prod(metas[base].sizes) == count and self._is_whole(base) for base in bases)

    def _share(self, value: int, other: int) -> bool:
        return self.trace.metas[value].storage == self.trace.metas[other].storage

    def _shared(self, value: int) -> bool:
        return any(other in self.leaving or other in self.values.inputs for other in self.values.shares(value))

    def _is_plain_view(self, value: int) -> bool:
        """Whether views make the value from an input or from the first value of its memory, by sizes and strides."""
        if value in self.values.inputs:
            return True
        bases = self._bases(value)
        return not bases or (self._form(value, bases) is not None and all(map(self._is_plain_view, bases)))

    def _bases(self, value: int) -> list[int]:
        """The operands of the value's call in whose memory it lies; of what it is detached from only where somebody
        sees that too.
        """
        if value not in self.definer:
            return []
        call, meta = self.definer[value].call, self.trace.metas[value]
        across = len(self.families[meta.storage]) > 1
        metas = self.trace.metas
        return [
            operand
            for operand in dict.fromkeys(refs((call.args, call.kwargs)))
            if metas[operand].storage == meta.storage and (across or metas[operand].family == meta.family)
        ]

    def _form(self, value: int, bases: Sequence[int]) -> Form | None:
        """The call that makes a view of ``bases`` and reads nothing else; None where there is none."""
        call = self.definer[value].call
        if not set(refs((call.args, call.kwargs))) - set(bases):
            return call.target, call.name, self.late_argument(call.args), self.late_argument(call.kwargs)
        sized = BY_SIZES.get(call.name)
        if sized is None or call.args[0] != Ref(bases[0]):
            return None
        shape = self.values.contents[value].shape  # one argument, so that it may be empty
        return sized, sized.__name__, (call.args[0], shape), {}

    # ---- what eager's own calls make ---------------------------------------------------------------------------------

    def _make_late(self, value: int) -> None:
        """Lists the calls that make a view, and the one output that is its base."""
        if value in self.found or value in self.values.inputs or value in self.late_values:
            return
        bases = self._bases(value)
        if not bases:
            self._make_top(value)
            return
        for base in bases:
            self._make_late(base)
        form, call = self._form(value, bases), self.definer[value].call
        if form is None:
            if self._carries(value):
                text = f"{call.name} gives a view that depends on further tensors"
                raise Stop(reason("gradient", text, call.line))
            self._make_alone(value)
            return
        metas = self.trace.metas
        if self._carries(value) and all(metas[base].family != metas[value].family for base in bases):
            text = f"What {call.name} gave is written with a gradient of its own, in memory that others share"
            raise Stop(reason("gradient", text, call.line))
        self._add_late(value, form)
        version = self.trace.versions.get(value, 0)
        if call.name == "data" and version:  # it counts its writes by itself
            count = torch._C._autograd._unsafe_set_version_counter
            self.late.append(Late(count, "version", ((Ref(value),), (version,)), {}))

    def _add_late(self, value: int, form: Form) -> None:
        """One call makes all the views that it made under eager."""
        definition = self.definer[value]
        self.late_values.add(value)
        result = (value, definition.path)
        for number, late in enumerate(self.late):
            if any(self._is_of(other, definition.call) for other, _ in late.results) and len(definition.path):
                self.late[number] = replace(late, results=(*late.results, result))
                return
        target, name, args, kwargs = form
        grad = definition.call.grad_enabled
        # Autograd sees again what such a view is of its base once somebody asks, and gradients may be wanted by then.
        write = self.values.last_write.get(self.trace.metas[value].storage, -1)
        if definition.index < write and (self.trace.metas[value].view or self._carries(value)):
            last = self.trace.calls[write]
            tracked = self._carries(value) and last.grad_enabled
            target = BeforeWrite(target, tracked and last.written[:1] == (value,))
        if self._is_turned(value):
            target = Turned(getattr(torch.Tensor, f"{name}_"))
        if definition.call.inference:
            target = InInference(target)
        self.late.append(Late(target, name, args, kwargs, (result,), grad, self._carries(value)))

    def _is_turned(self, value: int) -> bool:
        """Whether a value is the very tensor that is its base, whose sizes or strides were changed in place."""
        metas = self.trace.metas
        own = self.definer[value].call.reshapes if metas[value].bare else not metas[value].view
        return own and any(metas[base].family == metas[value].family for base in self._bases(value))

    def _is_of(self, value: int, call: Call) -> bool:
        return self.definer[value].call is call

    def _make_top(self, value: int) -> None:
        """A tensor of its own for the first value of a family; where eager's is a view of a tensor that torch kept to
        itself, it is a view as well.
        """
        meta = self.trace.metas[value]
        if not meta.plain:
            fact = "A lazy conjugate or negative that is no view of its operands"
            raise Stop(reason("tensor-kind", fact, self.definer[value].call.line))
        shown, apart = meta.view and not meta.bare, self._is_made_bare(value)
        number = self._hidden() if shown or apart else value
        top = replace(self._top(value), value=number, requires_grad=self._carries(value))
        node = computed(top.node)
        self._settle_order(value, top.node, node is self.definer[value].own)
        self.found[number] = replace(top, version=self.trace.versions.get(value, 0))
        if apart:
            self.late_values.add(value)
            self.late.append(Late(InInference(bare), "bare", (Ref(number),), {}, ((value, ()),)))
        elif shown:
            grad = self.definer[value].call.grad_enabled
            args = (Ref(number), Ref(number))
            self.late_values.add(value)
            results = ((value, ()),)
            target = self._named(value)
            self.late.append(Late(target, "view_as", args, {}, results, grad, self._carries(value)))

    def _is_made_bare(self, value: int) -> bool:
        """Whether a value was made in an inference mode that is the program's own."""
        return self.trace.metas[value].bare and not self.trace.assumptions.state.inference_mode

    def _named(self, value: int) -> Callable[..., Value]:
        """What makes a view of a hidden tensor with the node that eager's has."""
        held = self.trace.autograd
        shown = None if held is None else held.shown.get(value)
        if shown is not None and shown[0].startswith("Squeeze"):
            return Named(shown[0])
        meta = self.trace.metas[value]
        usual = 1 not in meta.sizes or row_major(meta.sizes) == tuple(meta.strides)
        return torch.Tensor.view_as if usual else Named("ViewBackward0")

    # ---- tensors of their own ----------------------------------------------------------------------------------------

    def _make_alone(self, value: int) -> None:
        """An input itself, a library's view, or a tensor of its own."""
        meta = self.trace.metas[value]
        place = self.values.inputs.get(value)
        rows = tuple(range(len(meta.sizes)))
        order = dense_order(meta.sizes, meta.strides)
        if place is not None:
            self.found[value] = Output(value, self._input_node(value), order or rows, place)
        elif meta.plain and self._bases(value) and (self._shared(value) or order is None):
            if self._is_made_bare(value) or self.definer[value].call.inference:
                fact = "A part of a tensor of inference mode that no view gives"
                raise Stop(reason("tensor-kind", fact, self.definer[value].call.line))
            self.found[value] = Output(value, self._tensor(value), rows)
        else:
            self._make_top(value)

    def _settle_order(self, value: int, node: Node, own: bool) -> None:
        """Requires that sizes are 1 where they do not tell in which order the dimensions of larger ones would lie: its
        own, or where a library lies its ``own`` result out, those of what the library read.
        """
        meta, contents = self.trace.metas[value], computed(node)
        if not own and CALLS[self.definer[value].call.name].row_major:
            return
        if own and contents.op == "result":
            sizes = self.builder.lying.get(contents.inputs[0], ())
        else:
            axes = unclear(meta.sizes, meta.strides) or self._hidden_axes(meta, contents)
            sizes = tuple(node.shape[axis] for axis in axes)
        wanted = [(size, ONE) for size in sizes]
        turned = contents.dtype.kind == "complex" or self._rests_on_turned(contents)
        if 0 in meta.sizes and len(meta.sizes) > 1 and turned:  # what has no element lies in no order
            wanted.append((node.shape[meta.sizes.index(0)], ZERO))
        for size, one in wanted:
            try:
                self.builder.require("==", size, one, "the order of dimensions in memory")
            except Unprovable as error:
                fact = f"Sizes that are known only while it runs decide how a result lies in memory ({error})."
                line = self.definer[value].call.line
                raise Stop(reason("memory-order", fact, line, "Return its .contiguous().")) from error

    def _hidden_axes(self, meta: TensorMeta, node: Node) -> tuple[int, ...]:
        """The axes of size 1 of a row-major tensor that is computed from turned ones: eager looks first whether all are
        row-major at these sizes, and then gives that order.
        """
        ones = tuple(axis for axis, size in enumerate(meta.sizes) if size == 1)
        rows = tuple(range(len(meta.sizes)))
        turned = ones and dense_order(meta.sizes, meta.strides) == rows and self._rests_on_turned(node)
        return ones if turned else ()

    def _rests_on_turned(self, node: Node) -> bool:
        """Whether axes are turned between a value and inputs or results of libraries, or an input is turned."""
        waiting, met = [node], {node}
        while waiting:
            here = waiting.pop()
            rows = list(range(len(here.shape)))
            if here.op == "permute" and list(here.attr("axes")) != rows:
                return True
            # where none of these is 1, a row-major tensor is a copy, whatever the others are
            if here.op == "windows" and any(self.builder.size(s) == 1 for s in here.shape[here.attr("axis") + 1 :]):
                return True
            if here.op == "input":
                order = dense_order(self.builder.sizes(here.shape), self.builder.sizes(here.strides or ()))
                if order is not None and list(order) != rows:
                    return True
            if TABLE[here.op].kind != CALL:
                fresh = [operand for operand in here.inputs if operand not in met]
                met.update(fresh)
                waiting += fresh
        return False

    def _input_node(self, value: int) -> Node:
        for node in self.builder.nodes:
            if node.op == "input" and node.attr("index") == self.values.inputs[value]:
                return node
        raise AssertionError("every input has a node")

    def _top(self, value: int) -> Output:
        """The contents of a value, under its history, as a tensor in eager's memory order."""
        contents, meta, definition = self.values.contents[value], self.trace.metas[value], self.definer[value]
        plain = computed(contents)
        before = self.tops.setdefault(meta.storage, value)
        beside = before != value and self._beside(before, value)
        if before != value and not beside:
            fact = "Two results share memory in a way that is not followed."
            raise Stop(reason("shared-memory", fact, definition.call.line))
        order = dense_order(meta.sizes, meta.strides)
        if order is None and not (definition.own is plain and plain not in self.copies.given):
            fact = "A result is a view of memory with gaps."
            raise Stop(reason("shared-memory", fact, definition.call.line, "Return its clone()."))
        output = self._own(value, definition.own)
        self.real[value] = output.node
        return output

    def _own(self, value: int, own: Node | None) -> Output:
        """The contents of a value as a tensor that nobody else has, or as the library result that is its ``own``."""
        contents, meta = self.values.contents[value], self.trace.metas[value]
        before = peel(contents)
        node = self.copies.own(before, own, meta)
        rows = tuple(range(len(meta.sizes)))
        order = rows if computed(node).op == "result" else shown_order(meta.sizes, meta.strides) or rows
        if self._carries(value):
            node = contents if node is before else self.builder.derived(node, KEPT, (contents,))
        return Output(value, node, order)

    def _beside(self, first: int, value: int) -> bool:
        """Whether both are unchanged results of one library call, which share memory as that call gave them."""
        same = self.definer[first].call is self.definer[value].call
        return same and all(
            self.definer[each].own is not None and self.definer[each].own is peel(self.values.contents[each])
            for each in (first, value)
        )

    # ---- views that a library makes in the graph ---------------------------------------------------------------------

    def _tensor(self, value: int) -> Node:
        """A node that is a real tensor with this value's own memory: an input, a library result, or a base that is
        made in memory.
        """
        tensor = self.real.get(value)
        if tensor is None:
            tensor = self.real[value] = self._make_tensor(value)
        return tensor

    def _make_tensor(self, value: int) -> Node:
        if value in self.values.inputs:
            return self._input_node(value)
        bases = self._bases(value)
        if not bases:
            self._make_top(value)
            return self.real[value]
        definition = self.definer[value]
        operands = {operand: self._tensor(operand) for operand in bases}
        # Made again even where contents are this call's result: kernels may have had that one copied to dense memory.
        metas, shapes = [self.trace.metas[value]], [self.values.contents[value].shape]
        call = definition.call
        return self.library(call, call.target, [definition.path], metas, shapes, operands, {})[0]
