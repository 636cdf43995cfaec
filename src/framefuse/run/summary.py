"""Sums up on one screen what framefuse compiled while a script ran: calls, hits, traces, compile time, and what stayed
eager with the line.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from framefuse.errors import Reason
from framefuse.explain.report import Explanation, describe
from framefuse.runtime.function import CompiledFunction, ended, live_functions

ROWS, REASONS, WIDTH = 7, 2, 100


@dataclass(slots=True)
class Row:
    """What all compiled functions and modules of one name and place did together; ``seconds`` is compile time."""

    name: str
    place: str
    count: int = 0
    calls: int = 0
    hits: int = 0
    traces: int = 0
    seconds: float = 0.0
    reasons: dict[Reason, int] = field(default_factory=dict)
    breaks: dict[Reason, None] = field(default_factory=dict)
    again: list[str] = field(default_factory=list)  # why traces after the first were compiled

    def add(self, explanation: Explanation) -> None:
        """Adds one of them."""
        self.count += 1
        self.calls += explanation.calls
        self.hits += explanation.hits
        self.traces += len(explanation.graphs)
        self.seconds += sum(sum(graph.seconds.values()) for graph in explanation.graphs)
        for reason, count in explanation.stops:
            self.reasons[reason] = self.reasons.get(reason, 0) + count
        self.breaks.update(dict.fromkeys(explanation.breaks))
        self.again += [graph.why for graph in explanation.graphs if graph.why is not None]


class Ledger:
    """Collects what is compiled from now on, also what dies before the end; a context manager."""

    def __init__(self) -> None:
        self.before = {id(state) for state in live_functions()}
        self.dead: list[Explanation] = []

    def __enter__(self) -> Ledger:
        ended.append(self._ended)
        return self

    def __exit__(self, *error: object) -> None:
        ended.remove(self._ended)

    def _ended(self, state: CompiledFunction) -> None:
        if id(state) in self.before:
            self.before.remove(id(state))
        else:
            self.dead.append(describe(state))

    def alive(self) -> list[CompiledFunction]:
        """What was compiled and lives."""
        return [state for state in live_functions() if id(state) not in self.before]

    def explanations(self) -> list[Explanation]:
        """One for each thing that was compiled and called, those called most first."""
        alive = [describe(state) for state in self.alive()]
        return sorted((each for each in self.dead + alive if each.calls), key=lambda each: -each.calls)


def summary(explanations: Iterable[Explanation]) -> str:
    """The screen: at most 24 lines of at most 100 columns."""
    rows: dict[tuple[str, str], Row] = {}
    for one in explanations:
        rows.setdefault((one.name, one.place), Row(one.name, one.place)).add(one)
    if not rows:
        return "framefuse: nothing was compiled. No nn.Module was called; name functions with --function"
    table = sorted(rows.values(), key=lambda row: -row.calls)
    calls, hits = sum(row.calls for row in table), sum(row.hits for row in table)
    share = 100 * hits // calls if calls else 0
    seconds = sum(row.seconds for row in table)
    lines = [
        f"framefuse: {hits:,} of {calls:,} calls ({share}%) ran compiled code; compiled in {seconds:.2f} s",
        f"{'calls':>10} {'hits':>10} {'traces':>7} {'compile':>10}",
    ]
    for row in table[:ROWS]:
        copies = f"  x{row.count}" if row.count > 1 else ""
        lines.append(
            f"{row.calls:>10,} {row.hits:>10,} {row.traces:>7} {row.seconds * 1e3:>7.0f} ms  "
            f"{row.name} ({row.place}){copies}"
        )
        lines += _reasons(row)
    if len(table) > ROWS:
        lines.append(f"  and {len(table) - ROWS} more")
    return "\n".join(line[:WIDTH] for line in lines)


def _reasons(row: Row) -> list[str]:
    most = sorted(row.reasons.items(), key=lambda item: -item[1])
    reasons = [f"eager x{count}: {_fact(reason)}" for reason, count in most]
    reasons += [f"break: {_fact(reason)}" for reason in row.breaks]
    if row.again:
        times = f" x{len(row.again)}, last" if len(row.again) > 1 else ""
        reasons.insert(1, f"compiled again{times} because {row.again[-1]}")
    lines = [f"{'':>10} {text}" for text in reasons[:REASONS]]
    if len(reasons) > REASONS:
        more = f"  and {len(reasons) - REASONS} more"
        lines[-1] = lines[-1][: WIDTH - len(more)] + more
    return lines


def _fact(reason: Reason) -> str:
    return f"{reason.line.place}  {reason.fact} [{reason.code}]" if reason.line else f"{reason.fact} [{reason.code}]"
