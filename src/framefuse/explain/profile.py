"""Tables what a call's compiled code does, step by step, beside what the machine can do: `framefuse.profile`."""

from __future__ import annotations

import functools
import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from framefuse.errors import UserError, kind_of
from framefuse.explain.amounts import (
    Sizes,
    bytes_of,
    device_of,
    flops_of,
    is_view,
    kind_of_work,
    known_sizes,
    lines_of,
    shape_of,
    touched,
)
from framefuse.explain.limits import Limit, arithmetic, bandwidth
from framefuse.explain.step_times import StepTime, measured
from framefuse.explain.timing import answering
from framefuse.ir.numbers import Symbol
from framefuse.ir.source import Line
from framefuse.ir.values import Arguments, Keywords, Value
from framefuse.runtime.function import compiled_function

WARMING = 3  # calls before those that are measured, in which the call is compiled
SHOWN = 40  # rows of the text


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """Steps of a call that are alike: ``kind`` is kernel, product, call, or rest, which is what no step took.

    ``seconds`` are those of one call, all ``count`` runs together, ``share`` is their part of it. ``bytes`` are those
    that one run reads and writes, each buffer counted once, None where only the run tells; ``recorded`` says that they
    are those of the recorded call, as nothing told this one's sizes. ``of_bandwidth`` is what share of the measured
    bandwidth of a copy they make (more than 1: what is read was in a cache), ``of_arithmetic`` what share of the
    measured arithmetic of a large product the product makes.
    """

    kind: str
    title: str
    shapes: str
    device: str
    count: int
    seconds: float
    share: float
    bytes: int | None = None
    recorded: bool = False
    of_bandwidth: float | None = None
    of_arithmetic: float | None = None
    lines: tuple[Line, ...] = ()


@dataclass(frozen=True, slots=True)
class Profile:
    """What :func:`framefuse.profile` found: ``seconds`` of one call, the median of ``calls`` ones, and its ``rows``,
    what took longest first; ``limits`` say what the shares are of, and how that was measured.
    """

    name: str
    seconds: float
    calls: int
    rows: tuple[ProfileRow, ...]
    limits: tuple[str, ...]

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return f"<pre>{html.escape(str(self))}</pre>"

    def __str__(self) -> str:
        head = f"{self.name}: {_duration(self.seconds)} a call, median of {self.calls}, measured step by step"
        columns = f"{'step':<60} {'count':>5} {'time':>9} {'share':>6} {'bytes':>9} {'copy':>6} {'peak':>6}  lines"
        lines = [head, columns, *map(_text, self.rows[:SHOWN])]
        if len(self.rows) > SHOWN:
            rest = self.rows[SHOWN:]
            lines.append(f"and {len(rest)} more rows, {_duration(sum(row.seconds for row in rest))}")
        return "\n".join([*lines, *(f"limit: {limit}" for limit in self.limits)])


def profile(function: Value, args: Arguments, kwargs: Keywords, calls: int) -> Profile:
    """What :func:`framefuse.profile` gives."""
    if not callable(function):
        raise UserError(f"{kind_of(function)} cannot be called. Give what framefuse.compile returned, or what calls it")
    if not isinstance(calls, int) or calls < 1:
        raise UserError(f"calls is {calls!r}. Give how many calls are to be measured, at least 1")
    call = functools.partial(function, *args, **kwargs)
    for _ in range(WARMING):
        call()
    found = measured(call, calls)
    if not found.steps:
        raise UserError("no compiled code ran in these calls. framefuse.explain says why, for what was compiled")
    given = sizes_of_call(function, args, kwargs)
    rows = _rows(found.steps.values(), found.seconds, given)
    limits = tuple(limit.how for limit in dict.fromkeys(_limits(found.steps.values())))
    name = getattr(function, "__qualname__", type(function).__name__)
    return Profile(name, found.seconds, calls, rows, limits)


def sizes_of_call(function: Value, args: Arguments, kwargs: Keywords) -> Mapping[int, Sizes]:
    """The sizes of a call by the identity of what takes it: its graph, and the cases of its backward pass."""
    state = compiled_function(function.func if isinstance(function, functools.partial) else function)
    if state is None or isinstance(function, functools.partial):
        return {}
    answer = answering(state, args, kwargs)
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
    moved = None if is_view(step.item) else bytes_of(code.schedule, buffers, sizes)
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
    return of_bandwidth, amounts.flops * step.runs / step.seconds / _arithmetic_of(step).speed


def _arithmetic_of(step: StepTime) -> Limit:
    code = step.product.stages.code
    assert code is not None
    _, written = touched(step.item)
    return arithmetic(device_of(step.item), code.schedule.memories[written[0]].dtype.torch)


def _limits(steps: Iterable[StepTime]) -> Iterable[Limit]:
    for step in steps:
        yield bandwidth(device_of(step.item))
        if amounts_of(step, {}).flops is not None:
            yield _arithmetic_of(step)


def _rows(steps: Iterable[StepTime], whole: float, given: Mapping[int, Sizes]) -> tuple[ProfileRow, ...]:
    alike: dict[tuple[object, ...], list[tuple[StepTime, Amounts]]] = {}
    for step in steps:
        amounts = amounts_of(step, given)
        key = (*kind_of_work(step.item), device_of(step.item), amounts, lines_of(step.item))
        alike.setdefault(key, []).append((step, amounts))
    rows = [_row([step for step, _ in group], group[0][1], whole) for group in alike.values()]
    rows.sort(key=lambda row: -row.seconds)
    rest = max(0.0, whole - sum(row.seconds for row in rows))
    title = "guards, allocations, views, eager code, and measuring"
    return (*rows, ProfileRow("rest", title, "", "", 1, rest, rest / whole))


def _row(steps: list[StepTime], amounts: Amounts, whole: float) -> ProfileRow:
    first = steps[0]
    seconds, runs = sum(step.seconds for step in steps), sum(step.runs for step in steps)
    together = StepTime(first.item, first.product, seconds, runs)
    kind, title = kind_of_work(first.item)
    return ProfileRow(
        kind, title, amounts.shapes, device_of(first.item), runs, seconds, seconds / whole, amounts.bytes,
        amounts.recorded, *shares_of(together, amounts), lines_of(first.item),
    )  # fmt: skip


def _text(row: ProfileRow) -> str:
    named = f"{row.kind:<7} {row.title} {row.shapes}" if row.kind != "rest" else row.title
    moved = "" if row.bytes is None else ("~" if row.recorded else "") + _size(row.bytes)
    shares = (f"{share:.0%}" if share is not None else "" for share in (row.of_bandwidth, row.of_arithmetic))
    start = f"{named:<60.60} {row.count:>5} {_duration(row.seconds):>9} {row.share:>6.1%} {moved:>9}"
    places = ", ".join(line.place for line in row.lines[:3]) + (", ..." if len(row.lines) > 3 else "")
    return f"{start} {' '.join(f'{share:>6}' for share in shares)}  {places}".rstrip()


def _size(count: int) -> str:
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


def _duration(seconds: float) -> str:
    if seconds < 1e-3:
        return f"{seconds * 1e6:.2f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"
