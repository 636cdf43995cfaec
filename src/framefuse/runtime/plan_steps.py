"""The steps of a plan while it is made, with the slots of tensors and numbers that they name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from framefuse.ir.facts import Source
from framefuse.ir.graph import Graph
from framefuse.ir.numbers import Expr, Real, Symbol
from framefuse.ir.plan import NumbersStep, Slot, Step, Template
from framefuse.ir.schedule import Memory, Schedule
from framefuse.ir.trace import Trace
from framefuse.runtime.number_program import NumberProgram
from framefuse.runtime.templates import RunTime


class Steps:
    """What has been ``made`` of a schedule. ``number_of`` and ``register_of`` say which of the ``number_count`` numbers
    and which registers the guard program sets.
    """

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
        self.register_of = register_of
        self.slots: list[Slot | None] = []
        self.made: list[Step] = []
        self._slot_of_memory: dict[int, int] = {}

    def input_slots(self) -> tuple[int, ...]:
        self.slots = [None] * len(self.graph.inputs)
        for number, node in enumerate(self.graph.inputs):
            strides = node.strides
            assert strides is not None, "inputs have strides"
            sizes, places = self.all_of(node.shape), self.all_of(strides)
            self.slots[number] = Slot("input", node.dtype.name, sizes, places, device=node.device)
        for index, memory in enumerate(self.schedule.memories):
            if memory.place == "input":
                self._slot_of_memory[index] = memory.input
        return tuple(self.register_of[entry.source] for entry in self.trace.assumptions.inputs)

    def slot(self, index: int) -> int:
        """The plan slot of a memory; made at its first use, when the sizes bound by earlier calls are known."""
        place = self._slot_of_memory.get(index)
        if place is None:
            memory = self.schedule.memories[index]
            base, offset = self._base(memory)
            slot = Slot(
                memory.place,
                memory.dtype.name,
                self.all_of(memory.sizes),
                self.all_of(memory.strides),
                base=base,
                offset=offset,
                device=memory.device,
            )
            self.slots.append(slot)
            place = self._slot_of_memory[index] = len(self.slots) - 1
        return place

    def _base(self, memory: Memory) -> tuple[int, int]:
        if memory.place == "arena":
            assert memory.offset is not None, "arena memory has an offset"
            return self.numbers.slot_of(memory.offset), -1
        if memory.place == "view":
            offset = -1 if memory.offset is None else self.numbers.slot_of(memory.offset)
            return self.slot(memory.base), offset
        return -1, -1

    def further(self, dtype: str) -> int:
        """The slot of a further result of a call."""
        self.slots.append(Slot("call", dtype, (), ()))
        return len(self.slots) - 1

    def all_of(self, values: Sequence[Expr]) -> tuple[int, ...]:
        return tuple(self.numbers.slot_of(value) for value in values)

    def flush(self) -> None:
        """Puts the instructions over sizes that earlier steps bound before the next step."""
        instructions = self.numbers.take()
        if instructions:
            self.made.append(NumbersStep(instructions))

    def add(self, step: Step) -> None:
        self.flush()
        self.made.append(step)

    def number_leaf(self, value: RunTime) -> Template:
        assert isinstance(value, (Expr, Real)), "a number"
        if isinstance(value, Real):
            return ("real", self.numbers.slot_of(value.substitute(self.graph.values)))
        known = value.substitute(self.graph.values)
        return ("const", known.constant) if known.constant is not None else ("int", self.numbers.slot_of(known))
