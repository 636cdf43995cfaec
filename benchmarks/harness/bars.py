"""Draws rows of a benchmark as bars: for each model, how many times faster than eager each column is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness.report import Row, number


def plot_times_eager(rows: Sequence[Row], columns: Sequence[tuple[str, str, str]], path: Path, caption: str) -> None:
    """Writes a PNG; ``columns`` are (key of the milliseconds, label, colour). A column that no row has is left out."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 0.7 + 0.55 * len(rows)), dpi=150, layout="constrained")
    axes = figure.subplots()
    shown = [column for column in columns if any(row.get(column[0]) is not None for row in rows)]
    height = 0.8 / max(1, len(shown))
    for place, (key, label, colour) in enumerate(shown):
        offset = (place - (len(shown) - 1) / 2) * height
        measured = [(i + offset, row) for i, row in enumerate(rows) if row.get(key) is not None]
        times = [number(row, "eager_ms") / number(row, key) for _, row in measured]
        drawn = axes.barh([y for y, _ in measured], times, height=height, color=colour, label=label)
        axes.bar_label(drawn, fmt="{:.2f}", padding=3, fontsize=6)
    axes.axvline(1, color="#6b7280", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [str(row["model"]) for row in rows])
    axes.invert_yaxis()
    axes.margins(x=0.1)
    axes.set_xlabel("times faster than eager (1: eager)")
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=8)
    figure.text(0.01, -0.02, caption, fontsize=6, color="#6b7280", va="top")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight")
