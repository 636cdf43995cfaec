"""Measures what a call costs before any work: dispatch and guards on BERT, its graph replaced by the answer itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

import framefuse
from framefuse.bench.report import Field, Row, Say, Value
from framefuse.bench.timing import Column, interleaved
from framefuse.bench.zoo import bert, text

LAYERS = (1, 6, 24)
HIDDEN = 64
CALLS = 50
PASSES = 25

TITLE = "Dispatch and guards on BERT of hidden size 64, microseconds a call"
FIELDS = (
    Field("layers", "layers"),
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


def measure(layers: int, compilers: Sequence[str], passes: int, say: Say) -> Row:
    """One row: microseconds a call for BERT with `layers` layers of hidden size 64, text of 64 tokens."""
    model = bert(layers, HIDDEN)().eval()
    inputs = [text()] * CALLS
    columns = {}
    for compiler in compilers:
        say(f"{layers} layers: {compiler} compiles")
        columns[compiler] = Column(without_work(model, compiler), inputs)
        columns[compiler].function(*inputs[0])
    say(f"{layers} layers: {len(columns)} columns in turn")
    interleaved(columns, 2)  # warm-up
    medians = interleaved(columns, passes)
    row: dict[str, Value] = {"layers": layers, "modules": sum(1 for _ in model.modules())}
    row.update({f"{name}_us": seconds * 1e6 for name, seconds in medians.items()})
    row["times_torch"] = medians["torch"] / medians["framefuse"] if "torch" in medians else None
    return row


def steps(compilers: Sequence[str]) -> int:
    """How often `guards` reports progress."""
    return len(LAYERS) * (1 + len(compilers))


def guards(say: Say, compilers: Sequence[str] = ("framefuse", "torch"), passes: int = PASSES) -> list[Row]:
    """One row for each number of layers; the cost should not grow with them."""
    with torch.no_grad():
        return [measure(layers, compilers, passes, say) for layers in LAYERS]
