"""Numbers that change, which torch checks: that the type of the elements has them, and the bounds of a parameter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.traps.small_programs import draw
from tests.traps.trap import Trap, hold, outcome

F = torch.nn.functional
FIRST = (0.3, 0.5, 0.7)
ODD = (0.0, -0.5, 1.5, math.nan, math.inf, -math.inf, 1e39, -1e39, 1e5, -7e4, 3.4028235e38)


def _set(x, s):
    x[0] = s
    return x


def _set_by_mask(x, s):
    x[x > 0.5] = s
    return x


FUNCTIONS: dict[str, Callable[[torch.Tensor, float], Any]] = {
    "full": lambda x, s: torch.full((3,), s) + x[0, 0],
    "full_like": lambda x, s: torch.full_like(x, s),
    "new_full": lambda x, s: x.new_full((2,), s),
    "fill_": lambda x, s: x.fill_(s),
    "scalar_tensor": lambda x, s: torch.scalar_tensor(s),
    "fill_diagonal_": lambda x, s: x.fill_diagonal_(s),
    "clamp": lambda x, s: x.clamp(-s, s + 1),
    "clamp_min": lambda x, s: x.clamp_min(s),
    "clamp_foreach": lambda x, s: torch._foreach_clamp_max([x, x * 2], s),
    "where": lambda x, s: torch.where(x > 0.5, x, s),
    "where_numbers": lambda x, s: torch.where(x > 0.5, s, 1.0),
    "masked_fill": lambda x, s: x.masked_fill(x > 0.5, s),
    "set_part": _set,
    "set_by_mask": _set_by_mask,
    "add_alpha": lambda x, s: x.float().add(x, alpha=s),
    "lerp": lambda x, s: torch.lerp(x, x * 2, s),
    "addcmul": lambda x, s: torch.addcmul(x, x, x, value=s),
    "addcdiv": lambda x, s: torch.addcdiv(x, x, x, value=s),
    "pad": lambda x, s: F.pad(x, (1, 1), value=s),
    "threshold": lambda x, s: F.threshold(x, 0.5, s),
    "leaky_relu": lambda x, s: F.leaky_relu(-x, s),
    "softplus": lambda x, s: F.softplus(x, 1.0, s),
    "hardtanh": lambda x, s: F.hardtanh(x, -s, s),
    "dropout": lambda x, s: F.dropout(x, s, training=False),
    "alpha_dropout": lambda x, s: F.alpha_dropout(x, s, training=False),
    "cosine_similarity": lambda x, s: F.cosine_similarity(x, x + 1, eps=s),
    "normalize": lambda x, s: F.normalize(x, eps=s),
    "batch_norm": lambda x, s: F.batch_norm(x, x.new_zeros(4), x.new_ones(4), eps=s),
    "triplet_margin_loss": lambda x, s: F.triplet_margin_loss(x, x * 2, x * 3, margin=s),
    "isclose": lambda x, s: torch.isclose(x, x * 1.1, rtol=s),
    "isclose_absolute": lambda x, s: torch.isclose(x, x * 1.1, atol=s),
}
SMALL = {
    "full": lambda x, n: torch.full((2,), n, dtype=x.dtype),
    "clamp": lambda x, n: x.clamp(max=n),
    "masked_fill": lambda x, n: x.masked_fill(x > 5, n),
    "fill_": lambda x, n: x.fill_(n),
    "where": lambda x, n: torch.where(x > 5, x, n),
    "eq": lambda x, n: x == n,
}
SMALL["pad"] = lambda x, n: F.pad(x, (1, 1), value=n)
NOT_EXACT = ("normalize", "batch_norm")  # in 16 bits, where both round


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_floats(name: str, dtype: torch.dtype) -> None:
    if name in NOT_EXACT and dtype.itemsize == 2:
        pytest.skip("rounded otherwise")

    def program(compiled: Any) -> Iterator[Any]:
        fast = compiled(FUNCTIONS[name])
        for number, value in enumerate(FIRST + ODD):
            x = (draw(number, 3, 4).abs() + 0.1).to(dtype)
            yield outcome(fast, x, value), x

    hold(Trap(program, 30, 2))


@pytest.mark.parametrize("name", ["full", "masked_fill", "fill_", "pad"])
def test_floats_for_bytes(name: str) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        for read in (False, True):
            fast = compiled((lambda x, s: SMALL[name](x, s.item())) if read else SMALL[name])
            for number, value in enumerate((3.0, 5.5, 7.5, -0.5, 255.0, 255.5, -3.0, 0.5, -0.0, math.inf, math.nan)):
                x = draw(number, 3, 4, dtype=torch.int64).abs().to(torch.uint8)
                yield outcome(fast, x, torch.tensor(value) if read else value), x

    hold(Trap(program, 30, 2))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32])
@pytest.mark.parametrize("name", SMALL)
def test_ints(name: str, dtype: torch.dtype) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        fast = compiled(SMALL[name])
        for number, value in enumerate((5, 7, 9, 127, 128, -128, -129, 255, 256, -255, -256, 2**31, -(2**31), 2**40)):
            x = draw(number, 3, 4, dtype=torch.int64).abs().to(dtype)
            yield outcome(fast, x, value), x

    hold(Trap(program, 30, 2))


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int32, torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", [*SMALL, "set_part", "pow", "addcmul"])
def test_ints_read_from_tensors(name: str, dtype: torch.dtype) -> None:
    function = SMALL.get(name) or FUNCTIONS.get(name) or (lambda x, n: x**n)

    def program(compiled: Any) -> Iterator[Any]:
        fast = compiled(lambda x, read: function(x, read.item()))
        for number, value in enumerate((5, 7, 9, 120, 128, -129, 2, 255, 256, -256, 2**31, 2**40, 3)):
            if name == "pow" and (value < 0 or (value in (120, 128) and dtype.is_floating_point)):
                continue
            x = draw(number, 3, 4, dtype=torch.int64).abs().to(dtype)
            yield outcome(fast, x, torch.tensor(value)), x

    hold(Trap(program, 30, 2))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("name", ["full_like", "fill_", "clamp_min", "masked_fill", "set_part", "pad", "pow"])
def test_floats_read_from_tensors(name: str, dtype: torch.dtype) -> None:
    function = FUNCTIONS.get(name) or (lambda x, s: x**s)

    def program(compiled: Any) -> Iterator[Any]:
        fast = compiled(lambda x, read: function(x, read.item() * 2))
        for number, value in enumerate((*FIRST, 1e5, 1e39, math.inf, -7e4, -1e39, math.nan, 0.25)):
            x = (draw(number, 3, 4).abs() + 0.1).to(dtype)
            yield outcome(fast, x, torch.tensor(value, dtype=torch.float64)), x

    hold(Trap(program, 30, 2))
