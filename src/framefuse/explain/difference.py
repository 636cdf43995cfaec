"""Says in what two reports differ: steps, breaks, compilations, copies, memory, time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from framefuse.explain.report_facts import FunctionFacts, ReportFacts, StepFacts, by_function
from framefuse.explain.tables import Cell, Table, Tables
from framefuse.explain.units import duration, size

MUCH = 1.1  # times as long is slower: repeated measurements differ by less on a quiet machine
NONE = "-"
SYMBOL = re.compile(r"\bs\d+\b")  # of a size in a shape
Row = tuple[Cell, Cell, Cell]


def difference(before: ReportFacts, after: ReportFacts) -> Tables:
    """The rows in which two reports differ, for each function; what is worse in the later one is marked."""
    tables = []
    for name, (old, new) in _pairs(before, after):
        rows = tuple(_rows(old, new))
        if rows:
            tables.append(Table(name, ("what", before.title, after.title), rows))
    worse = sum(any(cell.worse for cell in row) for table in tables for row in table.rows)
    count = sum(len(table.rows) for table in tables)
    line = f"{count} differences, {worse} for the worse" if tables else "no difference"
    return Tables(f"{before.title} and {after.title}", line, tuple(tables))


def _pairs(before: ReportFacts, after: ReportFacts) -> Iterable[tuple[str, Sequence[FunctionFacts | None]]]:
    """The functions of both by their names; where each has one alone these are compared, though it was renamed."""
    found = by_function((before, after))
    if len(before.functions) == len(after.functions) == 1 and len(found) == 2:
        return [(", then ".join(found), (before.functions[0], after.functions[0]))]
    return found.items()


def _rows(old: FunctionFacts | None, new: FunctionFacts | None) -> Iterator[Row]:
    if old is None or new is None:
        yield Cell("the function"), Cell(NONE if old is None else "there"), Cell(NONE if new is None else "there")
        return
    yield from _numbers(old, new)
    for what, gone, come in (
        ("break", old.breaks, new.breaks), ("eager", old.stops, new.stops), ("compiled again", old.again, new.again),
    ):  # fmt: skip
        yield from _texts(what, gone, come)
    yield from _steps(old.steps, new.steps)


def _numbers(old: FunctionFacts, new: FunctionFacts) -> Iterator[Row]:
    if old.compiled is not None and new.compiled is not None:
        yield from _times("a call, compiled", old.compiled, new.compiled)
    amounts = (
        ("memory, at most", old.peak, new.peak),
        ("kept for backward", old.kept, new.kept),
        ("copies, bytes", old.copies[1], new.copies[1]),
    )
    for what, first, second in amounts:
        if first != second:
            yield Cell(what), Cell(size(first)), Cell(size(second), second > first)
    counts = (
        ("copies", old.copies[0], new.copies[0]),
        ("breaks", len(old.breaks), len(new.breaks)),
        ("compiled again", len(old.again), len(new.again)),
    )
    for what, first, second in counts:
        if first != second:
            yield Cell(what), Cell(str(first)), Cell(str(second), second > first)


def _times(what: str, old: float, new: float) -> Iterator[Row]:
    if max(old, new) > MUCH * min(old, new):
        yield Cell(what), Cell(duration(old)), Cell(duration(new), new > old)


def _texts(what: str, old: Sequence[str], new: Sequence[str]) -> Iterator[Row]:
    """What is said in one of them only."""
    for text in dict.fromkeys((*old, *new)):
        if (text in old) != (text in new):
            row = Cell(f"{what}: {text}"), Cell("yes" if text in old else NONE)
            yield *row, Cell("yes" if text in new else NONE, text in new)


def _steps(old: Sequence[StepFacts], new: Sequence[StepFacts]) -> Iterator[Row]:
    """Steps of one report only, those that run in another number, and those that take another time."""
    before, after = _by_key(old), _by_key(new)
    for key in dict.fromkeys((*before, *after)):
        first, second = before.get(key), after.get(key)
        if first is None or second is None or first.count != second.count:
            yield Cell(_title(first or second)), Cell(_count(first)), Cell(_count(second))
        elif first.measured and second.measured and first.seconds is not None and second.seconds is not None:
            yield from _times(_title(first), first.seconds, second.seconds)


def _by_key(steps: Sequence[StepFacts]) -> Mapping[tuple[object, ...], StepFacts]:
    """The steps by what makes those of two reports the same: lines move and symbols change when a file is edited."""
    found: dict[tuple[object, ...], StepFacts] = {}
    for step in steps:
        key = step.backward, step.kind, step.title, SYMBOL.sub("s", step.shapes)
        found[key] = _together(found[key], step) if key in found else step
    return found


def _together(one: StepFacts, other: StepFacts) -> StepFacts:
    seconds = None if one.seconds is None or other.seconds is None else one.seconds + other.seconds
    measured = one.measured and other.measured
    return replace(one, count=one.count + other.count, seconds=seconds, measured=measured)


def _title(step: StepFacts | None) -> str:
    assert step is not None  # one of two is there
    half = "backward " if step.backward else ""
    return f"{half}{step.kind} {step.title} {step.shapes} {' '.join(step.lines[:2])}".rstrip()


def _count(step: StepFacts | None) -> str:
    if step is None:
        return NONE
    time = f", {duration(step.seconds)}" if step.measured and step.seconds is not None else ""
    return f"x{step.count}{time}"
