"""Finds what passes between the steps of a schedule by way of memory, and why it is not fused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from framefuse.explain.amounts import touched
from framefuse.ir.schedule import RunCall, RunKernel, RunMatmul, Schedule

BY_LIBRARY = "a call of the library makes it"
BY_PRODUCT = "a product is a step of its own"


@dataclass(frozen=True, slots=True)
class Border:
    """A buffer that the step at ``writer`` leaves in memory for those at ``readers``, places among the items."""

    writer: int
    readers: tuple[int, ...]
    why: str


def borders(schedule: Schedule) -> Mapping[int, tuple[Border, ...]]:
    """The borders by the place of the step that writes."""
    notes = dict(schedule.notes)
    written: dict[int, int] = {}
    readers: dict[int, dict[int, None]] = {}
    for place, item in enumerate(schedule.items):
        reads, writes = touched(item)
        for number in reads:
            base = _base(schedule, number)
            if base in written:
                readers.setdefault(base, {})[place] = None
        for number in writes:
            written.setdefault(_base(schedule, number), place)
    found: dict[int, list[Border]] = {}
    for number, places in readers.items():
        others = tuple(place for place in places if place != written[number])
        if others:
            why = _why(schedule, written[number], number, others, notes)
            found.setdefault(written[number], []).append(Border(written[number], others, why))
    return {place: tuple(each) for place, each in found.items()}


def _why(schedule: Schedule, writer: int, number: int, readers: tuple[int, ...], notes: Mapping[int, str]) -> str:
    item = schedule.items[writer]
    if isinstance(item, RunMatmul):
        return BY_PRODUCT
    if isinstance(item, RunCall):
        return BY_LIBRARY
    by_kernels = all(isinstance(schedule.items[place], RunKernel) for place in readers)
    whole = "partial results of one kernel are the next one's" if by_kernels else "it is read from memory"
    return notes.get(number, whole)


def _base(schedule: Schedule, number: int) -> int:
    """The buffer whose memory a view is of."""
    while schedule.memories[number].place == "view":
        number = schedule.memories[number].base
    return number


def is_copy(item: object) -> bool:
    """Whether a step computes nothing: it brings a value into another layout."""
    return isinstance(item, RunKernel) and item.kernel.title == "copy"
