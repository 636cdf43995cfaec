"""Measures single fused kernels on large tensors, where memory and arithmetic count and dispatch does not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from benchmarks.harness.compilers import COMPILERS
from benchmarks.harness.report import Field, Row, Say, Value
from benchmarks.harness.timing import Column, figures, interleaved, threads

PASSES = 15
IN_A_ROW = 20  # calls of a sample on a GPU: one alone would be as short as the wait for its end

TITLE = "One fused kernel, milliseconds"
FIELDS = (
    Field("kernel", "kernel"),
    Field("threads", "threads"),
    Field("eager_ms", "eager", "{:.2f}"),
    Field("torch_ms", "torch compile", "{:.2f}"),
    Field("framefuse_ms", "framefuse", "{:.2f}"),
    Field("times_eager", "times eager", "{:.2f}"),
    Field("times_torch", "times torch", "{:.2f}"),
    Field("gigabytes", "GB/s", "{:.1f}"),
    Field("of_copy", "of a copy's", "{:.2f}"),
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


def total(x: Tensor) -> Tensor:
    """Of everything."""
    return x.sum()


def row_sums(x: Tensor) -> Tensor:
    """Along memory."""
    return x.sum(1)


def column_sums(x: Tensor) -> Tensor:
    """Across memory."""
    return x.sum(0)


def transposed(x: Tensor) -> Tensor:
    """Read along memory and written across it, or the other way round."""
    return (x.t() + 1).contiguous()


def messages(nodes: Tensor, weights: Tensor, source: Tensor, target: Tensor) -> Tensor:
    """What a layer of a graph network adds to its nodes: along each edge a weighted node."""
    return torch.zeros_like(nodes).index_add(0, target, nodes[source] * weights[:, None])


def edges(nodes: Tensor) -> tuple[Tensor, ...]:
    """A weight, a node where it begins and one where it ends for each of ten times as many edges as nodes."""
    count, generator = 10 * len(nodes), torch.Generator(nodes.device).manual_seed(1)
    ends = torch.randint(0, len(nodes), (2, count), generator=generator, device=nodes.device)
    weights = torch.rand(count, generator=generator, device=nodes.device, dtype=nodes.dtype)
    return weights, *ends


@dataclass(frozen=True)
class Kernel:
    """One case: `function` on a tensor of `shape` and `dtype`, and what `others` makes for it, with `threads` threads.
    It must move the tensor `moves` times: 2 where the result is as large, 1 where it is small, 0 where positions say.
    """

    name: str
    function: Callable[..., Tensor]
    shape: tuple[int, ...]
    threads: int = 1
    dtype: torch.dtype = torch.float32
    moves: int = 2
    others: Callable[[Tensor], tuple[Tensor, ...]] = lambda x: ()


KERNELS = (
    Kernel("light chain, 16 M", light, (1 << 24,), 2),
    Kernel("heavy chain, 16 M", heavy, (1 << 24,), 2),
    Kernel("softmax, 4096 x 1024", softmax, (4096, 1024), 1),
    Kernel("layer norm, 4096 x 1024", layer_norm, (4096, 1024), 1),
)


ON_GPU = (
    Kernel("light chain, 64 M", light, (1 << 26,)),
    Kernel("light chain, 64 M, bf16", light, (1 << 26,), dtype=torch.bfloat16),
    Kernel("heavy chain, 64 M", heavy, (1 << 26,)),
    Kernel("sum, 64 M", total, (1 << 26,), moves=1),
    Kernel("row sums, 16384 x 4096", row_sums, (16384, 4096), moves=1),
    Kernel("column sums, 16384 x 4096", column_sums, (16384, 4096), moves=1),
    Kernel("softmax, 8192 x 4096, bf16", softmax, (8192, 4096), dtype=torch.bfloat16),
    Kernel("layer norm, 8192 x 4096, bf16", layer_norm, (8192, 4096), dtype=torch.bfloat16),
    Kernel("transpose, 8192 x 8192", transposed, (8192, 8192)),
    Kernel("messages, 1 M edges x 64", messages, (100_000, 64), moves=0, others=edges),
)


def measure(case: Kernel, compilers: Sequence[str], passes: int, say: Say, device: str = "cpu") -> Row:
    """One row; `gigabytes` counts what framefuse must read and write, per second, and `of_copy` compares it with what a
    copy of the tensor moves.
    """
    with threads(case.threads):
        generator = torch.Generator(device).manual_seed(0)
        x = torch.randn(case.shape, generator=generator, device=device, dtype=case.dtype)
        inputs = [(x, *case.others(x))] * (1 if device == "cpu" else IN_A_ROW)
        columns = {"eager": Column(case.function, inputs)}
        for compiler in compilers:
            say(f"{case.name}: {compiler} compiles")
            function = COMPILERS[compiler](case.function, None)
            short: dict[str, Any] = {"rtol": 1e-3, "atol": 1e-3} if case.moves < 2 else {}  # sums in another order
            torch.testing.assert_close(function(*inputs[0]), case.function(*inputs[0]), **short)
            columns[compiler] = Column(function, inputs)
        say(f"{case.name}: {len(columns)} columns in turn")
        columns["copy"] = Column(torch.empty_like(x).copy_, [(x,)] * len(inputs))
        interleaved(columns, 2, device)  # warm-up
        medians = interleaved(columns, passes, device)
        copied = 2 * x.nbytes / medians.pop("copy")
    shape = " x ".join(map(str, case.shape))
    row: dict[str, Value] = {"kernel": case.name, "shape": shape, "threads": case.threads}
    row |= figures(medians)
    if case.moves:
        row["gigabytes"] = case.moves * x.nbytes / medians["framefuse"] / 1e9
        row["of_copy"] = case.moves * x.nbytes / medians["framefuse"] / copied
    return row


def cases(device: str) -> Sequence[Kernel]:
    """What is measured on a device."""
    return KERNELS if device == "cpu" else ON_GPU


def steps(compilers: Sequence[str], device: str = "cpu") -> int:
    """How often `kernels` reports progress."""
    return len(cases(device)) * (1 + len(compilers))


def kernels(
    say: Say, compilers: Sequence[str] = ("framefuse", "torch"), passes: int = PASSES, device: str = "cpu"
) -> list[Row]:
    """One row for each case."""
    return [measure(case, compilers, passes, say, device) for case in cases(device)]
