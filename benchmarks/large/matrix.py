"""Measures the matrix of large kernels against eager and torch.compile, names every loss, and draws it as a map."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness.compilers import COMPILERS
from benchmarks.harness.heat_map import heat_map
from benchmarks.harness.report import Field, Row, Say, Value, number
from benchmarks.harness.timing import Column, figures, in_turns, one_pass
from benchmarks.large.matrix_cases import Case, Inputs, cases

PASSES = 7
SAMPLE = 0.01  # seconds of calls in a row on a GPU
LOSS = 0.98

TITLE = "The matrix of large kernels, milliseconds"
FIELDS = (
    Field("kernel", "kernel"),
    Field("eager_ms", "eager", "{:.3f}"),
    Field("torch_ms", "torch compile", "{:.3f}"),
    Field("framefuse_ms", "framefuse", "{:.3f}"),
    Field("times_eager", "times eager", "{:.2f}"),
    Field("times_torch", "times torch", "{:.2f}"),
    Field("of_copy", "of a copy's", "{:.2f}"),
    Field("first_s", "first call s", "{:.2f}"),
)


def both_ways(function: Callable[..., Any], gradient: Tensor) -> Callable[..., tuple[Tensor, ...]]:
    """The result and the gradients of what was given to the function."""

    def run(*inputs: Tensor) -> tuple[Tensor, ...]:
        result = function(*inputs)
        return result, *torch.autograd.grad(result, inputs, gradient)

    return run


def nested(result: object) -> list[Tensor]:
    """The tensors of a result."""
    if isinstance(result, Tensor):
        return [result]
    return list(chain.from_iterable(map(nested, result))) if isinstance(result, tuple) else []


def bytes_of(tensors: Sequence[Tensor]) -> int:
    """What they hold in memory."""
    return sum(tensor.nbytes for tensor in tensors)


def difference(case: Case, actual: object, expected: object, inputs: Inputs) -> str | None:
    """Why the results differ; None where they are as near to each other as roundings of this dtype let them be."""
    for one, other in zip(nested(actual), nested(expected), strict=True):
        if not case.exact:
            axis = {"first": 0, "middle": 1, "last": 2}.get(case.axis)
            flat = inputs[0].flatten() if axis is None else inputs[0]
            one, other = (
                torch.take_along_dim(flat, place if axis is None else place.unsqueeze(axis), axis or 0)
                for place in (one.reshape(-1) if axis is None else one, other.reshape(-1) if axis is None else other)
            )
        bound = {torch.float32: 1e-3, torch.bfloat16: 6e-2}.get(one.dtype, 0.0)
        size = other.double().abs().amax().item() if other.numel() else 0.0
        apart = (one.double() - other.double()).abs().amax().item() if other.numel() else 0.0
        if one.dtype is not other.dtype or not apart <= bound * max(size, 1.0):
            return f"no: {apart:.1e} of {size:.1e} apart"
    return None


def prepared(case: Case, function: Callable[..., Any], inputs: Inputs) -> Callable[..., object]:
    """The call that is timed: of the function alone, or with its backward."""
    if not case.backward:
        return function
    torch.manual_seed(1)
    with torch.no_grad():
        gradient = torch.randn_like(nested(case.function(*inputs))[0])
    return both_ways(function, gradient)


def measure(case: Case, compilers: Sequence[str], say: Say, device: str) -> Row:
    """One row; `of_copy` is what framefuse must move, per second, over what a copy moves."""
    generator = torch.Generator(device).manual_seed(0)
    inputs = case.make(device, generator)
    fresh = case.make(device, generator)
    if case.backward:
        inputs, fresh = (tuple(one.requires_grad_() for one in given) for given in (inputs, fresh))
    eager = prepared(case, case.function, inputs)
    expected = eager(*fresh)
    moved = case.passes * inputs[0].nbytes or bytes_of(inputs) + bytes_of(nested(expected))
    row: dict[str, Value] = {"kernel": case.name, "operation": case.operation, "axis": case.axis, "size": case.size}
    row |= {"dtype": str(case.dtype).removeprefix("torch."), "equal": "yes"}
    functions = {"eager": eager}
    for compiler in compilers:
        say(f"{case.name}: {compiler}")
        compiled = prepared(case, COMPILERS[compiler](case.function, None), inputs)
        first = one_pass(Column(compiled, [inputs]), device)
        compiled(*fresh)
        wrong = difference(case, compiled(*fresh), expected, fresh)
        if compiler == "framefuse":
            row["first_s"] = first
            row["equal"] = wrong or "yes"
        functions[compiler] = compiled
    del expected
    say(f"{case.name}: in turn")
    source, target = inputs[0].detach(), torch.empty_like(inputs[0]).detach()
    medians = in_turns({**functions, "copy": lambda *_: target.copy_(source)}, inputs, PASSES, SAMPLE, device)
    copied = 2 * inputs[0].nbytes / medians.pop("copy")
    row |= figures(medians)
    row["of_copy"] = moved / medians["framefuse"] / copied
    return row


def part_of(device: str, part: str | None, only: Sequence[str] = ()) -> list[Case]:
    """The cases of a part "K/N": each N-th from the K-th on; ``only`` some operations."""
    chosen = [case for case in cases(device) if not only or case.operation in only]
    if part is None:
        return chosen
    first, step = map(int, part.split("/"))
    return chosen[first - 1 :: step]


def steps(compilers: Sequence[str], device: str, part: str | None, only: Sequence[str] = ()) -> int:
    """How often `matrix` reports progress."""
    return len(part_of(device, part, only)) * (1 + len(compilers))


def matrix(
    say: Say, compilers: Sequence[str], device: str = "cpu", part: str | None = None, only: Sequence[str] = ()
) -> list[Row]:
    """One row for each case; an interrupt ends the measurement and keeps the rows that are there."""
    rows: list[Row] = []
    for case in part_of(device, part, only):
        try:
            rows.append(measure(case, compilers, say, device))
        except KeyboardInterrupt:
            break
        if "torch" in compilers:
            torch.compiler.reset()
    return rows


def findings(rows: Sequence[Row]) -> list[str]:
    """Every loss by name, every wrong result, and the geometric means."""
    said = [f"{row['kernel']} differs from eager: {row['equal']}" for row in rows if row["equal"] != "yes"]
    for key, other in (("times_eager", "eager"), ("times_torch", "torch.compile")):
        figures = sorted((number(row, key), str(row["kernel"])) for row in rows if row.get(key) is not None)
        if not figures:
            continue
        lost = [(times, name) for times, name in figures if times < LOSS]
        mean = math.exp(sum(math.log(times) for times, _ in figures) / len(figures))
        said.append(f"behind {other}: {len(lost)} of {len(figures)}; geometric mean {mean:.2f}")
        said += [f"  {times:.2f}  {name}" for times, name in lost]
    return said


def plot(rows: Sequence[Row], path: Path, caption: str) -> None:
    """A map: operations down, axis x size x dtype across."""
    cells = [
        (str(row["operation"]), f"{row['dtype']} {row['axis']} {row['size']}", number(row, "times_eager"))
        for row in rows
    ]
    heat_map(cells, TITLE.partition(",")[0] + ": times faster than eager", path, caption)
