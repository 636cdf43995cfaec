"""Keeps what a report tells as plain facts, which a page carries as JSON, so that reports can be compared."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from framefuse.errors import Reason, UserError
from framefuse.explain.alike import WorkRow, grouped
from framefuse.explain.page_data import FunctionPage
from framefuse.ir.values import Value

FORM = 1  # of the facts: a page of another is not read
ELEMENT = re.compile(r'<script type="application/json" id="facts">(.*?)</script>', re.DOTALL)


@dataclass(frozen=True, slots=True)
class StepFacts:
    """Steps of a function that are alike: how many, the bytes that all of them read and write, and their seconds:
    measured where ``measured``, else estimated; None: neither.
    """

    backward: bool
    kind: str
    title: str
    shapes: str
    lines: tuple[str, ...]
    count: int
    bytes: int | None
    seconds: float | None
    measured: bool


@dataclass(frozen=True, slots=True)
class FunctionFacts:
    """What a page tells of one function: ``eager`` and ``compiled`` are seconds of a call, if they were measured,
    ``compiling`` those of its compilations, ``again`` why each but the first was made; ``peak`` and ``kept`` are bytes
    over the call that holds most.
    """

    name: str
    place: str
    calls: int
    hits: int
    eager: float | None
    compiled: float | None
    compiling: float
    again: tuple[str, ...]
    breaks: tuple[str, ...]
    stops: tuple[str, ...]
    steps: tuple[StepFacts, ...]
    peak: int
    kept: int

    @property
    def copies(self) -> tuple[int, int]:
        """How many steps only bring a value into another layout, and the bytes that they move."""
        found = [step for step in self.steps if step.kind == "copy"]
        return sum(step.count for step in found), sum(step.bytes or 0 for step in found)


@dataclass(frozen=True, slots=True)
class Process:
    """What ran a script: its ``rank``, if it was one of several, the ``seconds`` that the script took, and those of the
    processor that it ``used``.
    """

    rank: int | None = None
    seconds: float | None = None
    used: float | None = None


@dataclass(frozen=True, slots=True)
class ReportFacts:
    """What a page tells."""

    functions: tuple[FunctionFacts, ...]
    process: Process = Process()
    form: int = FORM
    title: str = field(default="", compare=False)  # the name of its file

    def json(self) -> str:
        """The facts as JSON that ends no element of a page."""
        return json.dumps(asdict(self)).replace("<", "\\u003c")


def facts_of(page: FunctionPage) -> FunctionFacts:
    """The facts of one function."""
    explained, timing = page.explanation, page.timing
    halves = [
        (backward, group)
        for backward in (False, True)
        for group in grouped(row for graph in page.graphs if graph.backward is backward for row in graph.work)
    ]
    curves = [graph.memory for graph in page.graphs if graph.memory is not None]
    return FunctionFacts(
        name=explained.name,
        place=explained.place,
        calls=explained.calls,
        hits=explained.hits,
        eager=None if timing is None else timing.eager,
        compiled=None if timing is None else timing.compiled,
        compiling=page.compiling,
        again=tuple(graph.why for graph in explained.graphs if graph.why is not None),
        breaks=tuple(map(_said, explained.breaks)),
        stops=tuple(_said(reason) for reason, _ in explained.stops),
        steps=tuple(_step(backward, group) for backward, group in halves),
        peak=page.peak,
        kept=max((curve.kept for curve in curves), default=0),
    )


def _step(backward: bool, rows: Sequence[WorkRow]) -> StepFacts:
    first = rows[0]
    measured = all(row.seconds is not None for row in rows)
    times = [row.seconds if measured else row.estimate for row in rows]
    known = [time for time in times if time is not None]
    moved = [(row.read or 0) + (row.written or 0) for row in rows if row.read is not None or row.written is not None]
    return StepFacts(
        backward=backward,
        kind=first.kind,
        title=first.title,
        shapes=first.shapes,
        lines=tuple(line.place for line in first.lines),
        count=len(rows),
        bytes=sum(moved) if moved else None,
        seconds=sum(known) * (1 if measured else 1e-9) if known else None,
        measured=measured,
    )


def _said(reason: Reason) -> str:
    place = "" if reason.line is None else f"{reason.line.place} "
    return f"{place}{reason.fact} [{reason.code}]"


def read(path: str | Path) -> ReportFacts:
    """The facts of a page that framefuse wrote.

    Raises:
        UserError: the file cannot be read, or is no such page.
    """
    try:
        found = ELEMENT.search(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path} cannot be read: {error}. Give a page that framefuse.report wrote") from None
    try:
        given = json.loads(found[1]) if found is not None else {}
        if given["form"] != FORM:
            raise UserError(f"{path} is of another version of framefuse. Write both reports by one version")
        functions = tuple(map(_function, given.pop("functions")))
        return ReportFacts(functions, Process(**given["process"]), title=Path(path).name)
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{path} is no page of framefuse. Give one that framefuse.report wrote") from None


def _function(given: Mapping[str, Value]) -> FunctionFacts:
    steps = tuple(StepFacts(**{**step, "lines": tuple(step["lines"])}) for step in given["steps"])
    texts = {name: tuple(given[name]) for name in ("again", "breaks", "stops")}
    return FunctionFacts(**{**given, **texts, "steps": steps})


def by_function(reports: Sequence[ReportFacts]) -> Mapping[str, tuple[FunctionFacts | None, ...]]:
    """What each report tells of each function, by its name and file; the second of a name is another one."""
    found: dict[str, list[FunctionFacts | None]] = {}
    for number, report in enumerate(reports):
        seen: dict[str, int] = {}
        for function in report.functions:
            name = f"{function.name} ({function.place.partition(':')[0]})"
            seen[name] = seen.get(name, 0) + 1
            title = name if seen[name] == 1 else f"{name}, number {seen[name]}"
            found.setdefault(title, [None] * len(reports))[number] = function
    return {name: tuple(functions) for name, functions in found.items()}
