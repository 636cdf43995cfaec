"""Measures what a call costs before any work: dispatch and guards of models whose graphs are replaced by the answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

import framefuse
from benchmarks.harness.report import Field, Row, Say, Value
from benchmarks.harness.timing import Column, interleaved
from benchmarks.zoo.zoo import bert, text

HIDDEN = 64
CALLS = 50
PASSES = 25

Made = tuple[torch.nn.Module, tuple[Any, ...]]  # a model and the arguments of a call


def encoder(layers: int) -> Made:
    """BERT with `layers` layers of hidden size 64, and a text of 64 tokens."""
    return bert(layers, HIDDEN)(), text()


def linear_layers(layers: int) -> Made:
    """A chain of linear layers of size 64, and one row."""
    return torch.nn.Sequential(*(torch.nn.Linear(HIDDEN, HIDDEN) for _ in range(layers))), (torch.randn(1, HIDDEN),)


MODELS: dict[str, Callable[[], Made]] = {
    "BERT, 1 layer": partial(encoder, 1),
    "BERT, 6 layers": partial(encoder, 6),
    "BERT, 24 layers": partial(encoder, 24),
    "100 linear layers": partial(linear_layers, 100),
}

TITLE = "Dispatch and guards, microseconds a call"
FIELDS = (
    Field("model", "model"),
    Field("modules", "modules"),
    Field("torch_us", "torch.compile", "{:.1f}"),
    Field("framefuse_us", "framefuse", "{:.1f}"),
    Field("times_torch", "times torch", "{:.1f}"),
)


def answer_only(graph: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
    """A backend that computes a graph once and gives that answer ever after, so that only checking costs time."""
    known: Any = None

    def call(*arguments: Any) -> Any:
        nonlocal known
        if known is None:
            known = graph(*arguments)
        return known

    return call


def without_work(model: torch.nn.Module, compiler: str) -> Callable[..., Any]:
    """`model` compiled by `compiler` with the backend above."""
    compile_ = framefuse.compile if compiler == "framefuse" else torch.compile
    return compile_(model, backend=answer_only)


def measure(name: str, compilers: Sequence[str], passes: int, say: Say) -> Row:
    """One row: microseconds a call for the model `name` of MODELS."""
    model, arguments = MODELS[name]()
    model.eval()
    inputs = [arguments] * CALLS
    columns = {}
    for compiler in compilers:
        say(f"{name}: {compiler} compiles")
        columns[compiler] = Column(without_work(model, compiler), inputs)
        columns[compiler].function(*arguments)
    say(f"{name}: {len(columns)} columns in turn")
    interleaved(columns, 2)  # warm-up
    medians = interleaved(columns, passes)
    row: dict[str, Value] = {"model": name, "modules": sum(1 for _ in model.modules())}
    row.update({f"{name}_us": seconds * 1e6 for name, seconds in medians.items()})
    row["times_torch"] = medians["torch"] / medians["framefuse"] if "torch" in medians else None
    return row


def steps(compilers: Sequence[str]) -> int:
    """How often `guards` reports progress."""
    return len(MODELS) * (1 + len(compilers))


def guards(say: Say, compilers: Sequence[str] = ("framefuse", "torch"), passes: int = PASSES) -> list[Row]:
    """One row for each model; the cost should hardly grow with its size."""
    with torch.no_grad():
        return [measure(name, compilers, passes, say) for name in MODELS]
