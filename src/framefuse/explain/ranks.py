"""Puts the reports of several processes side by side, the slowest marked."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from framefuse.explain.report_facts import FunctionFacts, ReportFacts, by_function
from framefuse.explain.tables import Cell, Table, Tables
from framefuse.explain.units import duration, size

MUCH = 1.1  # times the least is worth a mark


def side_by_side(reports: Sequence[ReportFacts]) -> Tables:
    """A column for each rank: its script, then each function; the most of a row is marked where ranks differ."""
    ranks = sorted(reports, key=lambda report: (report.process.rank is None, report.process.rank or 0))
    names = tuple(report.title if report.process.rank is None else f"rank {report.process.rank}" for report in ranks)
    head = "what", *names
    scripts = Table("the script", head, tuple(_scripts(ranks)))
    tables = [scripts] if scripts.rows else []
    for name, functions in by_function(ranks).items():
        tables.append(Table(name, head, tuple(_rows(functions))))
    return Tables("ranks side by side", _slowest(ranks, names), tuple(tables))


def _slowest(ranks: Sequence[ReportFacts], names: Sequence[str]) -> str:
    used = [report.process.used for report in ranks]
    known = [each for each in used if each is not None]
    if len(known) < len(used) or max(known) <= MUCH * min(known):
        return "no rank is slower than the others"
    slow = names[used.index(max(known))]
    return f"{slow} is the slowest: {duration(max(known))} of processor, another {duration(min(known))}"


def _scripts(ranks: Sequence[ReportFacts]) -> Iterator[tuple[Cell, ...]]:
    """The time of each process: ranks wait for one another, so that the slow one is who had the processor longest."""
    for what, times in (
        ("time", [each.process.seconds for each in ranks]),
        ("processor", [each.process.used for each in ranks]),
    ):
        if any(time is not None for time in times):
            yield Cell(what), *_times(times)


def _rows(functions: Sequence[FunctionFacts | None]) -> Iterator[tuple[Cell, ...]]:
    yield Cell("calls"), *(Cell("-" if each is None else str(each.calls)) for each in functions)
    yield Cell("ran compiled code"), *(Cell("-" if each is None else str(each.hits)) for each in functions)
    there = [each for each in functions if each is not None]
    if any(each.compiled is not None for each in there):
        yield Cell("a call"), *_times([None if each is None else each.compiled for each in functions])
    yield Cell("compiling"), *_times([None if each is None else each.compiling for each in functions])
    yield Cell("memory, at most"), *_sizes([None if each is None else each.peak for each in functions])
    yield Cell("kept for backward"), *_sizes([None if each is None else each.kept for each in functions])
    for what, told in (
        ("compiled again", [() if each is None else each.again for each in functions]),
        ("break", [() if each is None else each.breaks for each in functions]),
        ("eager", [() if each is None else each.stops for each in functions]),
    ):
        for text in dict.fromkeys(text for texts in told for text in texts):
            some = not all(text in texts for texts in told)
            yield Cell(f"{what}: {text}"), *(Cell("yes", some) if text in texts else Cell("-") for texts in told)


def _times(values: Sequence[float | None]) -> tuple[Cell, ...]:
    return _marked([(value, duration(value or 0)) for value in values])


def _sizes(values: Sequence[int | None]) -> tuple[Cell, ...]:
    return _marked([(value, size(value)) for value in values])


def _marked(values: Sequence[tuple[float | None, str]]) -> tuple[Cell, ...]:
    """The texts of numbers; the most is marked where it is much more than the least."""
    known = [value for value, _ in values if value is not None]
    most = max(known, default=0)
    differs = most > MUCH * min(known, default=0)
    return tuple(Cell("-") if value is None else Cell(text, differs and value == most) for value, text in values)
