"""The steps of a plan behind what computes: contents of inputs are written, autograd learns of the results, and calls
of eager's own are made that want real tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from framefuse import _native
from framefuse.ir.dtypes import BY_TORCH
from framefuse.ir.facts import Source
from framefuse.ir.graph import Late, Node
from framefuse.ir.numbers import Real, Symbol
from framefuse.ir.plan import CallStep, Template
from framefuse.ir.trace import Ref, refs
from framefuse.runtime.derivative import Derivative
from framefuse.runtime.histories import views_behind
from framefuse.runtime.plan_steps import Steps
from framefuse.runtime.templates import RunTime, argument_template, result_template
from framefuse.runtime.written_inputs import as_it_came, copier, copy_uncounted, refuse_unwritable, uncounted

if TYPE_CHECKING:
    from framefuse.ir.derivative import Saved


def _was_written(node: Node) -> bool:
    """Whether a node is what a call wrote that ran on copies; what a tape holds of that stays as the tape knows it."""
    if node.op != "result":
        return False
    target = node.inputs[0].attr("target")
    if hasattr(target, "tape"):
        return node.attr("path")[0] == 0 and bool(getattr(getattr(target, "target", None), "writes", False))
    return bool(getattr(target, "writes", False))


class Closing:
    """Adds what follows the items of a schedule."""

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.trace, self.schedule, self.graph = steps.trace, steps.schedule, steps.graph
        outputs, inputs = reversed([*enumerate(self.graph.outputs)]), enumerate(self.trace.assumptions.inputs)
        self.places_of_outputs = {output.value: place for place, output in outputs}
        self.places_of_inputs = {entry.value: place for place, entry in inputs}
        self.copy = copier(self.trace.assumptions.inputs)
        self.late: dict[int, int] = {}  # by value: the slot of a result of a late call
        self.carried: dict[int, int] = {}  # by place of an output: the input that it was written to under its history
        self.before: dict[int, int] = {}  # by written input: the slot of a tensor with the history that it came with
        self.later: frozenset[int] = frozenset()  # inputs that what is hung into autograd reads behind their writes
        self.writes = self.schedule.writes  # what autograd does not see, as long as it was not written
        self.made: set[int] = set()  # numbers of late calls that stand before others
        self.wrote = False  # whether a run that declined now would leave inputs written, to be written once more

    def add(self, derivatives: Sequence[Derivative]) -> Template:
        """All steps; returns the template of the result."""
        self._versions()
        self.carried = self._carried()
        derivatives = views_behind(self.graph, len(self.trace.assumptions.inputs), derivatives)
        for number, derivative in enumerate(derivatives):
            for place in derivative.piece.reads:
                self._write_first(place, derivatives[number:])
            self._write_behind(derivative.piece.later, derivatives[number:])
            self._attach(derivative)
        self._writes()
        for number, late in enumerate(self.graph.late):
            if number not in self.made:
                self._late(late)
        self._settle(derivatives)
        return result_template(self.trace.result, self.trace.effects, self._result_leaf)

    def check(self) -> None:
        """Inputs to which autograd will see a write are checked before anything runs."""
        places = {entry.value: place for place, entry in enumerate(self.trace.assumptions.inputs)}
        written = [places[late.args[0].value] for late in self.graph.late if late.name == "copy_"]
        if written:
            inputs = tuple(("tensor", place) for place in written)
            self.steps.add(CallStep("check_written", refuse_unwritable, inputs, (), ()))

    # ---- contents of inputs ------------------------------------------------------------------------------------------

    def _write_behind(self, read: frozenset[int], further: Sequence[Derivative]) -> None:
        """Writes what autograd does not see before that is hung into it which ``read`` one of these inputs behind its
        write: torch gives a view another history once its memory was written. What is ``further`` computed from one
        before its write finds the earlier history in another tensor.
        """
        written = [self._written_input(target) for target, _, _ in self.writes]
        if read.isdisjoint(written):
            return
        for own in dict.fromkeys(written):
            if any(own in each.piece.histories - each.piece.later for each in further):
                self.before.setdefault(own, self._as_it_came(own, ("tensor", own)))
        self._writes()

    def _end(self) -> None:
        """Behind a write an error is the program's to see: the call run again would write its inputs twice."""
        if self.wrote:
            self.steps.add(CallStep("versions", _native.raise_versions, (), (), (), commits=True))
        self.wrote = False

    def _written_input(self, memory: int) -> int:
        """The input whose memory is written, or a part of it."""
        known = self.schedule.memories[memory]
        return self._written_input(known.base) if known.base >= 0 else known.input

    def _writes(self) -> None:
        """New contents of inputs go in after everything was computed; eager's version counts are kept."""
        writes, self.writes = self.writes, ()
        for target, value, bumps in writes:
            tensor, new = ("tensor", self.steps.slot(target)), ("tensor", self.steps.slot(value))
            base = self.schedule.memories[target].base
            self._end()
            if base >= 0:  # a part: no view that autograd knows, so that its input counts the writes
                self.steps.add(CallStep("copy_", self.copy, (tensor, new), (), (), inside=True))
                self.wrote = True
                counted = (("tensor", self.steps.slot(base)),) * bumps
                if counted:
                    self.steps.add(CallStep("versions", _native.raise_versions, counted, (), ()))
                continue
            if target != value:
                copy = self.copy if bumps else copy_uncounted
                self.steps.add(CallStep("copy_", copy, (tensor, new), (), ()))
                self.wrote = True
            counted = (tensor,) * (bumps - (target != value))
            if counted:
                self.steps.add(CallStep("versions", _native.raise_versions, counted, (), ()))

    def _versions(self) -> None:
        """Fresh results that the program wrote count their writes; before autograd learns of them."""
        counted: list[Template] = []
        for output, memory in zip(self.graph.outputs, self.schedule.outputs, strict=True):
            tensor = ("tensor", self.steps.slot(memory))
            if output.version and self.schedule.memories[memory].place == "fresh":
                counted += [tensor] * output.version
            elif output.version:  # a library may have counted by itself
                args = (("tuple", tensor), ("const", (output.version,)))
                self.steps.add(CallStep("versions", torch._C._autograd._unsafe_set_version_counter, args, (), ()))
            elif _was_written(output.node):
                self.steps.add(CallStep("versions", uncounted, (tensor,), (), (((), self.steps.slot(memory)),)))
        if counted:
            self.steps.add(CallStep("versions", _native.raise_versions, tuple(counted), (), ()))

    # ---- gradients ---------------------------------------------------------------------------------------------------

    def _attach(self, derivative: Derivative) -> None:
        """The call that makes torch's autograd know of the outputs: the tensors stay the same objects."""
        self._end()
        piece = derivative.piece
        self.later = piece.later
        values = [self._read(entry) for entry in piece.inputs]
        values += [("tensor", self.steps.slot(self.schedule.outputs[place])) for place in piece.outputs]
        only = piece.watched[: len(piece.watched) - derivative.through]
        values += [self._saved(entry) for entry in (*only, *piece.saved)]
        values += [self._root(entry) for entry in piece.roots]
        for name in piece.numbers:
            symbolic = isinstance(name, Symbol)
            slot = self.steps.numbers.slot_of(name.expr if isinstance(name, Symbol) else Real("symbol", (name,)))
            values.append(("int" if symbolic else "real", slot))
        self.steps.add(CallStep("attach", derivative.attach, tuple(values), (), (), grad=True))

    def _carried(self) -> dict[int, int]:
        """The outputs that are contents of inputs, with these: what is computed from one is so from the input, whose
        own gradient somebody may ask.
        """
        places = {entry.value: place for place, entry in enumerate(self.trace.assumptions.inputs)}
        outputs = {output.value: place for place, output in enumerate(self.graph.outputs)}
        writes = (late for late in self.graph.late if late.name == "copy_")
        return {outputs[late.args[1].value]: places[late.args[0].value] for late in writes}

    def _write_first(self, place: int, further: Sequence[Derivative]) -> None:
        """Writes an output to its input before what is computed from it is hung into autograd; what is ``further``
        computed from the input as it came finds its history in another tensor.
        """
        value, late = self.graph.outputs[place].value, self.graph.late
        for number in range(len(late) if place in self.carried else 0):
            if late[number].name != "copy_" or late[number].args[1].value != value or number in self.made:
                continue
            own = self.carried[place]
            if any(own in derivative.piece.histories for derivative in further):
                self.before[own] = self._as_it_came(own, ("tensor", own))
            around = range(max(number - 1, 0), min(number + 2, len(late)))
            writes = [each for each in around if each == number or self._counts(late[each], late[number])]
            self.made.update(writes)
            for each in writes:
                self._late(late[each])

    @staticmethod
    def _counts(late: Late, write: Late) -> bool:
        """Whether a late call counts writes of the input that another one writes."""
        return late.name == "version" and write.args[0] in late.args[0]

    def _make_first(self, value: int) -> None:
        """Makes a view of an input before what is computed from it is hung into autograd."""
        late = self.graph.late
        for number in range(len(late)):
            if number not in self.made and any(value == result for result, _ in late[number].results):
                for before in refs((late[number].args, late[number].kwargs)):
                    self._make_first(before)
                self.made.add(number)
                self._late(late[number])

    def _settle(self, derivatives: Sequence[Derivative]) -> None:
        """Nodes that watch what the plan wrote after they were made learn its version."""
        for derivative in derivatives:
            if any(entry.settles for entry in derivative.piece.watched):
                output = ("tensor", self.steps.slot(self.schedule.outputs[derivative.piece.outputs[0]]))
                self.steps.add(CallStep("settle", derivative.attach.settle, (output,), (), ()))

    def _saved(self, entry: Saved) -> Template:
        if entry.kind != "input":
            return ("tensor", self.steps.slot(self.schedule.outputs[entry.place]))
        further = entry.place - len(self.trace.assumptions.inputs)
        if further < 0:
            return ("tensor", entry.place)
        self._make_first(self.graph.shown[further])
        return ("tensor", self.late[self.graph.shown[further]])

    def _read(self, entry: Saved) -> Template:
        """A tensor that gradients go to: the input, where the contents were written to one."""
        if entry.kind == "output" and entry.place in self.carried:
            return ("tensor", self.carried[entry.place])
        return ("tensor", self.before[entry.place]) if self._is_before(entry) else self._saved(entry)

    def _is_before(self, entry: Saved) -> bool:
        """Whether an entry is an input as it came that was written since."""
        return entry.kind == "input" and entry.place in self.before and entry.place not in self.later

    def _root(self, entry: Saved) -> Template:
        """A tensor from which gradients are computed that may be differentiated again."""
        history = self.carried.get(entry.place) if entry.kind == "output" else entry.history
        if history is None:
            return self._read(entry)
        if entry.kind != "output":
            history = history if history in self.later else self.before.get(history, history)
        return ("tensor", self._as_it_came(history, self._saved(entry)))

    def _as_it_came(self, history: int, contents: Template) -> int:
        """The slot of a tensor with these contents under the history that the one in a slot has now."""
        known = self.steps.slots[history]
        assert known is not None, "inputs have slots"
        args, slot = (("tensor", history), contents), self.steps.further(known.dtype)
        self.steps.add(CallStep("as_it_came", as_it_came, args, (), (((), slot),), grad=True))
        return slot

    def _late(self, late: Late) -> None:
        """A call of eager's own on real tensors."""

        def leaf(value: RunTime) -> Template:
            return self._result_tensor(value.value) if isinstance(value, Ref) else self.steps.number_leaf(value)

        args = tuple(argument_template(value, leaf) for value in late.args)
        kwargs = tuple((name, argument_template(value, leaf)) for name, value in late.kwargs.items())
        outs = []
        for value, path in late.results:
            slot = self.late[value] = self.steps.further(BY_TORCH[self.trace.metas[value].dtype].name)
            outs.append((path, slot))
        self._end()
        self.steps.add(CallStep(late.name, late.target, args, kwargs, tuple(outs), grad=late.grad))
        self.wrote = late.name == "copy_"

    # ---- results -----------------------------------------------------------------------------------------------------

    def _result_leaf(self, value: RunTime) -> Template:
        if isinstance(value, Ref):
            return self._result_tensor(value.value)
        if isinstance(value, Source):
            return ("register", self.steps.register_of[value])
        return self.steps.number_leaf(value)

    def _result_tensor(self, number: int) -> Template:
        if number in self.late:
            return ("tensor", self.late[number])
        if number in self.places_of_outputs:
            place = self.places_of_outputs[number]
            given = self.graph.outputs[place].input
            return ("tensor", given if given is not None else self.steps.slot(self.schedule.outputs[place]))
        if number in self.places_of_inputs:
            return ("tensor", self.places_of_inputs[number])
        raise AssertionError(f"value {number} of the result is not an output of the graph")
