"""Turns a schedule, its compiled kernels and the guards' slots into the plan that native code runs."""

from __future__ import annotations

import itertools
import operator
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from framefuse import _native
from framefuse.ir.code import DeviceCode, KernelCode, LaunchedCode, PythonCode, Run
from framefuse.ir.derivative import Saved
from framefuse.ir.dtypes import BY_TORCH
from framefuse.ir.facts import Source
from framefuse.ir.graph import Arg, Graph, Late, Node
from framefuse.ir.numbers import Expr, Real, Symbol
from framefuse.ir.plan import (
    AllocStep,
    CallStep,
    KernelStep,
    LaunchStep,
    MatmulStep,
    NumbersStep,
    Plan,
    ReleaseStep,
    Slot,
    Step,
    Template,
)
from framefuse.ir.schedule import (
    Allocate,
    Commit,
    Item,
    Memory,
    Positions,
    Release,
    RunCall,
    RunKernel,
    RunMatmul,
    Schedule,
)
from framefuse.ir.trace import Ref, Trace, refs
from framefuse.ir.values import Function, Value
from framefuse.runtime.derivative import Derivative
from framefuse.runtime.histories import views_behind
from framefuse.runtime.labels import Labels
from framefuse.runtime.number_program import NumberProgram
from framefuse.runtime.random_generators import kept_generators
from framefuse.runtime.templates import RunTime, argument_template, result_template
from framefuse.runtime.written_inputs import as_it_came, copier, copy_uncounted, refuse_unwritable, uncounted

WORTH_DROPPING = 1 << 12  # bytes: a smaller tensor lives to the end of the call
SPECIAL_TARGETS: dict[str, Function] = {"setitem": operator.setitem, "getitem": operator.getitem}


def assemble(
    trace: Trace,
    schedule: Schedule,
    kernels: Mapping[int, KernelCode],
    number_of: Mapping[Symbol | str, int],
    number_count: int,
    register_of: Mapping[Source, int],
    derivatives: Sequence[Derivative] = (),
) -> Plan:
    """The plan of ``schedule``, whose outputs ``derivatives`` hang into autograd.

    ``kernels[i]`` is the compiled code of item ``i``; ``number_of`` and ``register_of`` say which of the
    ``number_count`` numbers and which registers the guard program sets.
    """
    return _Assembler(trace, schedule, number_of, number_count, register_of).plan(kernels, derivatives)


Outs = tuple[tuple[tuple[int, ...], int], ...]


def _was_written(node: Node) -> bool:
    """Whether a node is what a call wrote that ran on copies; what a tape holds of that stays as the tape knows it."""
    if node.op != "result":
        return False
    target = node.inputs[0].attr("target")
    if hasattr(target, "tape"):
        return node.attr("path")[0] == 0 and bool(getattr(getattr(target, "target", None), "writes", False))
    return bool(getattr(target, "writes", False))


def writes_itself(target: Value) -> bool:
    """Whether a call is a method of tensors that runs on a copy of its own tensor and gives that back."""
    inside = getattr(target, "target", None)
    name = getattr(inside, "__name__", "")
    method = isinstance(inside, types.MethodDescriptorType) and name.endswith("_") and not name.startswith("_")
    return method and getattr(target, "places", ()) == (0,)


def launch_extent(item: RunKernel, code: DeviceCode) -> Expr:
    """The extent of a launch of a kernel's ``code``: of its parallel axis, or the programs that the code asks for."""
    if code.programs is None:
        return item.extent
    programs: Expr = code.programs.substitute(item.sizes)
    return programs


def launch_fits(item: RunKernel, code: DeviceCode) -> Iterator[tuple[Expr, tuple[int, int, int]]]:
    """What a launch of a kernel's ``code`` asks of the graph's numbers: a value, (multiple, low, high)."""
    for fit in code.fits:
        yield fit.value.substitute(item.sizes), (fit.multiple, fit.low, fit.high)


@dataclass(frozen=True, slots=True)
class ByPython:
    """A kernel that Python runs; raises RuntimeError where a check fails, so that the call runs eagerly."""

    run: Run

    def __call__(self, tensors: Sequence[torch.Tensor], numbers: Sequence[int | float], extent: int) -> None:
        if self.run(tensors, numbers, extent):
            raise RuntimeError("a check failed")


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


class _Assembler:
    def __init__(
        self,
        trace: Trace,
        schedule: Schedule,
        number_of: Mapping[Symbol | str, int],
        number_count: int,
        register_of: Mapping[Source, int],
    ) -> None:
        self.trace = trace
        self.schedule = schedule
        self.graph: Graph = schedule.graph
        self.numbers = NumberProgram(number_of, number_count)
        self.bound = number_count
        self.register_of = register_of
        self.slots: list[Slot | None] = []
        self.items: dict[int, Item] = {}  # of the schedule, by the step that does it
        self.slot_of_memory: dict[int, int] = {}
        self.steps: list[Step] = []
        self.written: set[int] = set()  # input slots
        outputs, inputs = reversed([*enumerate(self.graph.outputs)]), enumerate(trace.assumptions.inputs)
        self.places_of_outputs = {output.value: place for place, output in outputs}
        self.places_of_inputs = {entry.value: place for place, entry in inputs}
        self.copy = copier(trace.assumptions.inputs)
        self.late: dict[int, int] = {}  # by value: the slot of a result of a late call
        self.carried: dict[int, int] = {}  # by place of an output: the input that it was written to under its history
        self.before: dict[int, int] = {}  # by written input: the slot of a tensor with the history that it came with
        self.later: frozenset[int] = frozenset()  # inputs that what is hung into autograd reads behind their writes
        self.writes = schedule.writes  # what autograd does not see, as long as it was not written
        self.made: set[int] = set()  # numbers of late calls that stand before others

    def plan(self, kernels: Mapping[int, KernelCode], derivatives: Sequence[Derivative]) -> Plan:
        for symbol, values in self.schedule.largest:
            self.numbers.largest(symbol, values)
        inputs = self._input_slots()
        arena = -1
        inside = any(memory.place == "arena" and memory.device == "cpu" for memory in self.schedule.memories)
        if inside or self.schedule.arena.constant != 0:  # what it holds may be empty in every call
            arena = self.numbers.slot_of(self.schedule.arena)
        arenas = tuple((device, self.numbers.slot_of(size)) for device, size in self.schedule.arenas)
        self._check_written()
        for index, item in enumerate(self.schedule.items):
            begun = len(self.steps)
            self._item(item, kernels.get(index))
            made = (place for place in range(begun, len(self.steps)) if not isinstance(self.steps[place], NumbersStep))
            looked = int(isinstance(item, RunCall) and item.checks is not None)  # a step in front of its own
            self.items.update((place, item) for place in itertools.islice(made, looked, looked + 1))
        body = len(self.steps)
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
        result = result_template(self.trace.result, self.trace.effects, self._result_leaf)
        self._flush()
        return Plan(
            name=self.trace.name,
            bound=self.bound,
            count=self.numbers.count,
            numbers=tuple(self.numbers.early),
            slots=tuple(slot for slot in self.slots if slot is not None),
            inputs=inputs,
            steps=tuple(self.steps),
            arena=arena,
            finish=(),
            result=result,
            generators=tuple(self._generators()),
            arenas=arenas,
            body=body,
            written=tuple(sorted(self.written)),
            labels=Labels(self.trace, self.schedule, self.items, len(self.steps)),
        )

    def _generators(self) -> Iterator[Template]:
        for generator in kept_generators(self.schedule):
            yield ("register", self.register_of[generator]) if isinstance(generator, Source) else ("const", generator)

    # ---- slots -------------------------------------------------------------------------------------------------------

    def _input_slots(self) -> tuple[int, ...]:
        self.slots = [None] * len(self.graph.inputs)
        for number, node in enumerate(self.graph.inputs):
            strides = node.strides
            assert strides is not None, "inputs have strides"
            sizes, places = self._all(node.shape), self._all(strides)
            self.slots[number] = Slot("input", node.dtype.name, sizes, places, device=node.device)
        for index, memory in enumerate(self.schedule.memories):
            if memory.place == "input":
                self.slot_of_memory[index] = memory.input
        return tuple(self.register_of[entry.source] for entry in self.trace.assumptions.inputs)

    def _slot(self, index: int) -> int:
        """The plan slot of a memory; made at its first use, when the sizes bound by earlier calls are known."""
        place = self.slot_of_memory.get(index)
        if place is None:
            memory = self.schedule.memories[index]
            base, offset = self._base(memory)
            slot = Slot(
                memory.place,
                memory.dtype.name,
                self._all(memory.sizes),
                self._all(memory.strides),
                base=base,
                offset=offset,
                device=memory.device,
            )
            self.slots.append(slot)
            place = self.slot_of_memory[index] = len(self.slots) - 1
        return place

    def _base(self, memory: Memory) -> tuple[int, int]:
        if memory.place == "arena":
            assert memory.offset is not None, "arena memory has an offset"
            return self.numbers.slot_of(memory.offset), -1
        if memory.place == "view":
            offset = -1 if memory.offset is None else self.numbers.slot_of(memory.offset)
            return self._slot(memory.base), offset
        return -1, -1

    def _all(self, values: Sequence[Expr]) -> tuple[int, ...]:
        return tuple(self.numbers.slot_of(value) for value in values)

    # ---- steps -------------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        """Puts the instructions over sizes that earlier steps bound before the next step."""
        instructions = self.numbers.take()
        if instructions:
            self.steps.append(NumbersStep(instructions))

    def _add(self, step: Step) -> None:
        self._flush()
        self.steps.append(step)

    def _item(self, item: Item, compiled: KernelCode | None) -> None:
        if isinstance(item, RunKernel):
            assert compiled is not None, "every kernel was compiled"
            self._add(self._kernel(item, compiled))
        elif isinstance(item, RunMatmul):
            self._add(self._matmul(item))
        elif isinstance(item, RunCall):
            self._call(item)
        elif isinstance(item, Allocate):
            self._add(AllocStep(self._slot(item.memory)))
        elif isinstance(item, Commit):
            self._commit(item)
        elif isinstance(item, Release):
            self._release(item)
        else:
            raise AssertionError(f"unknown schedule item {type(item).__name__}")

    def _release(self, item: Release) -> None:
        """Drops tensors; consumed inputs also leave the list that they came in, unless they are small."""
        self._add(ReleaseStep(tuple(self._slot(memory) for memory in item.memories)))
        dropped: dict[Source, list[Template]] = {}
        for memory in item.memories:
            place = self.schedule.memories[memory].input
            if place < 0 or self._recorded_bytes(self.graph.inputs[place]) < WORTH_DROPPING:
                continue
            source = self.trace.assumptions.inputs[place].source
            assert source.kind == "item" and source.base is not None, "consumed inputs come in a list"
            dropped.setdefault(source.base, []).append(("const", source.key))
        for saved, places in dropped.items():
            args = (("register", self.register_of[saved]), *places)
            self._add(CallStep("drop", _native.saved_drop, args, (), (), commits=True))

    def _recorded_bytes(self, node: Node) -> int:
        hints = self.graph.hints
        count = node.dtype.size
        for size in node.shape:
            count *= size.evaluate({symbol: hints.get(symbol, 1) for symbol in size.symbols})
        return count

    def _kernel(self, item: RunKernel, compiled: KernelCode) -> Step:
        if isinstance(compiled, LaunchedCode):
            return self._launch(item, compiled)
        if isinstance(compiled, PythonCode):
            return self._by_python(item, compiled)
        return KernelStep(
            name=item.kernel.title,
            address=compiled.address,
            buffers=tuple(self._slot(memory) for memory in item.buffers),
            numbers=tuple(self.numbers.slot_of(value) for value in item.numbers),
            extent=self.numbers.slot_of(item.extent),
            work=self.numbers.slot_of(item.work),
            parallel=item.parallel,
            keep=compiled.keep,
        )

    def _launch(self, item: RunKernel, compiled: LaunchedCode) -> LaunchStep:
        """A kernel that a driver launches."""
        code = compiled.code
        return LaunchStep(
            name=code.name,
            function=code.function,
            variant=compiled.variant,
            arguments=tuple(self._argument(item, kind, place) for kind, place in code.arguments),
            extent=self.numbers.slot_of(launch_extent(item, code)),
            blocks=code.blocks,
            threads=compiled.threads,
            shared=code.shared,
            device=int(item.device.partition(":")[2] or 0),
            keep=code.keep,
            fits=tuple((self.numbers.slot_of(value), *bounds) for value, bounds in launch_fits(item, code)),
        )

    def _argument(self, item: RunKernel, kind: str, place: int) -> tuple[str, int]:
        if kind == "pointer":
            return kind, self._slot(item.buffers[place])
        return kind, self.numbers.slot_of(item.numbers[place])

    def _by_python(self, item: RunKernel, compiled: PythonCode) -> CallStep:
        """A kernel that Python runs, as a call on the memory that it reads and writes."""
        buffers = tuple(("tensor", self._slot(memory)) for memory in item.buffers)
        slots = map(self.numbers.slot_of, item.numbers)
        numbers = tuple(("real" if n.real else "int", slot) for n, slot in zip(item.kernel.numbers, slots, strict=True))
        extent = self.numbers.slot_of(launch_extent(item, compiled.code))
        args = (("tuple", *buffers), ("tuple", *numbers), ("int", extent))
        return CallStep(compiled.code.name, ByPython(compiled.run), args, (), (), inside=True)

    def _matmul(self, item: RunMatmul) -> MatmulStep:
        batch, m, n, k = self._all(item.sizes)
        a, c, out = (self._three(strides) for strides in (item.a_strides, item.c_strides, item.out_strides))
        return MatmulStep(self._slot(item.out), self._slot(item.a), self._slot(item.c), batch, m, n, k, a, c, out)

    def _three(self, strides: tuple[Expr, Expr, Expr]) -> tuple[int, int, int]:
        first, second, third = self._all(strides)
        return first, second, third

    def _call(self, item: RunCall) -> None:
        def leaf(value: RunTime) -> Template:
            if isinstance(value, Arg):
                return ("tensor", self._slot(item.operands[value.index]))
            if isinstance(value, Source):
                return ("register", self.register_of[value])
            return self._number_leaf(value)

        node = item.node
        target = node.attr("target")
        args = tuple(argument_template(value, leaf) for value in node.attr("args"))
        kwargs = tuple((name, argument_template(value, leaf)) for name, value in node.attr("kwargs").items())
        if item.checks is not None:
            self._check_positions(item, item.checks)
        self._flush()  # numbers among the arguments come before the step, those over what it binds after it
        bound = [(out, dimension, self.numbers.bind(symbol)) for out, dimension, symbol in item.binds]
        normal = tuple(self._slot(memory) for memory in item.normal)
        self.written.update(self._slot(memory) for memory in item.over)
        # The results' sizes and strides may be sums over symbols that this very step binds: those instructions follow
        # it, and only after them can a result be brought into the layout that its slot promises.
        late = bool(bound)
        outs = tuple((path, self._slot(memory)) for path, memory in item.outs)
        if writes_itself(target) and not late:
            target, args, outs = self._in_place(item, target, args, outs)
        step = CallStep(
            name=node.attr("name"),
            function=SPECIAL_TARGETS[target] if isinstance(target, str) else target,
            args=args,
            kwargs=kwargs,
            outs=outs,
            binds=tuple((self._slot(out), dimension, number) for out, dimension, number in bound),
            normal=() if late else normal,
            inside=item.inside,
            commits=getattr(target, "commits", False),
        )
        if not late:
            self._add(step)
            return
        self.steps.append(step)
        self._flush()
        for slot in normal:
            self._add(CallStep("layout", _same, (("tensor", slot),), (), (((), slot),), normal=(slot,)))

    def _in_place(
        self, item: RunCall, target: Value, args: tuple[Template, ...], outs: Outs
    ) -> tuple[Value, tuple[Template, ...], Outs]:
        """A method that writes to a copy of its tensor, as a step that copies and one that writes; Python runs between
        them if they are one.
        """
        copied = args[0]
        if not target.spared:
            slot = next((slot for path, slot in outs if path == (1,)), -1)
            if slot < 0:
                slot = len(self.slots)
                self.slots.append(Slot("call", item.node.inputs[item.node.attr("args")[0].index].dtype.name, (), ()))
            self._add(CallStep("clone", torch.Tensor.clone, (copied,), (), (((), slot),), inside=item.inside))
            copied = ("tensor", slot)
        return target.target, (copied, *args[1:]), tuple((path[1:], slot) for path, slot in outs)

    def _check_positions(self, item: RunCall, checks: Positions) -> None:
        """Looks at the positions at which a call writes: it raises for none of them when it has written others."""
        size = self.schedule.memories[item.over[0]].sizes[checks.dimension]
        tensor, whole = ("tensor", self._slot(item.operands[checks.operand])), ("int", self.numbers.slot_of(size))
        args = (tensor, whole, ("const", checks.wraps))
        self._add(CallStep("positions", _native.positions_within, args, (), (), inside=True))

    def _commit(self, item: Commit) -> None:
        """Raises the versions of inputs that kernels are about to write; the plan does not decline after it."""
        self.written.update(self._slot(number) for number, _ in item.inputs)
        bumped = tuple(("tensor", self._slot(number)) for number, bumps in item.inputs for _ in range(bumps))
        self._add(CallStep("versions", _native.raise_versions, bumped, (), (), commits=True))

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

    def _written_input(self, memory: int) -> int:
        """The input whose memory is written, or a part of it."""
        known = self.schedule.memories[memory]
        return self._written_input(known.base) if known.base >= 0 else known.input

    def _writes(self) -> None:
        """New contents of inputs go in after everything was computed; eager's version counts are kept."""
        writes, self.writes = self.writes, ()
        for target, value, bumps in writes:
            tensor, new = ("tensor", self._slot(target)), ("tensor", self._slot(value))
            base = self.schedule.memories[target].base
            if base >= 0:  # a part: no view that autograd knows, so that its input counts the writes
                self._add(CallStep("copy_", self.copy, (tensor, new), (), (), inside=True))
                counted = (("tensor", self._slot(base)),) * bumps
                if counted:
                    self._add(CallStep("versions", _native.raise_versions, counted, (), ()))
                continue
            if target != value:
                copy = self.copy if bumps else copy_uncounted
                self._add(CallStep("copy_", copy, (tensor, new), (), ()))
            counted = (tensor,) * (bumps - (target != value))
            if counted:
                self._add(CallStep("versions", _native.raise_versions, counted, (), ()))

    def _versions(self) -> None:
        """Fresh results that the program wrote count their writes; before autograd learns of them."""
        counted: list[Template] = []
        for output, memory in zip(self.graph.outputs, self.schedule.outputs, strict=True):
            tensor = ("tensor", self._slot(memory))
            if output.version and self.schedule.memories[memory].place == "fresh":
                counted += [tensor] * output.version
            elif output.version:  # a library may have counted by itself
                args = (("tuple", tensor), ("const", (output.version,)))
                self._add(CallStep("versions", torch._C._autograd._unsafe_set_version_counter, args, (), ()))
            elif _was_written(output.node):
                self._add(CallStep("versions", uncounted, (tensor,), (), (((), self._slot(memory)),)))
        if counted:
            self._add(CallStep("versions", _native.raise_versions, tuple(counted), (), ()))

    # ---- gradients ---------------------------------------------------------------------------------------------------

    def _attach(self, derivative: Derivative) -> None:
        """The call that makes torch's autograd know of the outputs: the tensors stay the same objects."""
        piece = derivative.piece
        self.later = piece.later
        values = [self._read(entry) for entry in piece.inputs]
        values += [("tensor", self._slot(self.schedule.outputs[place])) for place in piece.outputs]
        only = piece.watched[: len(piece.watched) - derivative.through]
        values += [self._saved(entry) for entry in (*only, *piece.saved)]
        values += [self._root(entry) for entry in piece.roots]
        for name in piece.numbers:
            symbolic = isinstance(name, Symbol)
            slot = self.numbers.slot_of(name.expr if isinstance(name, Symbol) else Real("symbol", (name,)))
            values.append(("int" if symbolic else "real", slot))
        self._add(CallStep("attach", derivative.attach, tuple(values), (), (), grad=True))

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
            counts = [number + 1] if [each.name for each in late[number + 1 : number + 2]] == ["version"] else []
            self.made.update((number, *counts))
            for each in (number, *counts):
                self._late(late[each])

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
                output = ("tensor", self._slot(self.schedule.outputs[derivative.piece.outputs[0]]))
                self._add(CallStep("settle", derivative.attach.settle, (output,), (), ()))

    def _saved(self, entry: Saved) -> Template:
        if entry.kind != "input":
            return ("tensor", self._slot(self.schedule.outputs[entry.place]))
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
        known = self.slots[history]
        assert known is not None, "inputs have slots"
        self.slots.append(Slot("call", known.dtype, (), ()))
        args, slot = (("tensor", history), contents), len(self.slots) - 1
        self._add(CallStep("as_it_came", as_it_came, args, (), (((), slot),), grad=True))
        return slot

    def _check_written(self) -> None:
        """Inputs to which autograd will see a write are checked before anything runs."""
        places = {entry.value: place for place, entry in enumerate(self.trace.assumptions.inputs)}
        written = [places[late.args[0].value] for late in self.graph.late if late.name == "copy_"]
        if written:
            inputs = tuple(("tensor", place) for place in written)
            self._add(CallStep("check_written", refuse_unwritable, inputs, (), ()))

    def _late(self, late: Late) -> None:
        """A call of eager's own on real tensors."""

        def leaf(value: RunTime) -> Template:
            return self._result_tensor(value.value) if isinstance(value, Ref) else self._number_leaf(value)

        args = tuple(argument_template(value, leaf) for value in late.args)
        kwargs = tuple((name, argument_template(value, leaf)) for name, value in late.kwargs.items())
        outs = []
        for value, path in late.results:
            self.slots.append(Slot("call", BY_TORCH[self.trace.metas[value].dtype].name, (), ()))
            self.late[value] = len(self.slots) - 1
            outs.append((path, len(self.slots) - 1))
        self._add(CallStep(late.name, late.target, args, kwargs, tuple(outs), grad=late.grad))

    # ---- results -----------------------------------------------------------------------------------------------------

    def _number_leaf(self, value: RunTime) -> Template:
        assert isinstance(value, (Expr, Real)), "a number"
        if isinstance(value, Real):
            return ("real", self.numbers.slot_of(value.substitute(self.graph.values)))
        known = value.substitute(self.graph.values)
        return ("const", known.constant) if known.constant is not None else ("int", self.numbers.slot_of(known))

    def _result_leaf(self, value: RunTime) -> Template:
        if isinstance(value, Ref):
            return self._result_tensor(value.value)
        if isinstance(value, Source):
            return ("register", self.register_of[value])
        return self._number_leaf(value)

    def _result_tensor(self, number: int) -> Template:
        if number in self.late:
            return ("tensor", self.late[number])
        if number in self.places_of_outputs:
            place = self.places_of_outputs[number]
            given = self.graph.outputs[place].input
            return ("tensor", given if given is not None else self._slot(self.schedule.outputs[place]))
        if number in self.places_of_inputs:
            return ("tensor", self.places_of_inputs[number])
        raise AssertionError(f"value {number} of the result is not an output of the graph")
