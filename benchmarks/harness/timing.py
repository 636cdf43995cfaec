"""Times several callables side by side, so that all of them meet the same machine, and keeps the medians."""

from __future__ import annotations

import gc
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

Arguments = tuple[Any, ...]
MOST_IN_A_ROW = 100


@dataclass(frozen=True)
class Column:
    """One contestant: `function` is called with each entry of `inputs` in turn."""

    function: Callable[..., object]
    inputs: Sequence[Arguments]


def finish(device: str) -> None:
    """Waits until the device has done what it was given; a CPU has when the call returns."""
    if device != "cpu":
        torch.accelerator.synchronize(device)


def one_pass(column: Column, device: str = "cpu") -> float:
    """Seconds a call: the mean over one pass through the inputs of the column."""
    function = column.function
    clock = time.perf_counter
    if all(len(arguments) == 1 for arguments in column.inputs):
        singles = [arguments[0] for arguments in column.inputs]
        finish(device)
        start = clock()
        for single in singles:
            function(single)
    else:
        finish(device)
        start = clock()
        for arguments in column.inputs:
            function(*arguments)
    finish(device)
    return (clock() - start) / len(column.inputs)


@contextmanager
def no_collection() -> Iterator[None]:
    """Keeps Python's cycle collector from running inside a measurement."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def blocks(column: Column, size: int) -> list[Column]:
    """The column in pieces of `size` inputs."""
    inputs = column.inputs
    return [Column(column.function, inputs[start : start + size]) for start in range(0, len(inputs), size)]


def interleaved(
    columns: Mapping[str, Column], passes: int, device: str = "cpu", block: int = 30, rest: float = 0.0
) -> dict[str, float]:
    """Median seconds a call of each column.

    Every round makes one pass of each column, each round beginning with the next one, so that a slow second of the
    machine, or the caches that a neighbour left, meet all columns alike. A sample is the mean over `block` calls in a
    row: long beside the clock, short beside the time slices in which another process takes the core away. Each pass
    begins after ``rest`` seconds, with a call that does not count: threads that wait awake, as those of ONNX Runtime do
    for some ten milliseconds, would take the next contestant's processors.
    """
    pieces = {name: blocks(column, block) for name, column in columns.items()}
    samples: dict[str, list[float]] = {name: [] for name in columns}
    names = list(columns)
    with no_collection():
        for turn in range(passes):
            first = turn % len(names)
            for name in names[first:] + names[:first]:
                if rest:
                    time.sleep(rest)
                    columns[name].function(*columns[name].inputs[0])
                samples[name] += [one_pass(piece, device) for piece in pieces[name]]
    return {name: statistics.median(taken) for name, taken in samples.items()}


def in_turns(
    functions: Mapping[str, Callable[..., object]], arguments: Arguments, rounds: int, sample: float, device: str
) -> dict[str, float]:
    """Median seconds a call of each function on the same inputs, after a round that counts for nothing. On a GPU a
    sample is calls in a row that the slowest takes ``sample`` seconds for: long beside the wait for their end.
    """
    once = max(one_pass(Column(function, [arguments]), device) for function in functions.values())
    calls = 1 if device == "cpu" else max(1, min(MOST_IN_A_ROW, math.ceil(sample / once)))
    columns = {name: Column(function, [arguments] * calls) for name, function in functions.items()}
    interleaved(columns, 1, device)
    return interleaved(columns, rounds, device, block=calls)


def figures(medians: Mapping[str, float]) -> dict[str, float | None]:
    """The columns of a row: milliseconds of each contestant, and how many times faster framefuse is than others."""
    ours, beside = medians["framefuse"], medians.get("torch")
    times = {"times_eager": medians["eager"] / ours, "times_torch": None if beside is None else beside / ours}
    return {f"{name}_ms": seconds * 1e3 for name, seconds in medians.items()} | times


def timed(function: Callable[..., object], arguments: Arguments, device: str = "cpu") -> float:
    """Seconds of one single call, a first call for instance."""
    return one_pass(Column(function, [arguments]), device)


def passes_within(
    seconds: float, columns: Mapping[str, Column], least: int = 5, most: int = 51, device: str = "cpu"
) -> int:
    """How many rounds of the columns fit into `seconds`, judged by one pass of each."""
    one_round = sum(one_pass(column, device) * len(column.inputs) for column in columns.values())
    return max(least, min(most, int(seconds / one_round)))


@contextmanager
def threads(count: int) -> Iterator[None]:
    """Runs the block with `count` threads in torch's pool."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
