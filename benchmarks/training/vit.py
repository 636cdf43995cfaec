"""Shows steps of training a vision transformer by eager, torch.compile and framefuse: all modes, both dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.bars import plot_times_eager
from benchmarks.harness.report import Field, Row, Value, number
from benchmarks.training import vit_steps

# What the first step may take, and the second with it, which compiles backward; parts of another figure that are more.
FIRST_SECONDS, MORE = 3.0, 1.02

TITLE = "A step of training: milliseconds, peak GiB; part: the model is compiled, it and the loss, or the whole step"
FIELDS = (
    Field("floats", "dtype"),
    Field("compiler", "compiler"),
    Field("short_mode", "mode"),
    Field("part", "part"),
    Field("step_ms", "step ms", "{:.1f}"),
    Field("times_eager", "times eager", "{:.2f}"),
    Field("times_torch", "times torch", "{:.2f}"),
    Field("peak_gib", "peak GiB", "{:.3g}"),
    Field("follows", "equal"),
)
REST_TITLE = "Seconds of the first and second step and until steps are steady; GiB that the allocator holds; losses"
REST = (
    *FIELDS[:4],
    Field("first_s", "first s", "{:.2f}"),
    Field("second_s", "second s", "{:.2f}"),
    Field("steady_s", "steady after", "{:.2f}"),
    Field("held_gib", "held GiB", "{:.3g}"),
    Field("loss_difference", "loss off", "{:.0e}"),
)


def findings(rows: Sequence[Row]) -> list[str]:
    """What each of framefuse's rows is beside eager and torch.compile, what is not compiled, and what failed."""
    said = []
    measured = [row for row in rows if row.get("times_eager") is not None]
    for row in measured:
        if row["compiler"] == "framefuse":
            said.append(beside(row, rows))
    for row in measured:
        if row.get("runs") not in (None, "compiled"):
            said.append(f"not all compiled: {where(row)} ({row['runs']})")
    equal = sum(row["equal"] == "yes" for row in measured)
    what = f"losses of {vit_steps.LOSSES} steps, norms of the third one's gradients"
    said.append(f"{equal} of {len(measured)} follow eager: {what}")
    return said + [f"  {where(row)}: {row['equal']}" for row in rows if row.get("equal") != "yes"]


def where(row: Row) -> str:
    """Which contestant a row is of."""
    return ", ".join(str(row[key]) for key in ("dtype", "compiler", "mode", "part") if row[key] is not None)


def beside(row: Row, rows: Sequence[Row]) -> str:
    """One contestant in words: time, first step and memory, each with what it should be."""
    parts = [f"{number(row, 'times_eager'):.2f} times eager"]
    if row.get("times_torch") is not None:
        behind = ", behind it" * (number(row, "times_torch") * MORE < 1)
        parts.append(f"{number(row, 'times_torch'):.2f} times torch.compile's default{behind}")
    first, second = number(row, "first_s"), number(row, "second_s")
    late = f", together above {FIRST_SECONDS:g}" * (first + second > FIRST_SECONDS)
    parts.append(f"first and second step {first:.1f} and {second:.1f} s{late}")
    eager = [other for other in rows if other["compiler"] == "eager" and other["dtype"] == row["dtype"]]
    if row.get("peak_gib") is not None and eager and eager[0].get("peak_gib"):
        share = number(row, "peak_gib") / number(eager[0], "peak_gib")
        parts.append(f"peak memory {share:.2f} of eager's")
    return f"{where(row)}: {'; '.join(parts)}"


BARS = (
    ("model_ms", "model", "#1d4ed8"),
    ("loss_ms", "model and loss", "#60a5fa"),
    ("step_ms", "whole step", "#93c5fd"),
)


def plot(rows: Sequence[Row], path: Path, caption: str) -> None:
    """Draws for each dtype, compiler and mode how many times faster than eager a step is, as PNG."""
    groups: dict[str, dict[str, Value]] = {}
    for row in rows:
        if row.get("times_eager") is not None:
            named = f"{row['compiler']}, {row['mode']}, {row['dtype']}"
            eager, own = number(row, "eager_ms"), number(row, "step_ms")
            groups.setdefault(named, {"model": named})[f"{row['part']}_ms"] = own / eager
    plot_times_eager([{**group, "eager_ms": 1.0} for group in groups.values()], BARS, path, caption)
