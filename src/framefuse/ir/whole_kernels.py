"""Holds functions that the user marked to one kernel: finds what of a graph is theirs, and says where it is more."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import CodeType

from framefuse.errors import Reason, UserError
from framefuse.ir.marks import WHOLE
from framefuse.ir.schedule import RunCall, RunKernel, RunMatmul, Schedule
from framefuse.ir.source import Line, Site
from framefuse.ir.trace import Trace


def refuse(reasons: Iterable[Reason | None]) -> None:
    """Raises UserError where one of these is why code of a marked function is not compiled."""
    if not WHOLE:
        return
    for reason in reasons:
        line = reason.line if reason is not None else None
        code = next((code for code in WHOLE if line is not None and _is_of(line, code)), None)
        if reason is not None and line is not None and code is not None:
            raise _error(line, code, f"this cannot be part of a kernel: {reason.fact.rstrip('.')}")


def hold(trace: Trace, schedule: Schedule) -> None:
    """Raises UserError where a call of a marked function becomes more than one kernel."""
    if not WHOLE:
        return
    for code in WHOLE:
        lines, calls = _lines(trace, code)
        if not lines:
            continue
        kernels = []
        for item in schedule.items:
            found = [line for line in _lines_of(item) if line in lines]
            if not found:
                continue
            if not isinstance(item, RunKernel):
                name = item.node.attr("name") if isinstance(item, RunCall) else "a product"
                raise _error(found[0], code, f"{name} is a call of a library")
            kernels.append(found)
        if len(kernels) > calls:
            fact = f"it takes {len(kernels)} kernels, of which one ends before this"
            earlier = {line for found in kernels[:-1] for line in found}
            begins = min(kernels[-1], key=lambda line: (line in earlier, line.line))
            raise _error(begins, code, fact, "Split the function here")


def _error(line: Line, code: CodeType, fact: str, advice: str = "Take it out of the function") -> UserError:
    text = f"{line}\n    {line.text}\n{WHOLE[code]} is marked by framefuse.kernel, and {fact}. {advice}"
    return UserError(text)


def _is_of(line: Line, code: CodeType) -> bool:
    """Whether a line is of a function, or of one that this called, as far as the line knows who did."""
    within = (line.file, line.function) == (code.co_filename, code.co_qualname)
    return within or _site(line, code) is not None


def _site(line: Line | None, code: CodeType) -> Site | None:
    """The instruction of a function that runs at a line, or called what does."""
    site = line.site if line is not None else None
    while site is not None and site.code is not code:
        site = site.caller
    return site


def _lines(trace: Trace, code: CodeType) -> tuple[set[Line], int]:
    """The lines of what calls of a function compute, but those that others compute too; and how many calls there are.
    A call is told from the one before it by who called, or since it begins again.
    """
    own, others, calls = set(), set(), 0
    last: Site | None = None
    for call in trace.calls:
        site = _site(call.line, code)
        if call.line is None or site is None:
            others |= {call.line}
            continue
        own.add(call.line)
        calls += last is None or site.caller is not last.caller or site.step < last.step
        last = site
    return own - others, calls


def _lines_of(item: object) -> Iterator[Line]:
    """The user's lines that a step computes."""
    if isinstance(item, RunKernel):
        yield from item.kernel.lines
    elif isinstance(item, RunMatmul) and item.line is not None:
        yield item.line
    elif isinstance(item, RunCall) and item.node.line is not None:
        yield item.node.line
