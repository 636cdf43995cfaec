"""Measures steps of training one model under eager, torch.compile and framefuse; prints progress and a line of JSON.

Run as `python -m benchmarks.training.training_steps MODEL --settings JSON`, a process for each model, so that the first
step of each compiler is one.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from benchmarks.harness.compilers import Function, cold_caches
from benchmarks.harness.report import Row, Say, Value
from benchmarks.harness.timing import Column, interleaved, passes_within, timed
from benchmarks.training.contestants import BATCHES, Settings, contestant, drop_gradients
from benchmarks.training.training_peak import peak_in_fresh_process
from benchmarks.zoo.training_zoo import TRAININGS, Batch, Step, Training
from framefuse.explain.report import describe
from framefuse.runtime.function import compiled_function

SAYS = "... "  # before a line of progress
SAME_LOSS, SAME_GRADIENT = 1e-3, 1e-3  # relative; rounding differs and twenty steps of training spread it
ORDINALS = ("first", "second", "third")
SETTLED = 4  # first steps, each from the same weights: without gradients, and with what the optimizer has by then
DISTURBED = 3  # runs of eager that tell how far


@dataclass(frozen=True)
class Curve:
    """The first steps of a contestant: their losses, the gradients of one, and seconds of each."""

    losses: list[float]
    gradients: list[Tensor | None]
    seconds: list[float]
    watched: int = 0  # the step of the gradients, from 0


def curve(
    step: Step, model: nn.Module, start: dict[str, Tensor], batches: Sequence[Batch], steps: int, watched: int = 0
) -> Curve:
    """Trains from the weights in `start`, with the same random numbers each time; keeps gradients of step `watched`."""
    restore(model, start)
    torch.manual_seed(1)
    losses: list[float] = []
    seconds: list[float] = []
    gradients: list[Tensor | None] = []

    def one(*batch: Tensor) -> None:
        losses.append(float(step(*batch).detach()))

    for turn in range(steps):
        seconds.append(timed(one, batches[turn % len(batches)]))
        if turn == watched:
            gradients = [None if p.grad is None else p.grad.clone() for p in model.parameters()]
    return Curve(losses, gradients, seconds, watched)


def restore(model: nn.Module, start: dict[str, Tensor]) -> None:
    """Writes the weights and buffers of `start` into those of the model, and drops its gradients."""
    with torch.no_grad():
        for name, tensor in model.state_dict(keep_vars=True).items():
            tensor.copy_(start[name])
    drop_gradients(model)


def largest(values: list[float]) -> float:
    """The largest of the values, 0 of none, and NaN where one of them is."""
    return float(torch.tensor([0.0, *values], dtype=torch.float64).max())


def loss_difference(actual: Curve, expected: Curve) -> float:
    """The largest relative difference of two loss curves."""
    pairs = zip(actual.losses, expected.losses, strict=True)
    return largest([abs(a - b) / max(abs(b), 1e-6) for a, b in pairs])


def gradient_difference(actual: Curve, expected: Curve) -> float:
    """The largest difference of a gradient after the step watched, in parts of the largest norm of eager's gradients.

    Infinite where only one of them is there: None is an answer too.
    """
    pairs = list(zip(actual.gradients, expected.gradients, strict=True))
    if any((a is None) != (b is None) for a, b in pairs):
        return float("inf")
    there = [(a, b) for a, b in pairs if a is not None and b is not None]
    scale = largest([float(b.norm()) for _, b in there]) or 1.0
    return largest([float((a - b).norm()) for a, b in there]) / scale


def verdict(actual: Curve, expected: Curve, own: Callable[[], float], bound: float = SAME_GRADIENT) -> str:
    """ "yes" where the gradients of the step watched and the losses of all steps are eager's but for rounding.

    `own` tells how far eager's losses are from its own after a rounding: some models spread one over the whole curve.
    `bound` is what gradients may differ by.
    """
    gradients, losses = gradient_difference(actual, expected), loss_difference(actual, expected)
    if not gradients <= bound:
        return f"no: gradients of the {ORDINALS[actual.watched]} step differ by {gradients:.1e}"
    if losses <= SAME_LOSS or losses <= own():
        return "yes"
    return f"no: losses differ by {losses:.1e}, eager's own after a rounding by {own():.1e}"


def disturbed(start: dict[str, Tensor], seed: int, rounding: torch.dtype | None = None) -> dict[str, Tensor]:
    """The weights moved by one rounding, up or down at random: of their own dtype, or of the one given."""
    weights = dict(start)
    source = torch.Generator(next(iter(start.values())).device).manual_seed(seed)
    for name, tensor in start.items():
        if tensor.is_floating_point():
            signs = torch.randint(0, 2, tensor.shape, generator=source, device=source.device) * 2 - 1
            weights[name] = tensor * (1 + torch.finfo(rounding or tensor.dtype).eps * signs)
    return weights


def how(compiled: Function) -> str:
    """Whether compiled code ran: "compiled", "partly" with the reason that kept a part eager, or "eager" with it."""
    state = compiled_function(compiled)
    if state is None:
        return "eager"
    explanation = describe(state)
    reasons = " ".join(sorted({reason.code for reason, _ in explanation.stops}))
    if not explanation.hits:
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

    @functools.cache
    def own() -> float:
        """How far eager's losses are from its own where its weights were rounded differently."""
        assert expected is not None
        runs = [
            curve(contestant("eager", training, model).step, model, disturbed(start, seed), batches, settings.steps)
            for seed in range(DISTURBED)
        ]
        return max(loss_difference(run, expected) for run in runs)

    for name in settings.columns():
        if name != "eager":
            say(f"{training.title}: {name.replace('_', ' ')} compiles")
        runner = contestant(name, training, model)
        actual = curve(runner.step, model, start, batches, settings.steps)
        # What records a step runs it as eager; once each case was met, the same step is by compiled code.
        again = [curve(runner.step, model, start, batches, 1) for _ in range(SETTLED)]
        actual = replace(actual, gradients=again[-1].gradients)
        expected = expected or actual
        settled = statistics.median(expected.seconds)
        early = [seconds - settled for seconds in actual.seconds[: len(ORDINALS)]]
        row |= {f"{name}_{ordinal}_s": above for ordinal, above in zip(ORDINALS, early, strict=False)}
        row[f"{name}_early_s"] = sum(early)
        row[f"{name}_loss_difference"] = loss_difference(actual, expected)
        row[f"{name}_equal"] = verdict(actual, expected, own)
        if name.startswith("framefuse") and runner.compiled is not None:
            row[f"{name}_runs"] = how(runner.compiled)
        columns[name] = Column(runner.step, batches)
    say(f"{training.title}: {len(columns)} columns in turn")
    medians = interleaved(columns, passes_within(settings.seconds, columns))
    row.update({f"{column}_ms": seconds * 1e3 for column, seconds in medians.items()})
    row["equal"] = max((str(row[f"{name}_equal"]) for name in ("framefuse", "framefuse_whole")), key=len)
    row["follows"] = str(row["equal"]).partition(":")[0]
    compiled = {"model": row["framefuse_runs"], "step": row["framefuse_whole_runs"]}
    there = [what for what, runs in compiled.items() if runs == "compiled"]
    row["compiled"] = "both" if len(there) == 2 else there[0] if there else "no"
    for name in ("framefuse", "framefuse_whole"):
        beside = medians.get(name.replace("framefuse", "torch"), medians.get("torch"))
        row[f"{name}_times_eager"] = medians["eager"] / medians[name]
        row[f"{name}_times_torch"] = None if beside is None else beside / medians[name]
    return row


def main() -> None:
    """Measures the model that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", choices=list(TRAININGS))
    parser.add_argument("--settings", type=json.loads, default={}, help="fields of Settings as JSON")
    parser.add_argument("--threads", type=int, default=1, help="threads of torch (1)")
    options = parser.parse_args()

    def say(step: str) -> None:
        print(SAYS + step, flush=True)

    settings = Settings(**options.settings)
    torch.set_num_threads(options.threads)
    with cold_caches():
        if "torch" in settings.compilers:
            for module in ("torch._dynamo", "torch._inductor.compile_fx"):
                importlib.import_module(module)
        training = TRAININGS[options.model]
        row = measure(training, settings, say)
        for name in settings.columns():
            say(f"{training.title}: memory of {name.replace('_', ' ')}")
            row = {**row, f"{name}_peak_mb": peak_in_fresh_process(training.name, name, settings) / 1e6}
    print(json.dumps(row))


if __name__ == "__main__":
    main()
