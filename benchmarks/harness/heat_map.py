"""Draws times faster than eager as a map: blue where framefuse is faster, red where it is not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path


def heat_map(cells: Sequence[tuple[str, str, float]], title: str, path: Path, caption: str) -> None:
    """Writes a PNG; a cell is what stands down, what stands across, and the times."""
    from matplotlib.figure import Figure

    downs, acrosses = list(dict.fromkeys(down for down, _, _ in cells)), list(dict.fromkeys(at for _, at, _ in cells))
    grid = [[math.nan] * len(acrosses) for _ in downs]
    for down, across, times in cells:
        grid[downs.index(down)][acrosses.index(across)] = math.log2(times)
    figure = Figure(figsize=(2.5 + 0.32 * len(acrosses), 1.5 + 0.3 * len(downs)), dpi=150, layout="constrained")
    axes = figure.subplots()
    image = axes.imshow(grid, cmap="RdBu", vmin=-2, vmax=2, aspect="auto")
    for row, line in enumerate(grid):
        for column, value in enumerate(line):
            if not math.isnan(value):
                axes.text(column, row, f"{2**value:.1f}", ha="center", va="center", fontsize=5)
    axes.set_xticks(range(len(acrosses)), acrosses, rotation=90, fontsize=6)
    axes.set_yticks(range(len(downs)), downs, fontsize=7)
    bar = figure.colorbar(image, ax=axes, shrink=0.6)
    bar.set_label("times eager, log2")
    axes.set_title(title)
    figure.text(0.01, -0.02, caption, fontsize=6, color="#6b7280", va="top")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, bbox_inches="tight")
