"""Measures programs of convolutions against eager and torch.compile: inference and training, three precisions."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.harness.compilers import COMPILERS
from benchmarks.harness.heat_map import heat_map
from benchmarks.harness.report import Field, Row, Say, Value, number
from benchmarks.harness.timing import Column, figures, in_turns, one_pass
from benchmarks.large.conv_programs import Program, programs
from benchmarks.large.matrix import findings as findings  # every loss by name, as of single kernels
from benchmarks.zoo.zoo import MissingLibrary

ROUNDS = 5
SAMPLE = 0.05  # seconds of calls in a row on a GPU
GIB = 2**30
PRECISIONS = ("float32", "tf32", "bfloat16")
WAYS = ("inference", "training")
BATCHES = {"cpu": (2,), "cuda": (1, 16, 128)}
# How far results, and gradients of the input, may be from eager's, as parts of their norm.
NEAR = {"float32": (1e-4, 1e-3), "tf32": (1e-2, 5e-2), "bfloat16": (5e-2, 0.2)}

TITLE = "Programs of convolutions, milliseconds"
FIELDS = (
    Field("kernel", "program"),
    Field("eager_ms", "eager", "{:.3f}"),
    Field("torch_ms", "torch compile", "{:.3f}"),
    Field("framefuse_ms", "framefuse", "{:.3f}"),
    Field("times_eager", "times eager", "{:.2f}"),
    Field("times_torch", "times torch", "{:.2f}"),
    Field("eager_gib", "eager GiB", "{:.2f}"),
    Field("framefuse_gib", "framefuse GiB", "{:.2f}"),
    Field("first_s", "first call s", "{:.2f}"),
)


@dataclass(frozen=True)
class Case:
    """A program with a batch, one way and in one precision: ``bfloat16`` is by autocast."""

    program: Program
    batch: int
    way: str
    precision: str

    @property
    def name(self) -> str:
        """Unique among all."""
        return f"{self.program.name} {self.way} {self.precision} {self.batch}"


@dataclass(frozen=True)
class Chosen:
    """What is to be measured: programs whose names begin with one of ``only`` (all without), every N-th case from the
    K-th on of ``part`` "K/N".
    """

    device: str = "cpu"
    ways: Sequence[str] = WAYS
    precisions: Sequence[str] = PRECISIONS
    batches: Sequence[int] = ()
    only: Sequence[str] = ()
    part: str | None = None

    def cases(self) -> list[Case]:
        """The cases in order; on a CPU float32 has no narrower kin."""
        precisions = [each for each in self.precisions if self.device != "cpu" or each != "tf32"]
        found = [
            Case(program, batch, way, precision)
            for program in programs(self.device)
            if not self.only or program.name.startswith(tuple(self.only))
            for way in self.ways
            for precision in precisions
            for batch in self.batches or BATCHES["cpu" if self.device == "cpu" else "cuda"]
        ]
        if self.part is None:
            return found
        first, step = map(int, self.part.split("/"))
        return found[first - 1 :: step]


@contextmanager
def rounding(precision: str) -> Iterator[None]:
    """Lets products of float32 round to TF32, or not, while a case is measured."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = precision == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def call_of(case: Case, function: Callable[..., Any], module: nn.Module, device: str) -> Callable[[Tensor], Tensor]:
    """The call that is timed: inference, or a step without its optimizer, by ``function``, which is ``module`` or was
    compiled from it; returns the result.
    """
    kind, mixed = device.partition(":")[0], case.precision == "bfloat16"

    def result(x: Tensor) -> Tensor:
        with torch.autocast(kind, torch.bfloat16, enabled=mixed):
            found: Tensor = function(x)
        return found

    def inference(x: Tensor) -> Tensor:
        with torch.no_grad():
            return result(x)

    def training(x: Tensor) -> Tensor:
        x.grad = None
        for parameter in module.parameters():
            parameter.grad = None
        found = result(x)
        found.float().square().mean().backward()
        return found.detach()

    return inference if case.way == "inference" else training


def apart(found: Tensor, expected: Tensor) -> float:
    """The distance as a part of the norm."""
    size = expected.double().norm().item()
    return float((found.double() - expected.double()).norm().item() / max(size, 1e-30))


def difference(case: Case, given: Sequence[Tensor | None], expected: Sequence[Tensor | None]) -> str | None:
    """Why result and gradient of the input differ from eager's; None where they are near."""
    for place, (one, other, bound) in enumerate(zip(given, expected, NEAR[case.precision], strict=True)):
        if one is None or other is None or (place and case.program.net):
            continue
        if one.shape != other.shape or one.dtype is not other.dtype or not apart(one, other) <= bound:
            return f"no: the {('result', 'gradient')[place]} is {apart(one, other):.1e} of its norm apart"
    return None


def peak(function: Callable[[Tensor], Tensor], x: Tensor) -> float:
    """GiB that a call on a GPU has at most, the model and its gradients included."""
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(x.device)
    function(x)
    torch.cuda.synchronize(x.device)
    return torch.cuda.max_memory_allocated(x.device) / GIB


def measure(case: Case, compilers: Sequence[str], say: Say, device: str) -> Row:
    """One row."""
    with torch.random.fork_rng(devices=[]), rounding(case.precision):
        torch.manual_seed(0)
        module = case.program.make().to(device)
        module.train(case.way == "training")
        x, fresh = torch.randn(2, *case.program.shape(case.batch, device != "cpu")).to(device).unbind()
        return _measured(case, module, (x, fresh), compilers, say, device)


def _measured(
    case: Case, module: nn.Module, inputs: tuple[Tensor, Tensor], compilers: Sequence[str], say: Say, device: str
) -> Row:
    x, fresh = (each.contiguous().requires_grad_(case.way == "training") for each in inputs)
    row: dict[str, Value] = {"kernel": case.name, "program": case.program.name, "batch": case.batch}
    row |= {"way": case.way, "precision": case.precision, "equal": "yes"}
    functions = {"eager": call_of(case, module, module, device)}
    expected = functions["eager"](fresh), fresh.grad
    for compiler in compilers:
        say(f"{case.name}: {compiler}")
        compiled = call_of(case, COMPILERS[compiler](module, None), module, device)
        first = one_pass(Column(compiled, [(x,)]), device)
        compiled(x)
        wrong = difference(case, (compiled(fresh), fresh.grad), expected)
        if compiler == "framefuse":
            row |= {"first_s": first, "equal": wrong or "yes"}
        functions[compiler] = compiled
    say(f"{case.name}: in turn")
    row |= figures(in_turns(functions, (x,), ROUNDS, SAMPLE, device))
    if device != "cpu":
        row |= {f"{name}_gib": peak(functions[name], x) for name in ("eager", "framefuse")}
    return row


def steps(compilers: Sequence[str], chosen: Chosen) -> int:
    """How often `convs` reports progress."""
    return len(chosen.cases()) * (1 + len(compilers))


def convs(say: Say, compilers: Sequence[str], chosen: Chosen) -> Iterator[Row]:
    """One row for each case, as it is measured: all of them take hours. One whose library is missing is left out, and
    an interrupt ends them.
    """
    for case in chosen.cases():
        try:
            yield measure(case, compilers, say, chosen.device)
        except MissingLibrary as missing:
            say(str(missing))
        except KeyboardInterrupt:
            return
        gc.collect()
        if "torch" in compilers:
            torch.compiler.reset()


def plot(rows: Sequence[Row], path: Path, caption: str) -> None:
    """A map: programs down; way, precision and batch across."""
    cells = [
        (str(row["program"]), f"{row['way']} {row['precision']} {row['batch']}", number(row, "times_eager"))
        for row in rows
    ]
    heat_map(cells, TITLE.partition(",")[0] + ": times faster than eager", path, caption)
