"""Measures what gradients cost small functions: a forward that trains, alone and with its backward, beside eager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.calls.chain import chain
from benchmarks.harness.compilers import COMPILERS, Function
from benchmarks.harness.report import Field, Row, Say, Value
from benchmarks.harness.timing import Arguments, Column, interleaved

INPUTS = 60
PASSES = 31


def two() -> Function:
    """Two operations on two tensors."""

    def relu_of_product(x: Tensor, w: Tensor) -> Tensor:
        return torch.relu(x * w)

    return relu_of_product


def linear() -> Function:
    """A linear layer and an activation, with the layer's parameters as arguments."""

    def gelu_of_linear(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return functional.gelu(functional.linear(x, w, b))

    return gelu_of_linear


# Each with the shapes of its arguments, all of which require grad.
FUNCTIONS: dict[str, tuple[Callable[[], Function], tuple[tuple[int, ...], ...]]] = {
    "relu(x * w)": (two, ((8, 16), (8, 16))),
    "gelu(linear(x, w, b))": (linear, ((8, 16), (16, 16), (16,))),
    "chain of 5": (lambda: chain(5), ((8, 16),)),
    "chain of 20": (lambda: chain(20), ((8, 16),)),
}

TITLE = "Small functions of (8, 16) float32 that require grad, microseconds: forward, and forward with backward"
FIELDS = (
    Field("function", "function"),
    Field("eager_forward_us", "eager forward", "{:.2f}"),
    Field("framefuse_forward_us", "framefuse", "{:.2f}"),
    Field("torch_forward_us", "torch.compile", "{:.2f}"),
    Field("times_eager_forward", "times eager", "{:.2f}"),
    Field("eager_both_us", "eager both", "{:.1f}"),
    Field("framefuse_both_us", "framefuse", "{:.1f}"),
    Field("torch_both_us", "torch.compile", "{:.1f}"),
    Field("times_eager_both", "times eager", "{:.2f}"),
)


def arguments_of(shapes: Sequence[tuple[int, ...]], count: int) -> list[Arguments]:
    """`count` calls with leaves of their own."""
    generator = torch.Generator().manual_seed(0)
    return [tuple(torch.randn(s, generator=generator).requires_grad_() for s in shapes) for _ in range(count)]


def both(function: Function, like: Tensor) -> Callable[..., tuple[Tensor, ...]]:
    """Calls `function` and gives the gradients of its arguments for a tangent of ones."""
    tangent = torch.ones_like(like)

    def forward_and_backward(*arguments: Any) -> tuple[Tensor, ...]:
        return torch.autograd.grad(function(*arguments), arguments, tangent)

    return forward_and_backward


def measure(name: str, compilers: Sequence[str], inputs: int, passes: int, say: Say) -> Row:
    """One row: microseconds of the function `name` of FUNCTIONS under eager and each compiler.

    Results and gradients are compared with eager's before anything is timed; a difference raises AssertionError.
    """
    make, shapes = FUNCTIONS[name]
    calls, eager = arguments_of(shapes, inputs), make()
    like = eager(*calls[0]).detach()
    functions = {"eager": eager}
    for compiler in compilers:
        say(f"{name}: {compiler} compiles")
        functions[compiler] = COMPILERS[compiler](make(), False)
        for _ in range(3):  # forward and backward are met, compiled and used
            for arguments in calls[:3]:
                torch.testing.assert_close(functions[compiler](*arguments), eager(*arguments))
                gradients = both(functions[compiler], like)(*arguments)
                torch.testing.assert_close(gradients, both(eager, like)(*arguments))
    columns = {f"{name}_forward": Column(function, calls) for name, function in functions.items()}
    columns |= {f"{name}_both": Column(both(function, like), calls) for name, function in functions.items()}
    say(f"{name}: {len(columns)} columns in turn, {passes} rounds of {inputs} calls")
    interleaved(columns, 2)  # warm-up
    medians = interleaved(columns, passes)
    row: dict[str, Value] = {"function": name, **{f"{column}_us": s * 1e6 for column, s in medians.items()}}
    for part in ("forward", "both"):
        row[f"times_eager_{part}"] = medians[f"eager_{part}"] / medians[f"framefuse_{part}"]
    return row


def steps(compilers: Sequence[str]) -> int:
    """How often `gradients` reports progress."""
    return len(FUNCTIONS) * (1 + len(compilers))


def gradients(say: Say, compilers: Sequence[str], inputs: int = INPUTS, passes: int = PASSES) -> list[Row]:
    """The whole experiment, one row for each function."""
    return [measure(name, compilers, inputs, passes, say) for name in FUNCTIONS]
