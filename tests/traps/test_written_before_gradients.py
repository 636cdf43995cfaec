"""Arguments and results that are written between a call and its gradients, and gradients of these: each operation takes
its slope from what eager's own node saved of it, as that is by then.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.traps.trap import Compiler, Trap, hold, run
from torch import Tensor, nn
from torch.nn import functional as F

Function = Callable[[Tensor, Tensor], Tensor]

# No node of eager's saves the first argument of these, or only what it was made of: writes that count are no error.
PASSING: dict[str, Function] = {
    "add": lambda x, w: (x + w).sin(),
    "sub": lambda x, w: (x - w).cos(),
    "neg": lambda x, w: (-x).exp() * w,
    "times a number": lambda x, w: (x * 2 + 1).sin() / (w / 3).cos(),
    "sum": lambda x, w: x.sum().sin() * w,
    "mean": lambda x, w: x.mean().cos() * w,
    "reshape": lambda x, w: x.reshape(-1, 1).sin() * w,
    "cat": lambda x, w: torch.cat([x, w]).sin(),
    "stack": lambda x, w: torch.stack([x, w]).tanh(),
    "index": lambda x, w: x[[0, 2, 1]].sin() * w[:3],
    "slice": lambda x, w: x[1:].sin().cos() * w[1:],
    "flip": lambda x, w: x.flip(0).sin() * w,
    "roll": lambda x, w: x.roll(1).sin() + w.roll(1).exp(),
    "expand": lambda x, w: (x.expand(2, -1) + w).sin(),
    "tril": lambda x, w: (x[:, None] + w).tril().sin(),
    "where": lambda x, w: torch.where(w > 0, x, w).sin(),
    "masked_fill": lambda x, w: x.masked_fill(w > 0, 0.5).sin(),
    "gather": lambda x, w: x.gather(0, torch.tensor([0, 1, 1])).sin(),
    "cumsum": lambda x, w: x.cumsum(0).sin() * w,
    "pad": lambda x, w: F.pad(x, (1, 1)).sin().sum() * w,
    "clone": lambda x, w: x.clone().sin() * w.clone(),
    "mish of a product": lambda x, w: F.mish(x * 1.5) + w,
    "softmax of a sum": lambda x, w: (x + w).softmax(0) * (x - w).log_softmax(0),
    "embedding": lambda x, w: F.embedding(torch.tensor([0, 1]), x[:, None] + w).sin(),
}
# What one operation keeps of its result is what another one's formula computes of its operand.
TWICE: dict[str, Function] = {
    "cos beside sin": lambda x, w: x.cos() * w + x.sin(),
    "sin of sin": lambda x, w: x.sin().sin() * w + x.cos(),
    "exp twice": lambda x, w: x.exp() * w + x.exp(),
    "powers": lambda x, w: x**2 * w + x**3,
    "sigmoid before silu": lambda x, w: x.sigmoid() * w + F.silu(x),
    "sigmoid behind silu": lambda x, w: F.silu(x) + x.sigmoid() * w,
    "softplus": lambda x, w: F.softplus(x) * w + F.mish(x),
    "cosh beside sinh": lambda x, w: x.cosh() * w + x.sinh(),
    "exp beside logsumexp": lambda x, w: x.exp() * w + x.logsumexp(0),
    "erf beside gelu": lambda x, w: F.gelu(x) + torch.special.erf(x * 0.7071067811865476) * w,
    "exp beside elu": lambda x, w: F.elu(x) * w + x.exp() * w,
    "a quotient": lambda x, w: x / w + (1 / w) * x,
    "layer_norm": lambda x, w: F.layer_norm(x, x.shape[-1:]) * w,
    "layer_norm beside a mean": lambda x, w: F.layer_norm(x, x.shape[-1:]) * w + x.mean() * w,
    "group_norm": lambda x, w: F.group_norm(x[None, None], 1)[0, 0] * w,
    "rms_norm": lambda x, w: F.rms_norm(x, x.shape[-1:]) * w,
    "var": lambda x, w: x.var() * w + x.mean() * w,
    "std": lambda x, w: x.std() * w + x.mean() * w,
    "softmax": lambda x, w: x.softmax(0) * w + x.exp(),
    "log_softmax": lambda x, w: x.log_softmax(0) * w + x.softmax(0) * w,
    "cross_entropy": lambda x, w: F.cross_entropy(x[None], torch.zeros(1, dtype=torch.long)) + x.softmax(0) * w,
    "norm": lambda x, w: x.norm() * w + (x * x).sum() * w,
    "normalize": lambda x, w: F.normalize(x, dim=0) * w + x.norm() * w,
    "cosine_similarity": lambda x, w: F.cosine_similarity(x, w, dim=0) * w + x.norm() * w,
    "tanh": lambda x, w: (1 - x.tanh() ** 2) * w + x.tanh(),
    "relu": lambda x, w: x.relu() * w + F.softplus(x),
    "tan": lambda x, w: x.tanh().tan() * w + x.cos() * w,
    "lerp": lambda x, w: torch.lerp(x, w, 0.3) * w + (w - x) * x,
    "smooth_l1_loss": lambda x, w: F.smooth_l1_loss(x, w) + (x - w).sign() * x,
    "bce": lambda x, w: F.binary_cross_entropy_with_logits(x, w) + x.sigmoid() * w,
    "glu": lambda x, w: F.glu(torch.cat([x, w]), 0) + w.sigmoid() * x,
    "cumprod": lambda x, w: x.cumprod(0) * w,
    "amax": lambda x, w: x.max() * w + x.amax(0) * w,
}
FIRST: dict[str, Function] = {
    "logsigmoid": lambda x, w: F.logsigmoid(x) * w,
    "prod": lambda x, w: x.prod() * w,
    "logcumsumexp": lambda x, w: x.logcumsumexp(0) * w,
}


def _counted(each: Tensor) -> None:
    with torch.no_grad():
        each.mul_(1.5)


def _step(each: Tensor) -> None:
    parameter = nn.Parameter(each.detach())
    parameter.grad = parameter * 0.5
    torch.optim.SGD([parameter], 1.0).step()


HOW: dict[str, Callable[[Tensor], Any]] = {
    ".data": lambda each: each.data.mul_(1.5), "no_grad": _counted, "optimizer": _step
}  # fmt: skip


def _gradients(results: list[Tensor], given: list[Tensor], order: int) -> list[Any]:
    """Gradients, and those of their squares; in the place of an error that it was one."""
    found: list[Any] = []
    try:
        for left in range(order, 0, -1):
            loss = sum(part.square().sum() for part in results)
            parts = torch.autograd.grad(loss, given, create_graph=left > 1, allow_unused=True)
            found += parts
            results = [part for part in parts if part is not None]
    except RuntimeError as error:
        found.append("modified by an inplace operation" in str(error))
    return found


def _program(function: Function, dtype: torch.dtype, order: int) -> Callable[[Any], Iterator[Any]]:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        number = 0
        for place in (0, 1, -1):
            for write in HOW.values():
                number += 1
                generator = torch.Generator().manual_seed(number)
                size = 3 + number % 2
                leaves = [torch.randn(size, generator=generator).to(dtype).requires_grad_() for _ in range(2)]
                x, w = (leaf * 1 for leaf in leaves)
                result = f(x, w)
                write((x, w, result)[place])
                yield _gradients([result], leaves, order)

    return program


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("name", [*PASSING, *TWICE])
def test_written(name: str, order: int, dtype: torch.dtype) -> None:
    function = PASSING[name] if name in PASSING else TWICE[name]
    hold(Trap(_program(function, dtype, order), traces=3, hits=7))


@pytest.mark.parametrize("name", FIRST)
def test_first_gradients_of_written(name: str) -> None:
    hold(Trap(_program(FIRST[name], torch.float64, 1), traces=3, hits=7))


@pytest.mark.parametrize("name", [*PASSING, *TWICE])
def test_rounded(name: str) -> None:
    """The sums of a few terms round in another order; what was written is half as much again."""
    program = _program(PASSING[name] if name in PASSING else TWICE[name], torch.bfloat16, 1)
    compiler = Compiler({"options": {"numerics": "eager"}})
    expected, found = run(program, lambda function: function), run(program, compiler)
    torch.testing.assert_close(found, expected, rtol=6e-2, atol=6e-2, equal_nan=True)
    assert sum(hits for _, hits, _ in compiler.counts.values()) >= 7
