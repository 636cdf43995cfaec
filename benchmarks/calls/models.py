"""Measures the models of the zoo under eager, torch.compile and framefuse: same results, milliseconds, first calls."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from benchmarks.harness.bars import plot_times_eager
from benchmarks.harness.compilers import COMPILERS
from benchmarks.harness.report import Field, Row, Say, Value
from benchmarks.harness.timing import Column, figures, interleaved, passes_within, timed
from benchmarks.starting.first_call import in_fresh_process
from benchmarks.zoo.zoo import MODELS, MissingLibrary

SECONDS = 6.0  # of timing for each model, all columns together
CALLS = 3  # different inputs in one pass

TITLE = "Inference, milliseconds a call; first calls above an eager call, in seconds"
FIELDS = (
    Field("model", "model"),
    Field("eager_ms", "eager", "{:.2f}"),
    Field("torch_ms", "torch compile", "{:.2f}"),
    Field("framefuse_ms", "framefuse", "{:.2f}"),
    Field("times_eager", "times eager", "{:.2f}"),
    Field("times_torch", "times torch", "{:.2f}"),
    Field("framefuse_first_s", "first call", "{:.2f}"),
    Field("torch_first_s", "torch first", "{:.1f}"),
    Field("equal", "equal"),
)


def tensors(result: object) -> list[Tensor]:
    """Every tensor of a result, in order, whatever containers it is made of."""
    return [leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor)]


def difference(result: object, expected: object) -> str:
    """ "yes" if `result` has the type and, within the defaults of assert_close, the tensors of `expected`; else why."""
    if type(result) is not type(expected):
        return f"no: {type(result).__name__} instead of {type(expected).__name__}"
    try:
        torch.testing.assert_close(tensors(result), tensors(expected))
    except AssertionError as error:
        return "no: " + " ".join(str(error).split())[:90]
    return "yes"


def as_near(result: object, expected: object, exact: object) -> str:
    """ "yes" if `result` is of the type and dtypes of `expected`, and about as near to `exact`, which more digits gave:
    of two orders of the same roundings to few digits neither is the right one.
    """
    if type(result) is not type(expected):
        return f"no: {type(result).__name__} instead of {type(expected).__name__}"
    for ours, theirs, true in zip(tensors(result), tensors(expected), tensors(exact), strict=True):
        if ours.dtype is not theirs.dtype or ours.shape != theirs.shape:
            return f"no: {ours.dtype} {tuple(ours.shape)} instead of {theirs.dtype} {tuple(theirs.shape)}"
        far, near = ((part.double() - true.double()).square().mean().sqrt().item() for part in (ours, theirs))
        if not far <= 1.5 * near + 1e-6 * true.double().abs().max().item():
            return f"no: {far:.2g} from the exact result, eager {near:.2g}"
    return "yes"


def same_weights(module: nn.Module) -> nn.Module:
    """A copy of the module that shares every tensor, so that where its weights lie in memory decides nothing."""
    shared = itertools.chain(module.parameters(), module.buffers())
    return copy.deepcopy(module, {id(tensor): tensor for tensor in shared})


@dataclass(frozen=True, slots=True)
class Place:
    """Where and in which floats the models run: a device of torch, the name of a dtype, and the compilers' mode."""

    device: str = "cpu"
    dtype: str = "float32"
    mode: str | None = None

    def put(self, value: Any) -> Any:
        """A module or nested tensors there; integers stay integers."""
        if isinstance(value, nn.Module):
            return value.to(self.device, getattr(torch, self.dtype))
        return tree_map_only(
            Tensor, lambda t: t.to(self.device, getattr(torch, self.dtype) if t.is_floating_point() else t.dtype), value
        )


def measure(name: str, compilers: Sequence[str], seconds: float, fresh: bool, say: Say, place: Place = Place()) -> Row:
    """One row: milliseconds a call of every column for one model, first calls, and whether the results are eager's."""
    model, device = MODELS[name], place.device
    say(f"{model.title}: eager")
    eager, make_inputs = model.build()
    eager = place.put(eager)
    inputs = [place.put(make_inputs(seed)) for seed in range(CALLS)]
    row: dict[str, Value] = {"model": model.title}
    columns = {"eager": Column(eager, inputs)}
    timed(eager, inputs[0], device)
    exact: list[object] = []
    if (device, place.dtype) != ("cpu", "float32"):  # few digits; a GPU's convolutions round to TF32
        wide = Place(device, "float64" if place.dtype == "float32" else "float32")
        precise = wide.put(copy.deepcopy(eager))
        exact = [precise(*wide.put(arguments)) for arguments in inputs]
        del precise
    for compiler in compilers:
        say(f"{model.title}: {compiler} compiles")
        function = COMPILERS[compiler](same_weights(eager), None, place.mode)
        first = {"first_s": timed(function, inputs[0], device), "eager_s": timed(eager, inputs[0], device)}
        if fresh:
            say(f"{model.title}: {compiler} compiles in a fresh process")
            first = in_fresh_process(name, compiler, torch.get_num_threads())
        row[f"{compiler}_first_s"] = first["first_s"] - first["eager_s"]
        answers = [difference(function(*arguments), eager(*arguments)) for arguments in inputs]
        if exact:
            results = ((function(*a), eager(*a), true) for a, true in zip(inputs, exact, strict=True))
            answers = [as_near(*each) for each in results]
        row["equal" if compiler == "framefuse" else f"{compiler}_equal"] = max(answers, key=len)
        columns[compiler] = Column(function, inputs)
    say(f"{model.title}: {len(columns)} columns in turn")
    medians = interleaved(columns, passes_within(seconds, columns, device=device), device)
    row |= figures(medians)
    return row


def measured_or_missing(
    name: str, compilers: Sequence[str], seconds: float, fresh: bool, say: Say, place: Place
) -> Row:
    """The row of `measure`, or one that says which library the model needs."""
    try:
        return measure(name, compilers, seconds, fresh, say, place)
    except MissingLibrary as error:
        return {"model": MODELS[name].title, "equal": f"not run: {error}"}


def steps(names: Sequence[str], compilers: Sequence[str], fresh: bool = False) -> int:
    """How often `models` reports progress."""
    return len(names) * (2 + len(compilers) * (1 + fresh))


def models(
    say: Say,
    names: Sequence[str] = tuple(MODELS),
    compilers: Sequence[str] = ("framefuse", "torch"),
    seconds: float = SECONDS,
    fresh: bool = False,
    place: Place = Place(),
) -> list[Row]:
    """One row for each model, inference without gradients; `fresh` takes first calls in processes of their own, on the
    CPU.
    """
    with torch.no_grad():
        return [measured_or_missing(name, compilers, seconds, fresh, say, place) for name in names]


def findings(rows: Sequence[Row]) -> list[str]:
    """What the table says in words."""
    measured = [row for row in rows if row.get("framefuse_ms") is not None]
    equal = sum(row["equal"] == "yes" for row in measured)
    how = "torch.testing.assert_close, its defaults; on a GPU, or in other floats: as near as eager's to more digits"
    said = [f"{equal} of {len(measured)} models give eager's results ({how})"]
    said += [f"  {row['model']}: {row['equal']}" for row in rows if row["equal"] != "yes"]
    return said


BARS = (("framefuse_ms", "framefuse", "#1d4ed8"), ("torch_ms", "torch.compile", "#ea580c"))


def plot(rows: Sequence[Row], path: Path, caption: str) -> None:
    """Draws for each model how many times faster than eager it runs, a bar for each compiler, as PNG."""
    plot_times_eager(rows, BARS, path, caption)
