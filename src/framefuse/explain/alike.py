"""Puts the steps of a graph that are alike together, with what they cost as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from framefuse.ir.source import Line


@dataclass(frozen=True, slots=True)
class WorkRow:
    """One step of a graph: ``read`` and ``written`` are the bytes of its buffers at the recorded sizes (None: a size
    that only the run tells), ``estimate`` the nanoseconds on one thread by which fuse decides, not a measurement.
    What was measured is there where the report was asked to time a call.
    """

    mark: str
    kind: str
    title: str
    shapes: str
    read: int | None
    written: int | None
    estimate: float | None
    lines: tuple[Line, ...]
    code: str = ""  # the mark of its loop nest
    seconds: float | None = None  # measured, of one call
    of_bandwidth: float | None = None  # the share of a copy's bandwidth, measured
    of_arithmetic: float | None = None  # and that of a large product's arithmetic
    borders: tuple[tuple[str, tuple[str, ...]], ...] = ()  # why later steps are not part of it, and their marks


@dataclass(frozen=True, slots=True)
class Alike:
    """Steps of one kind, title, shapes and lines: the bytes and measured seconds of all (None: not known of all), and
    their ``share`` of the graph's seconds where these were measured, else of its bytes.
    """

    rows: tuple[WorkRow, ...]
    share: float

    @property
    def read(self) -> int | None:
        """The bytes that they read."""
        return _sum([row.read for row in self.rows])

    @property
    def written(self) -> int | None:
        """The bytes that they write."""
        return _sum([row.written for row in self.rows])

    @property
    def seconds(self) -> float | None:
        """Their measured seconds."""
        known = [row.seconds for row in self.rows if row.seconds is not None]
        return sum(known) if len(known) == len(self.rows) else None


def grouped(rows: Iterable[WorkRow]) -> list[tuple[WorkRow, ...]]:
    """The steps that are alike, in the order of their first ones."""
    found: dict[tuple[object, ...], list[WorkRow]] = {}
    for row in rows:
        found.setdefault((row.kind, row.title, row.shapes, row.lines), []).append(row)
    return list(map(tuple, found.values()))


def alike(rows: Sequence[WorkRow]) -> tuple[Alike, ...]:
    """The steps of one graph by what they are, the costliest first."""
    timed = any(row.seconds is not None for row in rows)

    def weight(row: WorkRow) -> float:
        return (row.seconds or 0) if timed else (row.read or 0) + (row.written or 0)

    whole = sum(map(weight, rows)) or 1
    groups = [Alike(group, sum(map(weight, group)) / whole) for group in grouped(rows)]
    return tuple(sorted(groups, key=lambda group: -group.share))


def _sum(parts: Sequence[int | None]) -> int | None:
    known = [part for part in parts if part is not None]
    return sum(known) if len(known) == len(parts) else None
