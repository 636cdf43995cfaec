"""Measures one call of a chain of n light statements under eager, framefuse and torch.compile: the curve over n."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.calls.chain import chain
from benchmarks.harness.compilers import COMPILERS, Function
from benchmarks.harness.report import Field, Row, Say, Value, number
from benchmarks.harness.timing import Arguments, Column, interleaved, timed
from benchmarks.starting.first_call import in_fresh_process

COUNTS = (1, 5, 10, 15, 20, 25, 30)
INPUTS = 300
PASSES = 25

TITLE = "One call of a chain of n statements on (8, 16) float32, microseconds; first calls in milliseconds"
FIELDS = (
    Field("statements", "n"),
    Field("eager_us", "eager", "{:.2f}"),
    Field("framefuse_static_us", "framefuse static", "{:.2f}"),
    Field("framefuse_dynamic_us", "framefuse dynamic", "{:.2f}"),
    Field("torch_static_us", "torch static", "{:.2f}"),
    Field("torch_dynamic_us", "torch dynamic", "{:.2f}"),
    Field("times_eager", "times eager", "{:.1f}"),
    Field("times_torch", "times torch", "{:.1f}"),
    Field("framefuse_static_first_ms", "first call", "{:.1f}"),
    Field("torch_static_first_ms", "torch first", "{:.0f}"),
)


def static_inputs(count: int, device: str = "cpu") -> list[Arguments]:
    """`count` tensors of one shape, (8, 16) float32."""
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(8, 16, generator=generator).to(device),) for _ in range(count)]


def dynamic_inputs(count: int, device: str = "cpu") -> list[Arguments]:
    """`count` tensors of ten shapes in turn, (4, 16) to (13, 16) float32."""
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(i % 10 + 4, 16, generator=generator).to(device),) for i in range(count)]


def measure(count: int, compilers: Sequence[str], inputs: int, passes: int, device: str, say: Say) -> Row:
    """One row: microseconds a call of every column for the chain of `count` statements, and first calls in ms.

    Every column has a function of its own, so that no compiler finds what another one left on the code object. Results
    are compared with eager's before anything is timed; a difference raises AssertionError.
    """
    eager = chain(count)
    fixed, varied = static_inputs(inputs, device), dynamic_inputs(inputs, device)
    row: dict[str, Value] = {"statements": count}
    columns = {"eager": Column(eager, fixed)}
    for compiler in compilers:
        for kind, arguments, dynamic in (("static", fixed, False), ("dynamic", varied, True)):
            name = f"{compiler}_{kind}"
            say(f"n = {count}: {name.replace('_', ' ')} compiles")
            function = COMPILERS[compiler](chain(count), dynamic)
            row[f"{name}_first_ms"] = timed(function, arguments[0], device) * 1e3
            check(function, eager, arguments)
            columns[name] = Column(function, arguments)
    say(f"n = {count}: {len(columns)} columns in turn, {passes} rounds of {inputs} calls")
    interleaved(columns, 3, device)  # warm-up
    medians = interleaved(columns, passes, device)
    row.update({f"{name}_us": seconds * 1e6 for name, seconds in medians.items()})
    ours = medians["framefuse_static"]
    row["times_eager"] = medians["eager"] / ours
    row["times_torch"] = medians["torch_static"] / ours if "torch_static" in medians else None
    row["dynamic_by_static"] = medians["framefuse_dynamic"] / ours
    return row


def check(function: Function, eager: Function, inputs: Sequence[Arguments]) -> None:
    """Compares `function` with eager on inputs that show every shape."""
    for arguments in inputs[:20]:
        torch.testing.assert_close(function(*arguments), eager(*arguments))


def steps(counts: Sequence[int], compilers: Sequence[str]) -> int:
    """How often `curve` reports progress."""
    return len(counts) * (2 * len(compilers) + 1)


def curve(
    say: Say,
    counts: Sequence[int] = COUNTS,
    compilers: Sequence[str] = ("framefuse", "torch"),
    inputs: int = INPUTS,
    passes: int = PASSES,
    device: str = "cpu",
) -> list[Row]:
    """The whole experiment, one row for each number of statements."""
    return [measure(count, compilers, inputs, passes, device, say) for count in counts]


def crossover(rows: Sequence[Row], rising: str, flat: str) -> float | None:
    """The n from which `flat` costs no more than `rising`; None if it never does.

    Between two measured points both columns are taken as straight on a logarithmic scale, as the plot draws them.
    """
    before: tuple[float, float] | None = None
    for row in rows:
        n, gain = number(row, "statements"), math.log(number(row, rising) / number(row, flat))
        if gain >= 0:
            return n if before is None else before[0] + (n - before[0]) * before[1] / (before[1] - gain)
        before = (n, gain)
    return None


def findings(rows: Sequence[Row]) -> list[str]:
    """What the curve says in words: from where each compiler pays."""
    said = []
    for key, name in (("framefuse_static_us", "framefuse"), ("torch_static_us", "torch.compile")):
        if any(row.get(key) is None for row in rows):
            continue
        n = crossover(rows, "eager_us", key)
        first = rows[0]["statements"]
        if n is None:
            said.append(f"{name}: slower than eager at every n measured")
        elif n == first:
            said.append(f"{name}: faster than eager from n = {first}, no loss zone")
        else:
            said.append(f"{name}: slower than eager below n = {n:.1f}")
    return said


def fresh_findings(compilers: Sequence[str], count: int = COUNTS[-1]) -> list[str]:
    """First calls of the longest chain in processes of their own, and what the 99 shapes after it cost."""
    said = []
    for compiler in compilers:
        taken = {key: seconds * 1e3 for key, seconds in in_fresh_process(f"chain:{count}", compiler, 1).items()}
        first = f"first call of n = {count} in a fresh process {taken['first_s'] - taken['eager_s']:.1f} ms above eager"
        later = f"{taken['later_s'] * 1e3:.1f} us in the middle, {taken['later_max_s'] * 1e3:.1f} us the slowest"
        said.append(f"{compiler}: {first}; then 99 new shapes: {later}")
    return said


def plot(rows: Sequence[Row], path: Path, caption: str) -> None:
    """Draws the five curves over n with the crossover of eager and torch.compile marked."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    lines = (
        ("eager_us", "eager", "#6b7280", "-", "o"),
        ("torch_static_us", "torch.compile", "#ea580c", "-", "s"),
        ("torch_dynamic_us", "torch.compile, dynamic", "#ea580c", "--", "s"),
        ("framefuse_static_us", "framefuse", "#1d4ed8", "-", "o"),
        ("framefuse_dynamic_us", "framefuse, dynamic", "#1d4ed8", "--", "o"),
    )
    figure = Figure(figsize=(8, 5), dpi=150, layout="constrained")
    axes = figure.subplots()
    for key, label, colour, dash, marker in lines:
        points = [(number(row, "statements"), number(row, key)) for row in rows if row.get(key) is not None]
        if points:
            axes.plot(*zip(*points, strict=True), dash, color=colour, marker=marker, markersize=4, label=label)
    if all(row.get("torch_static_us") is not None for row in rows):
        n = crossover(rows, "eager_us", "torch_static_us")
        if n is not None and n > number(rows[0], "statements"):
            axes.axvline(n, color="#ea580c", linewidth=0.8, linestyle=":")
            text = f" torch.compile is slower\n than eager below n = {n:.1f}"
            axes.text(n, 0.98, text, va="top", fontsize=8, color="#ea580c", transform=axes.get_xaxis_transform())
    axes.set_yscale("log")
    axes.set_yticks([mantissa * 10.0**power for power in range(-1, 4) for mantissa in (1, 2, 5)], minor=False)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    measured = [number(row, key) for row in rows for key, *_ in lines if row.get(key) is not None]
    axes.set_ylim(min(measured) / 1.4, max(measured) * 1.4)
    axes.set_xticks([number(row, "statements") for row in rows])
    axes.set_xlabel("statements in the function")
    axes.set_ylabel("microseconds a call (log)")
    axes.set_title("A chain of light statements on a tensor of (8, 16) float32", loc="left", fontsize=11)
    axes.grid(True, which="major", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.text(0.01, -0.02, caption, fontsize=6, color="#6b7280")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight", metadata={"Date": None} if path.suffix == ".svg" else None)
