"""Measures single fused kernels on large tensors, where memory and arithmetic count and dispatch does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from framefuse.bench.compilers import COMPILERS
from framefuse.bench.report import Field, Row, Say, Value
from framefuse.bench.timing import Column, interleaved, threads

PASSES = 15

TITLE = "One fused kernel on float32, milliseconds"
FIELDS = (
    Field("kernel", "kernel"),
    Field("threads", "threads"),
    Field("eager_ms", "eager", "{:.2f}"),
    Field("torch_ms", "torch compile", "{:.2f}"),
    Field("framefuse_ms", "framefuse", "{:.2f}"),
    Field("times_eager", "times eager", "{:.2f}"),
    Field("times_torch", "times torch", "{:.2f}"),
    Field("gigabytes", "GB/s", "{:.1f}"),
)


def light(x: Tensor) -> Tensor:
    """A chain that memory bounds."""
    return torch.relu(x * 2 + 1)


def heavy(x: Tensor) -> Tensor:
    """A chain that arithmetic bounds."""
    return torch.sigmoid(torch.sin(x + 0.1) * 1.1) * torch.exp(torch.cos(x) * 0.5)


def softmax(x: Tensor) -> Tensor:
    """Along the rows."""
    return torch.softmax(x, -1)


def layer_norm(x: Tensor) -> Tensor:
    """Along the rows, without weights."""
    return torch.nn.functional.layer_norm(x, (x.shape[-1],))


@dataclass(frozen=True)
class Kernel:
    """One case: `function` on a float32 tensor of `shape`, with `threads` threads."""

    name: str
    function: Callable[[Tensor], Tensor]
    shape: tuple[int, ...]
    threads: int


KERNELS = (
    Kernel("light chain, 16 M", light, (1 << 24,), 2),
    Kernel("heavy chain, 16 M", heavy, (1 << 24,), 2),
    Kernel("softmax, 4096 x 1024", softmax, (4096, 1024), 1),
    Kernel("layer norm, 4096 x 1024", layer_norm, (4096, 1024), 1),
)


def measure(case: Kernel, compilers: Sequence[str], passes: int, say: Say) -> Row:
    """One row; `gigabytes` counts one read and one write of the tensor by framefuse, per second."""
    with threads(case.threads):
        x = torch.randn(case.shape, generator=torch.Generator().manual_seed(0))
        columns = {"eager": Column(case.function, [(x,)])}
        for compiler in compilers:
            say(f"{case.name}: {compiler} compiles")
            function = COMPILERS[compiler](case.function, None)
            torch.testing.assert_close(function(x), case.function(x))
            columns[compiler] = Column(function, [(x,)])
        say(f"{case.name}: {len(columns)} columns in turn")
        interleaved(columns, 2)  # warm-up
        medians = interleaved(columns, passes)
    shape = " x ".join(map(str, case.shape))
    row: dict[str, Value] = {"kernel": case.name, "shape": shape, "threads": case.threads}
    row.update({f"{name}_ms": seconds * 1e3 for name, seconds in medians.items()})
    row["times_eager"] = medians["eager"] / medians["framefuse"]
    row["times_torch"] = medians["torch"] / medians["framefuse"] if "torch" in medians else None
    row["gigabytes"] = 2 * x.nbytes / medians["framefuse"] / 1e9
    return row


def steps(compilers: Sequence[str]) -> int:
    """How often `kernels` reports progress."""
    return len(KERNELS) * (1 + len(compilers))


def kernels(say: Say, compilers: Sequence[str] = ("framefuse", "torch"), passes: int = PASSES) -> list[Row]:
    """One row for each case."""
    return [measure(case, compilers, passes, say) for case in KERNELS]
