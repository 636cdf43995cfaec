"""Collects what a page of a report shows of one compiled function: marked lines, compilations, work, memory."""

from __future__ import annotations

import linecache
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath

from framefuse.explain.alike import Alike, WorkRow, alike
from framefuse.explain.amounts import (
    Sizes,
    Work,
    bytes_of,
    kind_of_work,
    known_sizes,
    lines_of,
    shape_of,
    touched,
    value_of,
)
from framefuse.explain.costly import costly
from framefuse.explain.left import MEANT, MOST, Left, left_of, price_of, times
from framefuse.explain.memory_curve import Curve, Part, curve
from framefuse.explain.report import Explanation, describe
from framefuse.explain.shares import amounts_of, settle, shares_of
from framefuse.explain.step_times import StepTime
from framefuse.explain.timing import Timing
from framefuse.explain.unfused import Border, borders, is_copy
from framefuse.ir.loops import Kernel
from framefuse.ir.loops.key import key_of
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.schedule import RunCall, RunKernel, RunMatmul, Schedule
from framefuse.ir.source import Line
from framefuse.runtime.function import CompiledFunction
from framefuse.runtime.recorded_call import Product

AROUND = 2  # lines of the program shown before and after a marked one
CODES = 400  # kernels of which a page has the code


@dataclass(frozen=True, slots=True)
class GraphPage:
    """One compiled trace, or a case of its backward pass; ``arena`` is the memory it works in, in bytes."""

    mark: str
    title: str
    line: Line
    why: str | None
    seconds: Mapping[str, float]
    work: tuple[WorkRow, ...]
    arena: int | None
    call: int = 0  # the number of the call that compiled it; 0: none did
    saved: tuple[int, int | None] | None = None
    facts: tuple[tuple[str, int], ...] = ()
    memory: Curve | None = None  # over this graph and the backward passes behind it
    backward: bool = False  # whether it is a case of a backward pass

    @property
    def copies(self) -> tuple[int, int, float]:
        """How many of the steps only bring a value into another layout, the bytes that they write, and their seconds:
        measured where they were, else estimated.
        """
        found = [row for row in self.work if row.kind == "copy"]
        seconds = (row.seconds if row.seconds is not None else (row.estimate or 0) * 1e-9 for row in found)
        return len(found), sum(row.written or 0 for row in found), sum(seconds)

    @property
    def groups(self) -> tuple[Alike, ...]:
        """Its steps by what they are, the costliest first."""
        return alike(self.work)

    @property
    def titles(self) -> Mapping[str, str]:
        """The titles of steps by their marks."""
        return {row.mark: row.title for row in self.work}

    @property
    def timed(self) -> bool:
        """Whether the time of its steps was measured."""
        return any(row.seconds is not None for row in self.work)


@dataclass(slots=True)
class MarkedLine:
    """A line of the program: ``marks`` link to the steps that compute it, ``notes`` say what stays eager, and ``told``
    what divides graphs and loses nothing.
    """

    number: int
    text: str
    marks: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    told: list[str] = field(default_factory=list)

    @property
    def distinct(self) -> list[tuple[str, str, int]]:
        """The first step of each title, and how many have it."""
        firsts: dict[str, tuple[str, int]] = {}
        for mark, title in self.marks:
            first, count = firsts.get(title, (mark, 0))
            firsts[title] = first, count + 1
        return [(mark, title, count) for title, (mark, count) in firsts.items()]


@dataclass(frozen=True, slots=True)
class FunctionPage:
    """All that a page shows of one function."""

    explanation: Explanation
    graphs: tuple[GraphPage, ...]
    files: tuple[tuple[str, tuple[MarkedLine, ...]], ...]
    codes: tuple[tuple[str, str, str], ...]
    left: tuple[Left, ...]

    @property
    def timing(self) -> Timing | None:
        """What was measured of the whole call."""
        return self.explanation.timing if isinstance(self.explanation.timing, Timing) else None

    @property
    def title(self) -> str:
        """The function's name as it was written."""
        return self.explanation.name.rpartition("<locals>.")[2]

    @property
    def recorded(self) -> int:
        """The calls that neither ran compiled code nor were left eager: those that were recorded."""
        return max(0, self.explanation.calls - self.explanation.hits - self.explanation.eager_calls)

    @property
    def broken(self) -> int:
        """The breaks by which something is lost."""
        return sum(1 for why in self.explanation.breaks if why.code not in MEANT)

    @property
    def verdict(self) -> tuple[str, str]:
        """Whether it worked, in a word, and of which kind that word is: good, open or bad."""
        found = self.explanation
        if not found.graphs:
            return "Not compiled", "bad" if found.calls else "open"
        if found.calls > 3 and found.hits < 0.5 * found.calls:
            return "Mostly eager", "bad"
        if self.broken or found.stops:
            return "Compiled in parts", "open"
        return "Compiled whole", "good"

    @property
    def compiling(self) -> float:
        """Seconds of all compilations."""
        return sum(sum(graph.seconds.values()) for graph in self.graphs)

    @property
    def stages(self) -> list[str]:
        """The stages that any compilation went through, in order."""
        return list(dict.fromkeys(name for graph in self.graphs for name in graph.seconds))

    @property
    def steps(self) -> int:
        """How many steps all graphs have."""
        return sum(len(graph.work) for graph in self.graphs)

    @property
    def again(self) -> int:
        """How many graphs were compiled since an earlier one did not apply."""
        return sum(1 for graph in self.graphs if graph.why is not None)

    @property
    def peak(self) -> int:
        """Bytes over the call that holds most."""
        return max((graph.memory.peak.bytes for graph in self.graphs if graph.memory is not None), default=0)

    @property
    def saved(self) -> tuple[int, int | None] | None:
        """The bytes that the graph which keeps most has for its backward pass, and those of eager."""
        return max((graph.saved for graph in self.graphs if graph.saved), key=lambda saved: saved[0], default=None)

    @property
    def untimed(self) -> str:
        """Why nothing was measured."""
        timing = self.explanation.timing
        if isinstance(timing, str):
            return timing
        return "no call was timed. Ask for it: framefuse.report(f, path, *args, time=True)"


def page_of(
    state: CompiledFunction, prefix: str, explanation: Explanation | None = None,
    given: Mapping[int, Sizes] | None = None,
) -> FunctionPage:  # fmt: skip
    """What a page shows of one function; ``prefix`` makes its marks differ from those of others, ``given`` are the
    sizes of the call that was timed.
    """
    explained = describe(state) if explanation is None else explanation
    timing = explained.timing
    times = timing.steps if isinstance(timing, Timing) else {}
    settle(times.values(), given or {})
    collected = _Collected(prefix, times, given or {})
    for number, product in enumerate(state.products, 1):
        report = explained.graphs[number - 1]
        facts: dict[str, int] = {}
        for fact in product.stages.trace.assumptions.facts:
            facts[fact.kind] = facts.get(fact.kind, 0) + 1
        facts["tensor"] = facts.get("tensor", 0) + len(product.stages.trace.assumptions.inputs)
        kinds = tuple(sorted(facts.items(), key=lambda entry: -entry[1]))
        forward = collected.graph(f"graph {number}", product, report.line, product.why, report.saved, kinds)
        behind: list[Part] = []
        for piece, derivative in enumerate(product.stages.derivatives):
            for case in derivative.cases:
                title = f"backward {len(behind) + 1} of graph {number}"
                behind.append(Part(case, collected.graph(title, case, report.line, None, None, (), True), piece))
        collected.follow(Part(product, forward), behind)
    files = tuple(_files(collected.graphs, explained))
    left = left_of(explained)
    if isinstance(timing, Timing):
        rows = [row for graph in collected.graphs for row in graph.work]
        left += costly(rows, timing.whole, MOST - len(left))
    return FunctionPage(explained, tuple(collected.graphs), files, tuple(collected.codes.values()), left)


class _Collected:
    """The graphs of a function and the distinct kernels among their steps."""

    def __init__(self, prefix: str, times: Mapping[int, StepTime], given: Mapping[int, Sizes]) -> None:
        self.prefix, self.times, self.given = prefix, times, given
        self.graphs: list[GraphPage] = []
        self.codes: dict[object, tuple[str, str, str]] = {}

    def graph(
        self, title: str, product: Product, line: Line, why: str | None,
        saved: tuple[int, int | None] | None, facts: tuple[tuple[str, int], ...],
        backward: bool = False,
    ) -> str:  # fmt: skip
        """Adds the page of one graph; returns its mark."""
        mark = f"{self.prefix}g{len(self.graphs) + 1}"
        code = product.stages.code
        rows: list[WorkRow] = []
        arena = None
        if code is not None:
            between = borders(code.schedule)
            sizes = known_sizes(code.schedule, product.stages.graph.hints)
            rows = [
                replace(self.row(f"{mark}w{place}", item, code.schedule, sizes), borders=_borders(mark, between, place))
                for place, item in enumerate(code.schedule.items)
                if isinstance(item, RunKernel | RunMatmul | RunCall)
            ]
            arena = value_of(code.schedule.arena, sizes)
        page = GraphPage(
            mark, title, line, why, product.seconds, tuple(rows), arena, product.call, saved, facts, backward=backward
        )
        self.graphs.append(page)
        return mark

    def follow(self, forward: Part, behind: Sequence[Part]) -> None:
        """Adds the memory of a call to the page of its forward: over a backward pass of each piece, the last first."""
        one = {part.piece: part for part in reversed(behind)}
        order = sorted(one.values(), key=lambda part: -(part.piece or 0))
        place = next(place for place, page in enumerate(self.graphs) if page.mark == forward.mark)
        self.graphs[place] = replace(self.graphs[place], memory=curve(forward, order))

    def row(self, mark: str, item: Work, schedule: Schedule, sizes: Sizes) -> WorkRow:
        read, written = touched(item)
        shapes = ", ".join(shape_of(schedule.memories[memory]) for memory in written)
        amounts = bytes_of(schedule, read, sizes, item), bytes_of(schedule, written, sizes)
        estimate, code = None, ""
        if isinstance(item, RunKernel):
            estimate, code = value_of(item.work, sizes), self.code(item.kernel)
        measured = self.measured(item)
        kind, title = ("copy" if is_copy(item) else kind_of_work(item)[0]), kind_of_work(item)[1]
        return WorkRow(mark, kind, title, shapes, *amounts, estimate, lines_of(item), code, *measured)

    def measured(self, item: Work) -> tuple[float | None, float | None, float | None]:
        """The time of a step and its shares of the limits; nothing where no call was timed that runs it."""
        step = self.times.get(id(item))
        if step is None:
            return None, None, None
        return step.seconds, *shares_of(step, amounts_of(step, self.given))

    def code(self, kernel: Kernel) -> str:
        key = key_of(kernel)
        if key not in self.codes:
            if len(self.codes) == CODES:
                return ""
            self.codes[key] = f"{self.prefix}k{len(self.codes) + 1}", kernel.title, kernel_text(kernel)
        return self.codes[key][0]


def _borders(
    mark: str, between: Mapping[int, tuple[Border, ...]], place: int
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """The borders behind a step as a page shows them."""
    return tuple((each.why, tuple(f"{mark}w{reader}" for reader in each.readers)) for each in between.get(place, ()))


def _files(graphs: Iterable[GraphPage], explained: Explanation) -> Iterator[tuple[str, tuple[MarkedLine, ...]]]:
    """The lines of each file that something is known of, with some around them."""
    files: dict[str, dict[int, MarkedLine]] = {}

    def line_of(line: Line) -> MarkedLine:
        lines = files.setdefault(line.file, {})
        for number in range(max(1, line.line - AROUND), line.line + AROUND + 1):
            text = linecache.getline(line.file, number)
            if number not in lines and (text or number == line.line):
                lines[number] = MarkedLine(number, text.rstrip())
        return lines[line.line]

    for graph in graphs:
        for row in graph.work:
            for line in row.lines:
                line_of(line).marks.append((row.mark, row.title))
    eager = ((reason, f"ran eagerly {times(count)}") for reason, count in explained.stops)
    breaks = ((reason, f"a break{price_of(explained, reason)}") for reason in explained.breaks)
    for reason, what in (*breaks, *eager):
        if reason.line is not None:
            marked = line_of(reason.line)
            notes = marked.told if reason.code in MEANT else marked.notes
            notes.append(f"{what}: {reason.fact} [{reason.code}] {reason.advice}")

    def rank(entry: tuple[str, dict[int, MarkedLine]]) -> tuple[bool, bool]:
        """The function's own file comes first, then those where something stays eager."""
        file, lines = entry
        return not explained.place.startswith(f"{PurePath(file).name}:"), not any(line.notes for line in lines.values())

    for file, lines in sorted(files.items(), key=rank):
        yield file, tuple(lines[number] for number in sorted(lines))
