"""Complex and 16-bit arguments and results that eager saves, and that are written before the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.traps.trap import Trap, hold
from torch import Tensor

Parts = tuple[Tensor, ...]

COMPLEX: dict[str, Callable[[Tensor, Tensor], Parts]] = {
    "a product of products": lambda y, w: (y * w * y,),
    "an absolute value": lambda y, w: ((y * w).abs(),),
    "a matrix product": lambda y, w: ((y @ w).abs(),),
    "a slice": lambda y, w: (y[:2] * w[1:] * y[1:],),
    "an exponential": lambda y, w: (y.exp(), w * 2),
    "an exponential of a sum": lambda y, w: ((y + w).exp() * w,),
    "an exponential that is not saved": lambda y, w: (y.exp().exp().real, w * 2),
    "a conjugate": lambda y, w: (y.conj() * y * w,),
    "a clone": lambda y, w: (y.clone() * w * y.clone(),),
    "a result that is read": lambda y, w: (z := y.exp() * w.exp(), z * w * z.exp()),
    "a sum that is read": lambda y, w: (z := y + w, z.abs() * w.abs()),
    "joined": lambda y, w: (z := torch.complex(y.real.exp(), w.imag.sin()), z * z),
    "joined of one": lambda y, w: (z := torch.complex(y.real.exp(), y.imag.sin()), w * 2, z * z),
    "joined of sizes": lambda y, w: (z := torch.complex(y.abs().exp(), w.abs().sin()), z * z),
    "a real part": lambda y, w: (y.real.sin(), w * 2),
    "an imaginary part": lambda y, w: (y.imag.sin() * w.real, w * 2),
}  # fmt: skip
ROUNDED: dict[str, Callable[[Tensor, Tensor], Parts]] = {
    "exp": lambda y, w: (y.exp(), w * 2),
    "exp, widened": lambda y, w: (z := y.exp(), z.float() * w),
    "exp, widened twice": lambda y, w: (z := y.exp(), z.float() * z.float() * w),
    "tanh": lambda y, w: (z := y.tanh(), z.float().sin() * w),
    "sigmoid": lambda y, w: (z := y.sigmoid(), z * z * w),
    "relu": lambda y, w: (z := y.relu(), z * w.float()),
}  # fmt: skip
WRITES: dict[str, Callable[[Tensor, Parts], Any]] = {
    "nothing": lambda y, found: None,
    "the argument": lambda y, found: y.data.mul_(2),
    "a result": lambda y, found: found[0].data.mul_(2),
    "the last result": lambda y, found: found[-1].data.add_(1),
}


def _program(function: Callable[[Tensor, Tensor], Parts], write: str, dtype: torch.dtype) -> Any:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        for number in range(4):
            generator = torch.Generator().manual_seed(number)
            leaf, w = (torch.randn(3, 3, generator=generator, dtype=dtype).requires_grad_() for _ in range(2))
            y = leaf * 1
            found = f(y, w)
            WRITES[write](y, found)
            loss = torch.stack([part.abs().float().sum() * (1 + place) for place, part in enumerate(found)]).sum()
            yield torch.autograd.grad(loss, (leaf, w, found[0]))

    return program


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("name", COMPLEX)
def test_complex(name: str, write: str) -> None:
    hold(Trap(_program(COMPLEX[name], write, torch.complex64), traces=1, hits=2))


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ROUNDED)
def test_rounded(name: str, dtype: torch.dtype, write: str) -> None:
    hold(Trap(_program(ROUNDED[name], write, dtype), traces=1, hits=2, options={"options": {"numerics": "eager"}}))


def _exponentials(y: Tensor) -> Tensor:
    return y.exp().exp().real


def test_an_argument_that_eager_does_not_save_may_be_written() -> None:
    """As eager's node of ``exp`` keeps its result only: what is written to the argument is no matter."""

    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(_exponentials)
        for number in range(4):
            generator = torch.Generator().manual_seed(number)
            leaf = torch.randn(3, 3, generator=generator, dtype=torch.complex64).requires_grad_()
            y = leaf * 1
            found = f(y)
            with torch.no_grad():
                y.mul_(3)
            yield torch.autograd.grad(found.sum(), leaf)

    hold(Trap(program, traces=1, hits=2))


VIEWS: dict[str, Callable[[Tensor, Tensor], Parts]] = {
    "a slice": lambda y, w: (v := y[:2], v * v * w[1:]),
    "a slice of what was made": lambda y, w: (z := y * w, v := z[1:], v.exp(), z * w),
    "turned": lambda y, w: (v := y.t(), (v @ w).abs()),
    "a conjugate": lambda y, w: (v := y.conj(), v * w),
    "a part": lambda y, w: (v := y.imag, v * v * w),
    "of what was joined": lambda y, w: (v := torch.complex(y.abs(), w.imag)[:2], v * v),
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_that_is_read_further_has_a_gradient_of_its_own(name: str) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(VIEWS[name])
        for number in range(4):
            generator = torch.Generator().manual_seed(number)
            y, w = (torch.randn(3, 3, generator=generator, dtype=torch.complex64).requires_grad_() for _ in range(2))
            *views, last = f(y * 1, w)
            yield torch.autograd.grad(last.abs().sum(), (w, *views), retain_graph=True, allow_unused=True)
            yield torch.autograd.grad(last.abs().sum() + views[0].abs().sum(), (y, w, *views), allow_unused=True)

    hold(Trap(program, traces=1, hits=2))
