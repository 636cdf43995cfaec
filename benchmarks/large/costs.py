"""Measures the sizes by which fuse decides: the program that each decides about, compiled with the size and others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import framefuse
from benchmarks.harness.report import Field, Row, Say, Value
from benchmarks.harness.timing import Column, no_collection, one_pass, threads
from framefuse.ir import costs as sizes

PASSES = 25
TITLE = "Sizes of fuse, times as fast as with the size that it has"
FIELDS = (
    Field("size", "size"),
    Field("program", "program"),
    Field("has", "has"),
    Field("ms", "ms", "{:.3f}"),
    Field("others", "with others"),
)


@dataclass(frozen=True)
class Case:
    """The size `name` of `ir/costs.py`, or the one that stands there under a `key`, `others` to compare with, and the
    program on tensors of `shapes`.
    """

    name: str
    others: Sequence[Any]
    title: str
    function: Callable[..., object]
    shapes: Sequence[tuple[int, ...]]
    threads: int = 1
    dtype: torch.dtype = torch.float32
    key: str | None = None

    @property
    def own(self) -> Any:
        """The size as it is."""
        value = getattr(sizes, self.name)
        return value if self.key is None else value[self.key]


def total(x: Tensor) -> Tensor:
    """Of everything."""
    return (x * 2).sum()


def columns(x: Tensor) -> Tensor:
    """Across memory."""
    return (x * 2).sum(0)


# What is as large as the operands goes to memory that is there: getting pages from the system would hide the rest.


def transposed(out: Tensor, x: Tensor) -> None:
    """Read across memory."""
    out.copy_(x.t() + 1)


def softmax(out: Tensor, x: Tensor) -> None:
    """Exponentials that a later sweep over the row needs again."""
    out.copy_(torch.softmax(x * 2, -1))


def joined(out: Tensor, x: Tensor, y: Tensor) -> None:
    """Three pieces along memory."""
    out.copy_(torch.cat([x, y, x], 1) * 2)


def narrow(out: Tensor, x: Tensor, y: Tensor) -> None:
    """Rows of 32 elements, which cannot be joined with the axes around them."""
    out.copy_(x.permute(0, 2, 1, 3) * y)


def twice(out: Tensor, x: Tensor) -> Tensor:
    """A value that two kernels read."""
    y = torch.exp(x)
    out.copy_(y.t() + 1)
    return y.sum(0)


def skewed(out: Tensor, x: Tensor) -> None:
    """Rows of which each is shifted by one more element, as positions that are relative to a row."""
    rows, columns = x.shape[1:]
    longer = torch.nn.functional.pad(x, (0, 1)).flatten(1)[:, : rows * columns]
    out.copy_(longer.reshape(-1, rows, columns) * 2)


def repeated(out: Tensor, x: Tensor, row: Tensor) -> None:
    """Rows times exponentials of one row, which each of them needs."""
    out.copy_(x * row.exp())


def rotary(out: Tensor, x: Tensor, turns: Tensor) -> None:
    """Pairs of numbers as complex ones, which are turned."""
    turned = torch.view_as_complex(x) * torch.view_as_complex(turns)
    out.copy_(torch.view_as_real(turned * 2))


def normed(x: Tensor) -> Tensor:
    """A batch norm in training with what is behind it."""
    return F.relu(F.batch_norm(x, None, None, training=True))


def convolved(x: Tensor, weight: Tensor) -> Tensor:
    """A convolution between two kernels."""
    return F.relu(F.conv2d(x * 2, weight, padding=1))


BFLOAT16, FLOAT16 = torch.bfloat16, torch.float16
CASES = (
    Case("CHUNK", (512, 1024, 16384, 65536), "sum of 4 M", total, [(1 << 22,)]),
    Case("CPU_STAGED_ABOVE", (10_000, 10_000_000), "sum of 512 k, 2 threads", total, [(1 << 19,)], 2),
    Case("CPU_TILE", (128, 256, 1024, 2048), "column sums, 4096 x 2048", columns, [(4096, 2048)]),
    Case("CPU_TILE_ROWS", (2, 4, 16, 32), "column sums, 4096 x 2048", columns, [(4096, 2048)]),
    Case("CPU_TILE_BLOCKS", (4, 64), "column sums, 4096 x 2048", columns, [(4096, 2048)]),
    Case("CPU_TILED_ABOVE", (8, 1 << 30), "column sums, 48 x 65536", columns, [(48, 65536)]),
    Case("CPU_TILED_ABOVE", (8,), "column sums, 24 x 65536", columns, [(24, 65536)]),
    Case("CPU_SQUARE", ((16, 16), (32, 32), (128, 128)), "transpose, 2048 x 2048", transposed, [(2048, 2048)] * 2),
    Case("CROSSED", (16, 1 << 30), "transpose, 96 x 96", transposed, [(96, 96)] * 2),
    Case("CROSSED", (16,), "transpose, 48 x 48", transposed, [(48, 48)] * 2),
    Case("SCRATCH", (1024,), "softmax, 256 x 8192", softmax, [(256, 8192)] * 2),
    Case("SCRATCH", (1 << 20,), "softmax, 64 x 65536", softmax, [(64, 65536)] * 2),
    Case("SAVED_ABOVE", (0.01, 100.0), "softmax, 1024 x 1024", softmax, [(1024, 1024)] * 2),
    Case("CPU_CAT_PIECES", (0,), "cat, 512 x 300", joined, [(512, 300), (512, 100), (512, 100)]),
    Case("CPU_NARROW", (0, 1 << 30), "rows of 32", narrow, [(8, 64, 64, 32)] * 3),
    Case("DIVISION", (0.0, 0.1, 1.0), "skewed rows, 512 x 31 x 60", skewed, [(512, 31, 60)] * 2),
    Case("KEPT_ELEMENT", (0.0, 1.0, 10.0), "skewed rows, 512 x 31 x 60", skewed, [(512, 31, 60)] * 2),
    Case("KEPT_ABOVE", (0.0, 100.0), "exp, read by two kernels", twice, [(1024, 1024)] * 2),
    Case("REPEATED_WORK", (0, 10**9), "exp, read by two kernels", twice, [(1024, 1024)] * 2),
    Case("CPU_HELD", (0,), "column sums, 65536 x 32", columns, [(65536, 32)]),
    Case("CPU_HELD", (0,), "column sums, 65536 x 64", columns, [(65536, 64)]),
    Case("CPU_REPEATED", (100,), "rows over exp of one, 1024 x 512", repeated, [(1024, 512), (1024, 512), (512,)]),
    Case("COMPLEX_SAVED", ((2, 2),), "rotary, 1024 x 64 pairs", rotary, [(1024, 64, 2)] * 3),
    Case("SHORT_NORM", (0.15,), "batch norm, 8 x 64 x 28 x 28", normed, [(8, 64, 28, 28)], dtype=BFLOAT16),
    Case(
        "CONVOLUTION", ((0.0, 0.00075),), "3 x 3, 2 x 16 x 32 x 32", convolved, [(2, 16, 32, 32), (16, 16, 3, 3)],
        dtype=FLOAT16, key="plain of float16",
    ),
)


@contextmanager
def held(case: Case, value: object) -> Iterator[None]:
    """Gives the size of a case another value."""
    before = getattr(sizes, case.name)
    setattr(sizes, case.name, value if case.key is None else {**before, case.key: value})
    try:
        yield
    finally:
        setattr(sizes, case.name, before)


def fastest(runs: Mapping[str, Column], passes: int) -> dict[str, float]:
    """The least seconds a call of each column, by turns: what is compared are kernels, not the machine's other work."""
    with no_collection():
        samples = [{name: one_pass(column) for name, column in runs.items()} for _ in range(passes)]
    return {name: min(sample[name] for sample in samples) for name in runs}


def measure(case: Case, passes: int, say: Say) -> Row:
    """One row: milliseconds with the size as it is, and how many times as fast each other one is."""
    generator = torch.Generator().manual_seed(0)
    inputs = tuple(torch.randn(shape, generator=generator).to(case.dtype) for shape in case.shapes)
    own = case.own
    runs: dict[str, Column] = {}
    with threads(case.threads):
        for value in (own, *case.others):
            say(f"{case.key or case.name} = {value}")
            with held(case, value):  # a kept program would be of another value
                compiled = framefuse.compile(lambda *tensors: case.function(*tensors), options={"cache": False})
                compiled(*inputs)
                compiled(*inputs)
            runs[str(value)] = Column(compiled, [inputs] * 5)
        best = fastest(runs, passes)
    first = best[str(own)]
    others = ", ".join(f"{value}: {first / best[str(value)]:.2f}" for value in case.others)
    row: dict[str, Value] = {"size": case.key or case.name, "program": case.title, "has": str(own), "ms": first * 1e3}
    return {**row, "others": others}


def steps() -> int:
    """How often `costs` reports progress."""
    return sum(1 + len(case.others) for case in CASES)


def costs(say: Say, passes: int = PASSES) -> list[Row]:
    """One row for each case."""
    return [measure(case, passes, say) for case in CASES]
