"""Takes the time of each step of compiled code, by the ranges that compiled code opens for a profiler."""

from __future__ import annotations

import contextlib
import functools
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from framefuse.explain.amounts import Work, device_of
from framefuse.ir.schedule import RunCall, RunKernel, RunMatmul
from framefuse.ir.values import Value
from framefuse.runtime.function import live_functions
from framefuse.runtime.labels import Labels, listening
from framefuse.runtime.recorded_call import Product
from framefuse.runtime.weighing import MOST, SETTLE

WHOLE = "framefuse: "  # what the names of stretches begin with, of which steps are parts
CALLS = 5  # that are measured unless the caller says otherwise


class Event(Protocol):
    """A mark in the order of a device's work: ``torch.Event``."""

    def record(self) -> None: ...
    def elapsed_time(self, other: Value) -> float: ...


@dataclass(frozen=True, slots=True)
class StepTime:
    """An item of a schedule: seconds of a call that it took, all its runs together, and how often it ran in one."""

    item: Work
    product: Product
    seconds: float
    runs: int


@dataclass(frozen=True, slots=True)
class Piece:
    """A run of a compiled stretch as a whole, in seconds of the host's clock."""

    product: Product
    begun: float
    ended: float


@dataclass(slots=True)
class _Range:
    label: str
    entered: float
    marks: tuple[Event, Event] | None = None
    start: float = 0.0
    seconds: float = 0.0  # of the host

    def on(self, device: str) -> float:
        """The seconds of a device."""
        if self.marks is None or device == "cpu":
            return self.seconds
        begun, ended = self.marks
        return begun.elapsed_time(ended) * 1e-3


@dataclass(frozen=True, slots=True)
class Measured:
    """What the fastest of some calls took: its seconds, its steps by the identity of the item, and the compiled
    stretches that ran, in order; it ``ended`` by the host's clock.
    """

    seconds: float
    steps: Mapping[int, StepTime]
    pieces: tuple[Piece, ...] = ()
    ended: float = 0.0


_one_at_a_time = threading.Lock()


def measured(
    call: Callable[[], object], calls: int = CALLS, event: Callable[[], Event] | None = None,
    behind: Callable[[], object] | None = None,
) -> Measured:  # fmt: skip
    """Makes some calls and takes the time of each step of compiled code in the fastest one: so the steps and what is
    between them make the whole.

    ``event`` makes the marks by which steps of other devices than the CPU are timed: their calls return before they
    have ended. A captured graph runs its steps at once: they have no time of their own. What runs ``behind`` each call
    is not timed.
    """
    if event is None and torch.accelerator.is_available():
        event = _event
    rounds: list[list[_Range]] = []
    wholes: list[float] = []
    ends: list[float] = []
    wait = torch.accelerator.synchronize if event is _event else _nothing
    with _one_at_a_time:
        for _ in range(calls):
            wait()
            found: list[_Range] = []
            rounds.append(found)
            with listening(functools.partial(_enter, event), functools.partial(_leave, found)):
                start = time.perf_counter()
                call()
                ends.append(time.perf_counter())
                wait()
                wholes.append(time.perf_counter() - start)
            if behind is not None:
                behind()
    ran = [number for number, found in enumerate(rounds) if found]  # a call that is weighed may be eager
    fastest = min(ran or range(calls), key=wholes.__getitem__)
    found = rounds[fastest]
    return Measured(wholes[fastest], _by_item(found), _pieces(found), ends[fastest])


@contextlib.contextmanager
def awake() -> Iterator[None]:
    """Inside, calls run compiled code though eager ones were faster; behind, the two are weighed anew."""
    weighed = [state.dispatch for state in live_functions() if state.dispatch.weighs]
    for dispatch in weighed:
        dispatch.weigh(MOST, 0)
    try:
        yield
    finally:
        for dispatch in weighed:
            dispatch.weigh(SETTLE, 0)


def _enter(event: Callable[[], Event] | None, label: str) -> _Range:
    entered = _Range(label, time.perf_counter())
    if event is not None and not label.startswith(WHOLE):
        entered.marks = event(), event()
        entered.marks[0].record()
    entered.start = time.perf_counter()
    return entered


def _leave(found: list[_Range], entered: _Range) -> None:
    entered.seconds = time.perf_counter() - entered.start
    if entered.marks is not None:
        entered.marks[1].record()
    found.append(entered)


def _event() -> Event:
    return torch.Event(torch.accelerator.current_accelerator(), enable_timing=True)


def _nothing() -> None:
    """A call on the CPU has ended when it returns."""


def _by_item(found: list[_Range]) -> dict[int, StepTime]:
    """The times of a call; a label is known by its identity, as many have the same text."""
    owners = dict(_labelled())
    times: dict[int, list[float]] = {}
    for each in found:
        if id(each.label) in owners:
            times.setdefault(id(each.label), []).append(each.on(device_of(owners[id(each.label)][0])))
    return {id(owners[label][0]): StepTime(*owners[label], sum(each), len(each)) for label, each in times.items()}


def _pieces(found: list[_Range]) -> tuple[Piece, ...]:
    """The runs of whole stretches, in the order in which they began."""
    owners = {
        id(labels.whole): product
        for state in live_functions()
        for product in state.products
        if isinstance(labels := product.stages.plan.labels, Labels) and labels.asked
    }
    wholes = [each for each in found if id(each.label) in owners]
    wholes.sort(key=lambda each: each.entered)
    return tuple(Piece(owners[id(each.label)], each.entered, each.start + each.seconds) for each in wholes)


def _labelled() -> Iterator[tuple[int, tuple[Work, Product]]]:
    """The labels that were asked for, by identity, with what they name."""
    for state in live_functions():
        for product in state.products:
            cases = (case for derivative in product.stages.derivatives for case in derivative.cases)
            for part in (product, *cases):
                labels = part.stages.plan.labels
                if isinstance(labels, Labels) and labels.asked:
                    for place, item in labels.items.items():
                        if isinstance(item, RunKernel | RunMatmul | RunCall):
                            yield id(labels.names[place]), (item, part)
