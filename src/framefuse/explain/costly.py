"""Says which steps take most of a timed call, how near to the machine's limits they are, and what would spare time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from framefuse.explain.alike import Alike, WorkRow, alike
from framefuse.explain.left import Left
from framefuse.explain.units import duration, share
from framefuse.ir.source import Line

LEAST = 0.05  # of a call that is worth a line
NEAR = 0.6  # of a limit: what is left above it is little
SHORT = 10e-6  # seconds of a step that mostly starts and ends

HALVES = "Nothing is left but less to move: 16-bit floats halve its bytes."
NARROW = "Nothing is left but less to multiply: 16-bit floats, or fewer rows, make it faster."
MEASURE = 'Let other forms of it be measured: framefuse.compile(f, mode="max-autotune").'
LARGER = "Give it more at once (a larger batch): so short a step mostly begins and ends."
AROUND = "guards, autograd, and Python around compiled code"
MORE = "Give a call more to do (a larger batch); on a GPU the mode reduce-overhead repeats its launches at once."
LIBRARY = "It is torch's own function: write it in operations that fuse, where the size of the call allows that."
LAYOUT = "Give what it copies in the layout in which it is read (contiguous, or channels_last)."


def costly(rows: Sequence[WorkRow], whole: float, most: int) -> tuple[Left, ...]:
    """What takes most of a timed call of ``whole`` seconds, the slowest first, each with one thing to do: steps that
    are alike, and what is in no step.
    """
    timed = [row for row in rows if row.seconds is not None]
    found = []
    for group in alike(timed):
        seconds = group.seconds or 0.0
        found.append((seconds, Left(_fact(group, seconds / whole), _advice(group))))
    if timed:
        rest = max(0.0, whole - sum(seconds for seconds, _ in found))
        found.append((rest, Left(f"{duration(rest)} a call, {share(rest / whole)} of it, is no step: {AROUND}", MORE)))
    found = sorted((entry for entry in found if entry[0] >= LEAST * whole), key=lambda entry: -entry[0])
    return tuple(left for _, left in found[:most])


def _fact(group: Alike, part: float) -> str:
    row, count = group.rows[0], len(group.rows)
    limit = ""
    moved, work = _of_limits(group)
    if work is not None and work >= (moved or 0):
        limit = f", at {share(min(work, 1))} of the arithmetic that this machine does at most"
    elif moved is not None:
        limit = f", at {share(min(moved, 1))} of the bandwidth of a copy"
    title = f"{count} times {row.title}" if count > 1 else row.title
    return f"{_lines(row.lines)}{row.kind} {title}: {duration(group.seconds or 0)} a call, {share(part)} of it{limit}"


def _advice(group: Alike) -> str:
    row = group.rows[0]
    moved, work = _of_limits(group)
    if row.kind == "copy":
        return LAYOUT
    if (work or 0) >= NEAR and (work or 0) >= (moved or 0):
        return NARROW
    if (moved or 0) >= NEAR:
        return HALVES
    if (group.seconds or 0) < SHORT * len(group.rows):
        return LARGER
    return LIBRARY if row.kind not in ("kernel", "product") else MEASURE


def _of_limits(group: Alike) -> tuple[float | None, float | None]:
    """The shares of bandwidth and arithmetic that all its steps make together."""
    return _share([(row.of_bandwidth, row.seconds) for row in group.rows]), _share(
        [(row.of_arithmetic, row.seconds) for row in group.rows]
    )


def _share(parts: Iterable[tuple[float | None, float | None]]) -> float | None:
    known = [(part, seconds) for part, seconds in parts if part is not None and seconds]
    whole = sum(seconds for _, seconds in known)
    return sum(part * seconds for part, seconds in known) / whole if whole else None


def _lines(lines: tuple[Line, ...]) -> str:
    return f"{lines[0].place} " if lines else ""
