"""Says what a timed step moved and computed, and which shares of the machine's limits that is."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from framefuse.explain.amounts import Sizes, bytes_of, device_of, flops_of, is_view, known_sizes, shape_of, touched
from framefuse.explain.limits import Limit, arithmetic, bandwidth
from framefuse.explain.step_times import StepTime
from framefuse.explain.timing import answering
from framefuse.ir.numbers import Symbol
from framefuse.ir.values import Arguments, Keywords, Value
from framefuse.runtime.function import behind, compiled_function


def sizes_of_call(function: Value, args: Arguments, kwargs: Keywords) -> Mapping[int, Sizes]:
    """The sizes of a call by the identity of what takes it: its graph, and the cases of its backward pass."""
    function, before, named = behind(function)
    state = compiled_function(function)
    if state is None:
        return {}
    answer = answering(state, (*before, *args), {**named, **kwargs})
    if answer.product is None or answer.hit is None:
        return {}
    words = answer.hit.numbers
    places = answer.product.stages.guards.number_of.items()
    sizes = {symbol: words[place] for symbol, place in places if isinstance(symbol, Symbol) and place < len(words)}
    cases = (case for derivative in answer.product.stages.derivatives for case in derivative.cases)
    return {id(part): sizes for part in (answer.product, *cases)}


@dataclass(frozen=True, slots=True)
class Amounts:
    """What one run of a step writes, moves and computes; ``recorded`` as in :class:`ProfileRow`."""

    shapes: str
    bytes: int | None
    flops: int | None
    recorded: bool


def amounts_of(step: StepTime, given: Mapping[int, Sizes]) -> Amounts:
    """The amounts of a step at the sizes of the call, else at the recorded ones."""
    code = step.product.stages.code
    assert code is not None  # it has items
    hints, actual = step.product.stages.graph.hints, given.get(id(step.product), {})
    sizes = known_sizes(code.schedule, {**hints, **actual})
    read, written = touched(step.item)
    buffers = dict.fromkeys((*read, *written))
    recorded = bytes_of(code.schedule, buffers, known_sizes(code.schedule, actual)) is None
    moved = None if is_view(step.item) else bytes_of(code.schedule, buffers, sizes, step.item)
    shapes = ", ".join(shape_of(code.schedule.memories[number], sizes) for number in written)
    return Amounts(shapes, moved, flops_of(step.item, code.schedule, sizes), recorded)


def shares_of(step: StepTime, amounts: Amounts) -> tuple[float | None, float | None]:
    """The shares of the device's bandwidth and arithmetic that a step makes."""
    if step.seconds <= 0:
        return None, None
    moved = None if amounts.bytes is None else amounts.bytes * step.runs / step.seconds
    device = device_of(step.item)
    of_bandwidth = None if moved is None else moved / bandwidth(device).speed
    if amounts.flops is None:
        return of_bandwidth, None
    return of_bandwidth, amounts.flops * step.runs / step.seconds / arithmetic_of(step).speed


def settle(steps: Iterable[StepTime], given: Mapping[int, Sizes]) -> None:
    """Raises limits that a step exceeds, before shares are told: all are of the same."""
    for step in steps:
        flops = amounts_of(step, given).flops
        if flops is not None and step.seconds > 0:
            arithmetic_of(step, flops * step.runs / step.seconds)


def arithmetic_of(step: StepTime, seen: float = 0.0) -> Limit:
    """What a product of the step's element type can be at most."""
    code = step.product.stages.code
    assert code is not None
    _, written = touched(step.item)
    return arithmetic(device_of(step.item), code.schedule.memories[written[0]].dtype.torch, seen)
