"""Measures the memory of a process over thousands of compilations of fresh small functions: it must level off."""

from __future__ import annotations

import gc
import os
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor

import framefuse
from benchmarks.harness.report import Field, Row, Say, Value, number

COUNT = 10_000
SAMPLES = 20

TITLE = "Memory of one process that compiles fresh small functions"
FIELDS = (
    Field("compilations", "compilations"),
    Field("megabytes", "resident MB", "{:.1f}"),
    Field("grown_kilobytes", "kB each", "{:.2f}"),
    Field("alive", "still alive"),
)


def resident_bytes() -> int:
    """Memory of this process that is in RAM now (Linux)."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def fresh(serial: int) -> Callable[[Tensor], Tensor]:
    """A new function with a code object and constants of its own, so that no kernel of another one serves it."""
    namespace: dict[str, object] = {"torch": torch, "__name__": "fresh"}
    text = f"def fresh(x):\n    return torch.sin(x * {serial}.5 + 1.0).sum()\n"
    exec(compile(text, f"<fresh {serial}>", "exec"), namespace)
    function = namespace["fresh"]
    assert callable(function)
    return function


def memory(say: Say, count: int = COUNT, samples: int = SAMPLES) -> list[Row]:
    """Compiles, calls and drops `count` functions; one row each `count / samples` of them."""
    x = torch.randn(8, 16)
    alive: weakref.WeakSet[Callable[[Tensor], Tensor]] = weakref.WeakSet()
    rows: list[Row] = []
    before = resident_bytes()
    for sample in range(samples):
        done = count * (sample + 1) // samples
        begun = count * sample // samples
        say(f"{done} of {count} compilations")
        for serial in range(begun, done):
            function = fresh(serial)
            alive.add(function)
            framefuse.compile(function)(x)
        del function
        gc.collect()
        now = resident_bytes()
        each = (now - before) / max(1, done - begun)
        row: dict[str, Value] = {"compilations": done, "megabytes": now / 1e6, "grown_kilobytes": each / 1e3}
        rows.append({**row, "alive": len(alive)})
        before = now
    return rows


def findings(rows: Sequence[Row]) -> list[str]:
    """Growth over the second half in kilobytes for each compilation."""
    middle, last = rows[len(rows) // 2 - 1], rows[-1]
    count = number(last, "compilations") - number(middle, "compilations")
    grown = (number(last, "megabytes") - number(middle, "megabytes")) * 1e3
    return [f"second half: {grown / count:.2f} kB for each compilation"]


def plot(rows: Sequence[Row], path: Path, caption: str) -> None:
    """Draws resident memory over the number of compilations, as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), dpi=150, layout="constrained")
    axes = figure.subplots()
    counts, megabytes = ([number(row, key) for row in rows] for key in ("compilations", "megabytes"))
    axes.plot(counts, megabytes, color="#1d4ed8", marker="o")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("compilations of fresh functions")
    axes.set_ylabel("resident memory, MB")
    axes.grid(True, alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    figure.text(0.01, -0.02, caption, fontsize=6, color="#6b7280", va="top")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight")
