"""Shows steps of training under eager, torch.compile and framefuse: milliseconds, memory, first steps, losses."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch

from benchmarks.harness.bars import plot_times_eager
from benchmarks.harness.processes import ROOT
from benchmarks.harness.report import Field, Row, Say, number
from benchmarks.training.contestants import Settings
from benchmarks.training.training_steps import SAYS
from benchmarks.zoo.training_zoo import TRAININGS
from benchmarks.zoo.zoo import MissingLibrary

TITLE = "Training, milliseconds a step (forward, loss, backward, optimizer); whole: the step is compiled, not the model"
FIELDS = (
    Field("model", "model"),
    Field("eager_ms", "eager", "{:.1f}"),
    Field("torch_ms", "torch", "{:.1f}"),
    Field("framefuse_ms", "framefuse", "{:.1f}"),
    Field("framefuse_whole_ms", "whole", "{:.1f}"),
    Field("framefuse_times_eager", "times eager", "{:.2f}"),
    Field("framefuse_whole_times_eager", "whole eager", "{:.2f}"),
    Field("framefuse_times_torch", "times torch", "{:.2f}"),
    Field("framefuse_whole_times_torch", "whole torch", "{:.2f}"),
)
REST_TITLE = (
    "Peak MB of a step above weights and optimizer; first three steps above eager ones, seconds; losses against eager"
)
REST = (
    Field("model", "model"),
    Field("eager_peak_mb", "MB eager", "{:.1f}"),
    Field("torch_peak_mb", "MB torch", "{:.1f}"),
    Field("framefuse_peak_mb", "MB model", "{:.1f}"),
    Field("framefuse_whole_peak_mb", "MB whole", "{:.1f}"),
    Field("framefuse_first_s", "step 1", "{:.2f}"),
    Field("framefuse_second_s", "2", "{:.2f}"),
    Field("framefuse_third_s", "3", "{:.2f}"),
    Field("framefuse_whole_first_s", "whole 1", "{:.2f}"),
    Field("framefuse_whole_second_s", "2", "{:.2f}"),
    Field("framefuse_whole_third_s", "3", "{:.2f}"),
    Field("torch_early_s", "torch 1 to 3", "{:.1f}"),
    Field("framefuse_loss_difference", "loss off", "{:.0e}"),
    Field("compiled", "runs"),
    Field("follows", "same"),
)
RATIOS = (
    ("with the model compiled", "framefuse_times_eager", "framefuse_times_torch"),
    ("with the whole step compiled", "framefuse_whole_times_eager", "framefuse_whole_times_torch"),
)
EARLY = 0.2  # parts of torch.compile's time that the first three steps may take
SLOWER, MORE = 0.98, 1.02  # times eager below which a model counts as slower; parts of eager's memory that are more


def steps(names: Sequence[str], settings: Settings) -> int:
    """How often `train` reports progress."""
    return len(names) * (1 + 2 * len(settings.columns()))


def train(say: Say, names: Sequence[str], settings: Settings) -> list[Row]:
    """One row for each model, each measured in a process of its own."""
    return [in_fresh_process(name, settings, say) for name in names]


def in_fresh_process(name: str, settings: Settings, say: Say) -> Row:
    """What `training_steps` finds for the model; a row that says so where a library is missing."""
    command = [sys.executable, "-m", "benchmarks.training.training_steps", name]
    command += ["--threads", str(torch.get_num_threads()), "--settings", json.dumps(asdict(settings))]
    lines: list[str] = []
    output, errors = subprocess.PIPE, subprocess.STDOUT
    with subprocess.Popen(command, cwd=ROOT, stdout=output, stderr=errors, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if line.startswith(SAYS):
                say(line.removeprefix(SAYS).strip())
    if not process.returncode:
        row: Row = json.loads(lines[-1])
        return row
    if lines and MissingLibrary.__name__ in lines[-1]:
        return {"model": TRAININGS[name].title, "equal": f"not run: {lines[-1].partition(': ')[2].strip()}"}
    raise RuntimeError(f"{' '.join(command)} failed:\n{''.join(lines[-30:])}")


def mean(rows: Sequence[Row], key: str) -> float | None:
    """The geometric mean of what the rows have under `key`; None where none has."""
    there = [math.log(number(row, key)) for row in rows if row.get(key) is not None]
    return math.exp(sum(there) / len(there)) if there else None


def titles(rows: Sequence[Row]) -> str:
    """The names of the models in the rows."""
    return ", ".join(str(row["model"]) for row in rows) or "none"


def findings(rows: Sequence[Row]) -> list[str]:
    """Geometric means, what is slower than eager or takes more memory, and what differs from eager."""
    wrong = [f"  {row['model']}: {row['equal']}" for row in rows if row["equal"] != "yes"]
    rows = [row for row in rows if row.get("eager_ms") is not None]
    said = []
    for what, eager, torch_compile in RATIOS:
        means = [(mean(rows, eager), "eager"), (mean(rows, torch_compile), "torch.compile")]
        times = ", ".join(f"{value:.2f} times {name}" for value, name in means if value is not None)
        slower = [row for row in rows if number(row, eager) < SLOWER]
        said.append(f"{what}, geometric means: {times}; slower than eager: {titles(slower)}")
    ratio = mean([{"": number(row, "framefuse_peak_mb") / number(row, "eager_peak_mb")} for row in rows], "")
    more = [row for row in rows if number(row, "framefuse_peak_mb") > MORE * number(row, "eager_peak_mb")]
    said += [] if ratio is None else [f"peak memory: {ratio:.2f} of eager's, geometric mean; more: {titles(more)}"]
    whole = [row for row in rows if number(row, "framefuse_whole_peak_mb") > MORE * number(row, "eager_peak_mb")]
    said += [f"peak memory of whole steps above eager's: {titles(whole)}"] * bool(rows)
    said += _early(rows)
    for what, key in (("model", "framefuse_runs"), ("step", "framefuse_whole_runs")):
        kept = [row for row in rows if row[key] != "compiled"]
        said += [
            f"the {what} is not all compiled: " + "; ".join(f"{row['model']} ({row[key]})" for row in kept)
        ] * bool(kept)
    equal = sum(row["equal"] == "yes" for row in rows)
    said.append(f"{equal} of {len(rows)} models follow eager: gradients of the first step, losses of all steps")
    return said + wrong


def _early(rows: Sequence[Row]) -> list[str]:
    """What the first three steps take above eager ones beside torch.compile's, the model or the whole step compiled."""
    parts = {
        f"{row['model']}{kind}": number(row, f"{name}_early_s") / number(row, "torch_early_s")
        for row in rows
        for name, kind in (("framefuse", ""), ("framefuse_whole", ", whole"))
        if row.get("torch_early_s") is not None and number(row, "torch_early_s") > 1
    }
    if not parts:
        return []
    more = ", ".join(f"{what} ({part:.2f})" for what, part in parts.items() if part > EARLY) or "none"
    return [f"first three steps: at most {max(parts.values()):.2f} of torch.compile's; above {EARLY}: {more}"]


BARS = (
    ("framefuse_ms", "framefuse, model", "#1d4ed8"),
    ("framefuse_whole_ms", "framefuse, whole step", "#60a5fa"),
    ("torch_ms", "torch.compile, model", "#ea580c"),
    ("torch_whole_ms", "torch.compile, whole step", "#fdba74"),
)


def plot(rows: Sequence[Row], path: Path, caption: str) -> None:
    """Draws for each model how many times faster than eager a step is, a bar for each column, as PNG."""
    plot_times_eager(rows, BARS, path, caption)
