"""Turns a schedule, its compiled kernels and the guards' slots into the plan that native code runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from framefuse.ir.facts import Source
from framefuse.ir.late_imports import later
from framefuse.ir.numbers import Symbol
from framefuse.ir.plan import NumbersStep, Plan, Template
from framefuse.ir.schedule import Item, RunCall, Schedule
from framefuse.ir.trace import Trace
from framefuse.ir.values import Function
from framefuse.runtime.closing_steps import Closing
from framefuse.runtime.derivative import Derivative
from framefuse.runtime.item_steps import Items
from framefuse.runtime.labels import Labels
from framefuse.runtime.plan_steps import Steps

if TYPE_CHECKING:
    from framefuse.ir.code import KernelCode
    from framefuse.runtime.random_generators import kept_generators
else:  # few programs draw
    kept_generators = later("framefuse.runtime.random_generators", "kept_generators")


def assemble(
    trace: Trace,
    schedule: Schedule,
    kernels: Mapping[int, KernelCode],
    number_of: Mapping[Symbol | str, int],
    number_count: int,
    register_of: Mapping[Source, int],
    derivatives: Sequence[Derivative] = (),
    keep: Function | None = None,
) -> Plan:
    """The plan of ``schedule``, whose outputs ``derivatives`` hang into autograd; ``keep`` gives the
    targets of calls that keep what they derive.

    ``kernels[i]`` is the compiled code of item ``i``; ``number_of`` and ``register_of`` say which of the
    ``number_count`` numbers and which registers the guard program sets.
    """
    steps = Steps(trace, schedule, number_of, number_count, register_of)
    numbers, made = steps.numbers, steps.made
    for symbol, values in schedule.largest:
        numbers.largest(symbol, values)
    inputs = steps.input_slots()
    arena = -1
    inside = any(memory.place == "arena" and memory.device == "cpu" for memory in schedule.memories)
    if inside or schedule.arena.constant != 0:  # what it holds may be empty in every call
        arena = numbers.slot_of(schedule.arena)
    arenas = tuple((device, numbers.slot_of(size)) for device, size in schedule.arenas)
    items, closing = Items(steps, keep), Closing(steps)
    closing.check()
    item_of: dict[int, Item] = {}  # by the step that does it
    for index, item in enumerate(schedule.items):
        begun = len(made)
        items.add(item, kernels.get(index))
        own = (place for place in range(begun, len(made)) if not isinstance(made[place], NumbersStep))
        looked = int(isinstance(item, RunCall) and item.checks is not None)  # a step in front of its own
        item_of.update((place, item) for place in itertools.islice(own, looked, looked + 1))
    body = len(made)
    result = closing.add(derivatives)
    steps.flush()
    return Plan(
        name=trace.name,
        bound=number_count,
        count=numbers.count,
        numbers=tuple(numbers.early),
        slots=tuple(slot for slot in steps.slots if slot is not None),
        inputs=inputs,
        steps=tuple(made),
        arena=arena,
        finish=(),
        result=result,
        generators=tuple(_generators(schedule, register_of)),
        arenas=arenas,
        body=body,
        written=tuple(sorted(items.written)),
        labels=Labels(trace, schedule, item_of, len(made)),
    )


def _generators(schedule: Schedule, register_of: Mapping[Source, int]) -> Iterator[Template]:
    if not any(isinstance(item, RunCall) and item.node.attr("random") for item in schedule.items):
        return
    for generator in kept_generators(schedule):
        yield ("register", register_of[generator]) if isinstance(generator, Source) else ("const", generator)
