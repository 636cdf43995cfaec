"""Measures steps of training one model under eager, torch.compile and framefuse; prints progress and a line of JSON.

Run as `python -m framefuse.bench.training_steps MODEL --settings JSON`, a process for each model, so that the first
step of each compiler is one.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from framefuse.bench.compilers import COMPILERS, Function, cold_caches
from framefuse.bench.models import same_weights
from framefuse.bench.peak import kept_bytes, nothing, peak_bytes
from framefuse.bench.report import Row, Say, Value
from framefuse.bench.timing import Column, interleaved, passes_within, timed
from framefuse.bench.training_zoo import TRAININGS, Batch, Step, Training
from framefuse.explain.report import describe
from framefuse.runtime.function import compiled_function

STEPS, SECONDS = 20, 4.0  # of the loss curve; of timing for each model, all columns together
BATCHES = 3  # different ones in one pass
SAYS = "... "  # before a line of progress
SAME_LOSS, SAME_GRADIENT = 1e-3, 1e-3  # relative; rounding differs and twenty steps of training spread it


@dataclass(frozen=True)
class Contestant:
    """One column: how a step is made of a model, and what was compiled of it, if framefuse did."""

    name: str
    step: Step
    compiled: Function | None = None


@dataclass(frozen=True)
class Settings:
    """What the command line says: the compilers, and whether torch.compile compiles whole steps too."""

    compilers: tuple[str, ...] = ("framefuse", "torch")
    whole: bool = False
    steps: int = STEPS
    seconds: float = SECONDS
    batch: int | None = None
    length: int | None = None

    def columns(self) -> list[str]:
        """The contestants: `X` compiles the model, `X_whole` the step with loss, backward and optimizer."""
        whole = [f"{name}_whole" for name in self.compilers if name == "framefuse" or self.whole]
        return ["eager", *sorted([*self.compilers, *whole])]


def contestant(name: str, training: Training, model: nn.Module) -> Contestant:
    """The column `name` for a copy of the model that shares its weights."""
    module = same_weights(model)
    compiler, _, whole = name.partition("_")
    if compiler == "eager":
        return Contestant(name, training.step(module))
    compiled = COMPILERS[compiler](training.step(module) if whole else module, None)
    return Contestant(name, compiled if whole else training.step(compiled), compiled)


@dataclass(frozen=True)
class Curve:
    """The first steps of a contestant: their losses, the gradients of the first one, and seconds of each."""

    losses: list[float]
    gradients: list[Tensor | None]
    seconds: list[float]


def curve(step: Step, model: nn.Module, start: dict[str, Tensor], batches: Sequence[Batch], steps: int) -> Curve:
    """Trains from the weights in `start`, with the same random numbers each time."""
    restore(model, start)
    torch.manual_seed(1)
    losses: list[float] = []
    seconds: list[float] = []
    gradients: list[Tensor | None] = []

    def one(*batch: Tensor) -> None:
        losses.append(float(step(*batch).detach()))

    for turn in range(steps):
        seconds.append(timed(one, batches[turn % len(batches)]))
        if not turn:
            gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    return Curve(losses, gradients, seconds)


def restore(model: nn.Module, start: dict[str, Tensor]) -> None:
    """Writes the weights and buffers of `start` into those of the model, and drops its gradients."""
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            tensor.copy_(start[name])
    drop_gradients(model)


def drop_gradients(model: nn.Module) -> None:
    """As optimizers do before a step."""
    for parameter in model.parameters():
        parameter.grad = None


def largest(values: list[float]) -> float:
    """The largest of the values, 0 of none, and NaN where one of them is."""
    return float(torch.tensor([0.0, *values], dtype=torch.float64).max())


def loss_difference(found: Curve, expected: Curve) -> float:
    """The largest relative difference of two loss curves."""
    pairs = zip(found.losses, expected.losses, strict=True)
    return largest([abs(a - b) / max(abs(b), 1e-6) for a, b in pairs])


def gradient_difference(found: Curve, expected: Curve) -> float:
    """The largest difference of a gradient after the first step, in parts of the largest norm of eager's gradients.

    Infinite where only one of them is there: None is an answer too.
    """
    pairs = list(zip(found.gradients, expected.gradients, strict=True))
    if any((a is None) != (b is None) for a, b in pairs):
        return float("inf")
    there = [(a, b) for a, b in pairs if a is not None and b is not None]
    scale = largest([float(b.norm()) for _, b in there]) or 1.0
    return largest([float((a - b).norm()) for a, b in there]) / scale


def verdict(found: Curve, expected: Curve) -> str:
    """ "yes" where the gradients of the first step and the losses of all steps are eager's but for rounding."""
    gradients, losses = gradient_difference(found, expected), loss_difference(found, expected)
    if not gradients <= SAME_GRADIENT:
        return f"no: gradients of the first step differ by {gradients:.1e}"
    return "yes" if losses <= SAME_LOSS else f"no: losses differ by {losses:.1e}"


def how(compiled: Function) -> str:
    """Whether compiled code ran: "compiled", "partly" with the reason that kept a part eager, or "eager" with it."""
    state = compiled_function(compiled)
    if state is None:
        return "eager"
    found = describe(state)
    reasons = " ".join(sorted({reason.code for reason, _ in found.stops}))
    if not found.hits:
        return f"eager: {reasons}"
    return f"partly: {reasons}" if reasons else "compiled"


def measure(training: Training, settings: Settings, say: Say) -> Row:
    """One row: what each column takes for one model, and how far its losses are from eager's."""
    say(f"{training.title}: eager")
    model = training.build()
    batches = [training.batches(seed, settings.batch, settings.length) for seed in range(BATCHES)]
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    row: dict[str, Value] = {"model": training.title}
    columns: dict[str, Column] = {}
    expected = None
    for name in settings.columns():
        if name != "eager":
            say(f"{training.title}: {name.replace('_', ' ')} compiles")
        made = contestant(name, training, model)
        found = curve(made.step, model, start, batches, settings.steps)
        expected = expected or found
        row[f"{name}_first_s"] = found.seconds[0] - statistics.median(expected.seconds)
        row[f"{name}_loss_difference"] = loss_difference(found, expected)
        row[f"{name}_equal"] = verdict(found, expected)
        if name.startswith("framefuse") and made.compiled is not None:
            row[f"{name}_runs"] = how(made.compiled)
        columns[name] = Column(made.step, batches)
    say(f"{training.title}: {len(columns)} columns in turn")
    medians = interleaved(columns, passes_within(settings.seconds, columns))
    row.update({f"{column}_ms": seconds * 1e3 for column, seconds in medians.items()})
    for name, column in columns.items():
        kept = kept_bytes if name.startswith("framefuse") else nothing
        row[f"{name}_peak_mb"] = peak_of(column.function, model, batches, kept) / 1e6
    row["equal"] = max((str(row[f"{name}_equal"]) for name in ("framefuse", "framefuse_whole")), key=len)
    compiled = {"model": row["framefuse_runs"], "step": row["framefuse_whole_runs"]}
    there = [what for what, runs in compiled.items() if runs == "compiled"]
    row["compiled"] = "both" if len(there) == 2 else there[0] if there else "no"
    for name in ("framefuse", "framefuse_whole"):
        beside = medians.get(name.replace("framefuse", "torch"), medians.get("torch"))
        row[f"{name}_times_eager"] = medians["eager"] / medians[name]
        row[f"{name}_times_torch"] = None if beside is None else beside / medians[name]
    return row


def peak_of(step: Function, model: nn.Module, batches: Sequence[Batch], kept: Callable[[], int]) -> float:
    """Bytes that one step takes at its peak above parameters, buffers and the state of the optimizer."""
    return peak_bytes(lambda: step(*batches[0]), lambda: drop_gradients(model), kept=kept)


def main() -> None:
    """Measures the model that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(TRAININGS))
    parser.add_argument("--settings", type=json.loads, default={}, help="fields of Settings as JSON")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (1)")
    options = parser.parse_args()
    settings = Settings(**options.settings)
    torch.set_num_threads(options.threads)
    with cold_caches():
        if "torch" in settings.compilers:
            for module in ("torch._dynamo", "torch._inductor.compile_fx"):
                importlib.import_module(module)
        row = measure(TRAININGS[options.model], settings, lambda step: print(SAYS + step, flush=True))
    print(json.dumps(row))


if __name__ == "__main__":
    main()
