"""Measures the programs of the three levels against eager and torch.compile, holds them to float64, names each loss."""

from __future__ import annotations

import copy
import gc
import json
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness.compilers import COMPILERS
from benchmarks.harness.processes import Failed, Process, reason
from benchmarks.harness.report import Field, Row, Say, Value, number
from benchmarks.harness.timing import Column, figures, in_turns, one_pass
from benchmarks.large.matrix import nested
from benchmarks.programs import (
    convolution_chains,
    nets,
    operators,
    other_shapes,
    product_chains,
    scan_chains,
    shapes_and_positions,
    transformers,
)
from benchmarks.programs.program import PROGRAMS, Program, converted

# Whose import declares the programs.
FILES = (
    operators,
    other_shapes,
    shapes_and_positions,
    product_chains,
    convolution_chains,
    scan_chains,
    nets,
    transformers,
)
LEVELS = {1: "single operators", 2: "short chains", 3: "whole nets"}
ROUNDS = 5
SAMPLE = 0.015  # seconds of calls in a row on a GPU
SLOWER, BEHIND = 0.98, 0.98  # of eager's speed and of torch.compile's, below which a program is a loss
# How far from float64 results may be, as parts of their norm, even where eager's are nearer; and how many elements of
# whole numbers may differ, as where two values round to one.
NEAR = {torch.float32: 1e-5, torch.bfloat16: 1e-2}
OTHERS = 1e-3

TITLE = "Programs by hand, milliseconds"
FIELDS = (
    Field("program", "program"),
    Field("level", "level"),
    Field("eager_ms", "eager", "{:.3f}"),
    Field("torch_ms", "torch compile", "{:.3f}"),
    Field("framefuse_ms", "framefuse", "{:.3f}"),
    Field("times_eager", "times eager", "{:.2f}"),
    Field("times_torch", "times torch", "{:.2f}"),
    Field("apart", "of eager's distance", "{:.1f}"),
    Field("first_s", "first call s", "{:.2f}"),
)


@dataclass(frozen=True)
class Chosen:
    """What is to be measured: programs of some levels whose names begin with one of ``only`` (all without), every N-th
    from the K-th on of ``part`` "K/N".
    """

    device: str = "cpu"
    levels: Sequence[int] = tuple(LEVELS)
    only: Sequence[str] = ()
    part: str | None = None
    jobs: int = 1  # processes that compile side by side

    def programs(self) -> list[Program]:
        """In the order in which they are declared."""
        found = [one for one in PROGRAMS if one.level in self.levels and one.name.startswith(tuple(self.only) or "")]
        if self.part is None:
            return found
        first, step = map(int, self.part.split("/"))
        return found[first - 1 :: step]


def without_gradients(function: Callable[..., Any]) -> Callable[..., Any]:
    """The call as inference makes it."""

    def run(*arguments: Any) -> Any:
        with torch.no_grad():
            return function(*arguments)

    return run


def wide(function: Callable[..., Any], arguments: Sequence[Any]) -> list[Tensor] | None:
    """The results in float64, on copies; None where the program cannot be computed so."""
    if isinstance(function, nn.Module):
        function = copy.deepcopy(function).double()
    try:
        return nested(without_gradients(function)(*(converted(copied(one), torch.float64) for one in arguments)))
    except (RuntimeError, TypeError):  # a dtype that the program names, or a lack of memory
        return None


def copied(value: Any) -> Any:
    """What a program that writes to its arguments may be given."""
    return value.clone() if isinstance(value, Tensor) else value


def apart(found: Tensor, exact: Tensor) -> float:
    """The distance as a part of the norm, or of whole numbers the part that differs."""
    if not found.is_floating_point():
        return (found != exact.to(found.dtype)).double().mean().item()
    one, other = found.double(), exact.double()
    difference = torch.where(one == other, 0.0, one - other)  # infinities of one sign are no distance
    return float(difference.norm() / torch.where(other.isfinite(), other, 0.0).norm().clamp(min=1e-30))


def distance(given: Sequence[Tensor], eager: Sequence[Tensor], exact: Sequence[Tensor] | None) -> float | str:
    """How far results are from float64, in times of eager's distance or of what roundings may do; a reason why they
    are wrong.
    """
    most = 0.0
    for place, (one, other) in enumerate(zip(given, eager, strict=True)):
        if one.shape != other.shape or one.dtype is not other.dtype:
            return f"no: {one.dtype} {tuple(one.shape)} in place of {other.dtype} {tuple(other.shape)}"
        true = exact[place] if exact is not None and other.is_floating_point() else other
        bound = NEAR.get(one.dtype, OTHERS)
        most = max(most, apart(one, true) / max(apart(other, true), bound))
    return most if most <= 2 else f"no: {most:.1f} times as far from float64 as eager"


@dataclass
class Ready:
    """A program with its contestants, compiled and compared."""

    program: Program
    functions: dict[str, Callable[..., Any]]
    row: dict[str, Value]


def prepare(program: Program, compilers: Sequence[str], device: str, say: Say) -> Ready:
    """Compiles, calls with the inputs that are timed, and compares results of others with float64's. A compiler that
    fails has no function.
    """
    original = program.function(device)
    arguments, fresh = program.arguments(device, 1), program.arguments(device, 2)
    functions = {"eager": without_gradients(original)}
    row: dict[str, Value] = {"program": program.name, "level": program.level, "equal": "yes"}
    for compiler in compilers:
        say(f"{program.name}: {compiler}")
        dynamic = False if compiler == "torch" else None  # it takes what two programs call for one that changes sizes
        functions[compiler] = without_gradients(COMPILERS[compiler](original, dynamic))
        try:
            first = one_pass(Column(functions[compiler], [arguments]), device)
            functions[compiler](*arguments)
        except Exception as error:  # whatever a compiler raises, the other columns are still worth measuring
            del functions[compiler]
            row["equal" if compiler == "framefuse" else f"{compiler}_fails"] = f"no: {reason(error)}"
            continue
        if compiler == "framefuse":
            exact = wide(original, fresh)
            expected = nested(functions["eager"](*map(copied, fresh)))
            found = distance(nested(functions[compiler](*map(copied, fresh))), expected, exact)
            row |= {"first_s": first, "equal": found if isinstance(found, str) else "yes"}
            row["apart"] = None if isinstance(found, str) else found
    return Ready(program, functions, row)


def timed(ready: Ready, device: str) -> Row:
    """The row, by calls in turn on the inputs of the first call."""
    if "framefuse" not in ready.functions:
        return ready.row
    arguments = ready.program.arguments(device, 1)
    return ready.row | figures(in_turns(ready.functions, arguments, ROUNDS, SAMPLE, device))


def steps(compilers: Sequence[str], chosen: Chosen) -> int:
    """How often `programs` reports progress."""
    if chosen.jobs > 1:
        return len(chosen.programs()) + chosen.jobs
    return len(chosen.programs()) * (1 + len(compilers))


def programs(say: Say, compilers: Sequence[str], chosen: Chosen) -> Iterator[Row]:
    """One row for each program, as it is measured."""
    if chosen.jobs > 1:
        yield from side_by_side(say, compilers, chosen)
        return
    for program in chosen.programs():
        ready = prepare(program, compilers, chosen.device, say)
        say(f"{program.name}: in turn")
        yield timed(ready, chosen.device)
        del ready
        gc.collect()
        if "torch" in compilers:
            torch.compiler.reset()


def side_by_side(say: Say, compilers: Sequence[str], chosen: Chosen) -> Iterator[Row]:
    """The rows from processes that compile at the same time, and measure one after the other."""
    parts = [replace(chosen, part=f"{place}/{chosen.jobs}") for place in range(1, chosen.jobs + 1)]
    alone = {"TORCHINDUCTOR_COMPILE_THREADS": "1"}  # no processes of its own beside each
    texts = [json.dumps([asdict(part), list(compilers), torch.get_num_threads()]) for part in parts]
    workers = [Process("benchmarks.programs.worker", [text], alone) for text in texts]
    try:
        ready = []
        for place, worker in enumerate(workers, 1):
            say(f"process {place} of {len(workers)} compiles")
            with suppress(Failed):  # its programs have rows that say so
                worker.answer()
                ready.append(worker)
        for part, worker in zip(parts, workers, strict=True):
            for place, program in enumerate(part.programs()):
                say(f"{program.name}: in turn")
                failed: Row = {"program": program.name, "level": program.level, "equal": "no: its process failed"}
                try:
                    yield worker.ask("measure", place) if worker in ready else failed
                except Failed:
                    ready.remove(worker)
                    yield failed
    finally:
        for worker in workers:
            worker.dismiss()
        for worker in workers:
            worker.close()


def mean(rows: Sequence[Row], key: str) -> float:
    """Geometric mean of a figure."""
    return math.exp(sum(math.log(number(row, key)) for row in rows) / len(rows))


def findings(rows: Sequence[Row]) -> list[str]:
    """Every wrong result, the means of each level, and every loss, the greatest first."""
    said = [f"{row['program']} is wrong: {row['equal']}" for row in rows if row["equal"] != "yes"]
    for key, other, bound in (("times_eager", "eager", SLOWER), ("times_torch", "torch.compile", BEHIND)):
        for level, what in LEVELS.items():
            part = [row for row in rows if row["level"] == level and row.get(key) is not None]
            if not part:
                continue
            lost = sorted((number(row, key), str(row["program"])) for row in part if number(row, key) < bound)
            behind = f"behind it {len(lost)} of {len(part)}"
            said.append(f"level {level}, {what}: {mean(part, key):.2f} of {other}; {behind}")
            said += [f"  {times:.2f}  {name}" for times, name in lost]
    return said
