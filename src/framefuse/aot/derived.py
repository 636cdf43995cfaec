"""Finds what an exported program computes of its weights alone, which is computed once."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from framefuse.aot.exported_program import Program
from framefuse.aot.own_views import root_of
from framefuse.ir.plan import CallStep, KernelStep, MatmulStep, Step


@dataclass(frozen=True, slots=True)
class Derived:
    """The kernel steps that read nothing but weights, and the slots that they fill, in order."""

    steps: tuple[int, ...]
    slots: tuple[int, ...]


def derived(program: Program) -> Derived:
    """Kernels whose numbers are known, which alone write what they write."""
    plan, numbers = program.plan, _known(program)
    writers = Counter(
        root_of(plan, slot) for place, step in enumerate(plan.steps) for slot in _written(program, place, step)
    )
    steps: list[int] = []
    slots: dict[int, None] = {}

    def is_fixed(slot: int) -> bool:
        root = root_of(plan, slot)
        place = plan.slots[slot]
        weight = plan.slots[root].place == "input" and program.sources[root] >= len(program.inputs)
        return slot in slots or (weight and (place.offset < 0 or place.offset in numbers))

    def is_own(slot: int) -> bool:
        place = plan.slots[slot]
        return place.place == "arena" and writers[slot] == 1 and numbers.issuperset((*place.sizes, *place.strides))

    for place, step in enumerate(plan.steps):
        if not isinstance(step, KernelStep) or not numbers.issuperset((*step.numbers, step.extent)):
            continue
        written = program.written[place]
        if all(map(is_own, written)) and all(is_fixed(slot) for slot in step.buffers if slot not in written):
            steps.append(place)
            slots.update(dict.fromkeys(written))
    return Derived(tuple(steps), tuple(slots))


def _known(program: Program) -> set[int]:
    """The numbers that are the same in each call."""
    known = set(program.fixed)
    for op, to, left, right in program.plan.numbers:
        if op in ("const", "real_const") or known.issuperset((left, right)):
            known.add(to)
    return known


def _written(program: Program, place: int, step: Step) -> tuple[int, ...]:
    if isinstance(step, KernelStep):
        return program.written[place]
    if isinstance(step, MatmulStep):
        return (step.out,)
    return tuple(slot for _, slot in step.outs) if isinstance(step, CallStep) else ()
