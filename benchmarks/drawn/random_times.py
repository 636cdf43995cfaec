"""Measures random programs against eager, by the time of the thread, and names each that is slower and of what kind."""

from __future__ import annotations

import gc
import math
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from benchmarks.drawn.random_programs import Program, drawn
from benchmarks.drawn.random_table import TABLE
from benchmarks.harness.compilers import COMPILERS
from benchmarks.harness.report import Field, Row, Say, number
from benchmarks.harness.timing import no_collection

SEED, COUNT = 0, 1000
SAMPLE = 2e-4  # seconds of calls in a row: long beside what asking for the time takes
ROUNDS, TURNS = 9, 3  # rounds of a measurement, and measurements of what looks slower
BETWEEN = 50  # programs between two collections
LOSS = 0.95

TITLE = "Random programs that are slower than eager, microseconds"
FIELDS = (
    Field("seed", "seed"),
    Field("times_eager", "times eager", "{:.2f}"),
    Field("eager_us", "eager", "{:.1f}"),
    Field("framefuse_us", "framefuse", "{:.1f}"),
    Field("families", "families"),
)


def both_ways(function: Callable[..., Any], gradient: Tensor) -> Callable[..., object]:
    """The gradients of what was given to the function."""

    def run(*inputs: Tensor) -> object:
        leaves = [one for one in inputs if one.requires_grad]
        return torch.autograd.grad(function(*inputs), leaves, gradient, allow_unused=True)

    return run


def pair(program: Program) -> tuple[Callable[..., Any], Callable[..., Any]] | None:
    """Eager's call and the compiled one, ready to be timed; None where eager has no gradient to give, or raises."""
    eager = program.function()
    compiled = COMPILERS["framefuse"](program.function(), None)
    if not program.backward:
        return eager, compiled
    try:
        result = eager(*program.arguments(1))
        gradient = torch.randn(result.shape, generator=torch.Generator().manual_seed(1)).to(result.dtype)
        both = both_ways(eager, gradient)
        both(*program.arguments(2))
    except (RuntimeError, IndexError):  # no gradient, or sizes that values decide
        return None
    return both, both_ways(compiled, gradient)


def seconds(function: Callable[..., Any], arguments: tuple[Any, ...], calls: int, clock: Callable[[], float]) -> float:
    """Of one call, by so many in a row."""
    start = clock()
    for _ in range(calls):
        function(*arguments)
    return (clock() - start) / calls


def medians(eager: Callable[..., Any], compiled: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[float, float]:
    """Seconds of a call of each, in turn; of the thread, or by the clock where several compute."""
    clock = time.thread_time if torch.get_num_threads() == 1 else time.perf_counter
    columns = (eager, compiled)
    calls = [max(1, math.ceil(SAMPLE / max(seconds(one, arguments, 1, clock), 1e-9))) for one in columns]
    taken: tuple[list[float], list[float]] = ([], [])
    for turn in range(ROUNDS):
        for index in (0, 1) if turn % 2 else (1, 0):
            taken[index].append(seconds(columns[index], arguments, calls[index], clock))
    return statistics.median(taken[0]), statistics.median(taken[1])


def same(actual: Any, expected: Any) -> bool:
    """Whether results are as near to each other as those of other roundings may be."""
    if isinstance(expected, (tuple, list)):
        alike = isinstance(actual, (tuple, list)) and len(actual) == len(expected)
        return alike and all(map(same, actual, expected))
    if not isinstance(expected, Tensor) or not isinstance(actual, Tensor):
        return type(actual) is type(expected)
    if actual.shape != expected.shape or actual.dtype is not expected.dtype:
        return False
    if not (expected.is_floating_point() or expected.is_complex()):
        return (actual != expected).double().mean().item() < 0.02 if expected.numel() else True
    wide = torch.complex128 if expected.is_complex() else torch.float64
    one, other = actual.detach().to(wide), expected.detach().to(wide)
    exact = expected.dtype in (torch.float32, torch.float64, torch.complex64)
    bounds = (1e-2, 1e-2) if exact else (0.1, 0.3)
    near = torch.isclose(one, other, *bounds, equal_nan=True)
    return near.double().mean().item() > 0.97 if near.numel() else True


def measure(program: Program) -> Row | None:
    """One row: the best of three measurements where the first was slower, so that noise alone is no loss; None where
    another thing than time is different in each call, as a size that values decide.
    """
    ready = pair(program)
    if ready is None:
        return None
    eager, compiled = ready
    arguments, fresh = program.arguments(2), program.arguments(3)
    writes = "writes" in program.families
    others = (program.arguments(4), program.arguments(4))
    try:
        for seed in (2, 3):
            eager(*program.arguments(seed))
        expected = eager(*others[1])
    except (RuntimeError, IndexError):  # sizes that values decide do not fit those of other arguments
        return None
    for given in (arguments, arguments, fresh, arguments):
        compiled(*given)
    alike = same(compiled(*others[0]), expected) and (not writes or same(others[0], others[1]))
    best = medians(eager, compiled, arguments)
    for _ in range(TURNS - 1):
        if best[0] / best[1] >= LOSS:
            break
        best = max(best, medians(eager, compiled, arguments), key=lambda times: times[0] / times[1])
    times = best[0] / best[1]
    return {
        "seed": program.seed, "families": " ".join(dict.fromkeys(program.families)), "times_eager": times,
        "eager_us": best[0] * 1e6, "framefuse_us": best[1] * 1e6, "alike": "yes" if alike else "no",
        "statements": len(program.families), "backward": int(program.backward), "program": program.name,
    }  # fmt: skip


def programs(say: Say, seed: int, count: int, families: Sequence[str]) -> list[Row]:
    """A row for each program, from this seed on; an interrupt ends it and keeps the rows that are there."""
    rows: list[Row] = []
    gc.freeze()  # what is loaded so far is not looked through again
    with no_collection():
        for place in range(seed, seed + count):
            try:
                row = one(say, place, families)
            except KeyboardInterrupt:
                break
            if row is not None:
                rows.append(row)
            if place % BETWEEN == 0:
                gc.collect()
    return rows


def one(say: Say, seed: int, families: Sequence[str]) -> Row | None:
    """The row of one program; None for one that does nothing or cannot be measured."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program = drawn(seed, tuple(families) or tuple(TABLE))
        say(program.name[:44])
        return measure(program) if program.families else None


def losses(rows: Sequence[Row]) -> list[Row]:
    """The rows that are slower than eager, the slowest first."""
    lost = [row for row in rows if number(row, "times_eager") < LOSS]
    return sorted(lost, key=lambda row: number(row, "times_eager"))


def findings(rows: Sequence[Row]) -> list[str]:
    """Every loss as a program, how many there are of which families, and how fast all programs are."""
    if not rows:
        return []
    lost = losses(rows)
    said = [f"unlike eager, by roundings or by a fault: {row['program']}" for row in rows if row["alike"] != "yes"]
    said += [f"{number(row, 'times_eager'):.2f}  {row['program']}" for row in lost]
    mean = math.exp(sum(math.log(number(row, "times_eager")) for row in rows) / len(rows))
    share = len(lost) / len(rows)
    said.append(f"slower than eager: {len(lost)} of {len(rows)} ({share:.1%}); geometric mean {mean:.2f}")
    for family in TABLE:
        of, slow = (sum(family in str(row["families"]).split() for row in some) for some in (rows, lost))
        if of:
            said.append(f"  {family}: {slow} of {of}")
    return said
