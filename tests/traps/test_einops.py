"""Programs written with einops are one graph: its cached functions are pure, its tables are keyed by classes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import einops
import pytest
import torch
from einops.layers.torch import Rearrange, Reduce
from tests.traps.trap import Table, Trap, hold
from torch import Tensor, nn

TABLE = Table()
PATCHES = Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=2, q=2)
LARGEST = Reduce("b c h w -> b c", "max")

PROGRAMS: dict[str, Callable[[Tensor], Any]] = {
    "rearrange": lambda x: einops.rearrange(x * 2, "b c (h p) w -> b h (p c) w", p=2) + 1,
    "with an ellipsis": lambda x: einops.rearrange(x, "b ... w -> w ... b").cos(),
    "of a list": lambda x: einops.rearrange([x, x + 1], "l b c h w -> b (l c) h w") * 2,
    "reduce": lambda x: einops.reduce(x, "b c (h p) w -> b c h", "max", p=2) * 2,
    "reduce by a function": lambda x: einops.reduce(x.exp(), "b c h w -> b c", torch.amax) * 2,
    "repeat": lambda x: einops.repeat(x.sin(), "b c h w -> b c (h r) w", r=3) * 2,
    "einsum": lambda x: einops.einsum(x, x, "b c h w, b d h w -> b c d").tanh(),
    "pack": lambda x: einops.pack([x, x * 2], "b * w")[0] + 1,
    "unpack": lambda x: einops.unpack(x * 2, [[1], [2]], "b * h w")[1] + 1,
    "parse_shape": lambda x: x * einops.parse_shape(x, "b c h _")["h"],
    "a layer": lambda x: PATCHES(x) * 2,
    "a reducing layer": lambda x: LARGEST(x) * 2,
}


@pytest.mark.parametrize("changing", [False, True])
@pytest.mark.parametrize("name", PROGRAMS)
def test_einops(name: str, changing: bool) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(PROGRAMS[name])
        for number in range(5):
            sizes = (2 + number * changing, 3, 4 + 2 * number * changing, 6)
            yield f(torch.linspace(0, 1, sizes[0] * sizes[2] * 18).view(sizes) + number)

    hold(Trap(program, traces=2, hits=3))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Sequential(Rearrange("b c (h p) (w q) -> b (h w) (p q c)", p=2, q=2), nn.Linear(12, 8))
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            einops.rearrange(part, "b n (h d) -> b h n d", h=2) for part in self.qkv(self.patches(x)).chunk(3, dim=-1)
        )
        seen = einops.einsum(q, k, "b h i d, b h j d -> b h i j").softmax(-1)
        return einops.rearrange(seen @ v, "b h n d -> b n (h d)")


@TABLE.trap(traces=2, hits=3)
def trained(compiled: Any) -> Iterator[Any]:
    torch.manual_seed(0)
    model = Attention()
    fast = compiled(model)
    for number in range(5):
        model.zero_grad()
        fast(torch.linspace(0, 1, 2 * 3 * 16).view(2, 3, 4, 4) + number).sin().sum().backward()
        yield [parameter.grad for parameter in model.parameters()]


@TABLE.trap(traces=3, hits=2)
def with_a_pattern_that_changes(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda x, pattern: einops.rearrange(x, pattern) * 2)
    for pattern in ("a b -> b a", "a b -> (a b)", "a b -> b a", "a b -> (b a)", "a b -> (a b)"):
        yield f(torch.arange(6.0).view(2, 3), pattern)


@TABLE.trap(traces=5, hits=0)
def with_a_pattern_that_does_not_fit(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda x: einops.rearrange(x, "a b c -> a"))
    for number in range(5):
        try:
            yield f(torch.arange(6.0).view(2, 3) + number)
        except einops.EinopsError as error:
            yield str(error)


@functools.lru_cache
def total(numbers: Any) -> Any:
    return sum(map(total, numbers)) if isinstance(numbers, tuple) else numbers


@TABLE.trap(traces=5, hits=3)
def cached_functions_of_tuples(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda x, numbers: x * total(numbers) + total((1, 2)))
    for numbers in ((1, 2), (3, 4), (1, 2), ((1, 2), 3), (1, 2), (3, 5), (3, 4)):
        yield f(torch.ones(2), numbers)


@TABLE.trap(traces=2, hits=3)
def cached_functions_of_sizes(compiled: Any) -> Iterator[Any]:
    f = compiled(lambda x: x * total(tuple(x.shape)) + total(x.shape))
    for rows in (2, 2, 3, 2, 3):
        yield f(torch.ones(rows, 2))


KINDS: dict[type, float] = {torch.Tensor: 2.0, nn.Parameter: 3.0}


@TABLE.trap(traces=2, hits=3)
def tables_keyed_by_classes(compiled: Any) -> Iterator[Any]:
    def program(x: Tensor) -> Tensor:
        return x * KINDS.get(type(x), 1.0) * KINDS[torch.Tensor] + (nn.Parameter in KINDS)

    f = compiled(program)
    for number in range(5):
        KINDS[torch.Tensor] = 2.0 if number < 2 else 4.0
        yield f(torch.ones(2) * number)


@pytest.mark.parametrize("trap", TABLE, ids=lambda trap: trap.program.__name__)
def test_traps(trap: Trap) -> None:
    hold(trap)
