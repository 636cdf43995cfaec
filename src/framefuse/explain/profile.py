"""Tables what a call's compiled code does, step by step, beside what the machine can do: `framefuse.profile`."""

from __future__ import annotations

import functools
import html
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from framefuse.errors import Reason, UserError, kind_of
from framefuse.explain.amounts import (
    Sizes,
    device_of,
    kind_of_work,
    lines_of,
)
from framefuse.explain.break_times import BreakTime, break_times
from framefuse.explain.limits import Limit, bandwidth
from framefuse.explain.shares import Amounts, amounts_of, arithmetic_of, settle, shares_of, sizes_of_call
from framefuse.explain.step_times import StepTime, awake, measured
from framefuse.ir.source import Line
from framefuse.ir.stops import CATALOGUE
from framefuse.ir.values import Arguments, Keywords, Value

WARMING = 3  # calls before those that are measured, in which the call is compiled
SHOWN = 40  # rows of the text


@dataclass(frozen=True, slots=True)
class ProfileRow:
    """Steps of a call that are alike: ``kind`` is kernel, product, call, break, or rest, which is what none of these
    took. A break's time is that between compiled stretches: of the step that runs as it is, and of handing over.

    ``seconds`` are those of one call, all ``count`` runs together, ``share`` is their part of it. ``bytes`` are
    those that one run reads and writes, each buffer counted once and whole, but no more than a kernel reads
    elements of it, None where only the run tells; ``recorded`` says that they are those of the recorded call, as
    nothing told this one's sizes. ``of_bandwidth`` is what share of the measured bandwidth of a copy they make
    (more than 1: what is read was in a cache), ``of_arithmetic`` what share of the measured arithmetic of a large
    product the product makes.
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
    """What :func:`framefuse.profile` found: ``seconds`` of the fastest of ``calls`` calls, and its ``rows``,
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
        head = f"{self.name}: {_duration(self.seconds)} a call, the fastest of {self.calls}, measured step by step"
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
        with awake():
            found = measured(call, calls)
    if not found.steps:
        raise UserError("no compiled code ran in these calls. framefuse.explain says why, for what was compiled")
    given = sizes_of_call(function, args, kwargs)
    settle(found.steps.values(), given)
    rows = _rows(found.steps.values(), break_times(found), found.seconds, given)
    limits = tuple(limit.how for limit in dict.fromkeys(_limits(found.steps.values())))
    name = getattr(function, "__qualname__", type(function).__name__)
    return Profile(name, found.seconds, calls, rows, limits)


def _limits(steps: Iterable[StepTime]) -> Iterable[Limit]:
    for step in steps:
        yield bandwidth(device_of(step.item))
        if amounts_of(step, {}).flops is not None:
            yield arithmetic_of(step)


def _rows(
    steps: Iterable[StepTime], breaks: Mapping[Reason, BreakTime], whole: float, given: Mapping[int, Sizes]
) -> tuple[ProfileRow, ...]:
    alike: dict[tuple[object, ...], list[tuple[StepTime, Amounts]]] = {}
    for step in steps:
        amounts = amounts_of(step, given)
        key = (*kind_of_work(step.item), device_of(step.item), amounts, lines_of(step.item))
        alike.setdefault(key, []).append((step, amounts))
    rows = [_row([step for step, _ in group], group[0][1], whole) for group in alike.values()]
    for why, price in breaks.items():
        lines = () if why.line is None else (why.line,)
        took = price.runs, price.seconds, price.seconds / whole
        rows.append(ProfileRow("break", CATALOGUE[why.code].title, "", "", *took, lines=lines))
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
