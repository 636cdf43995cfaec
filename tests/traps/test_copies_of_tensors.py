"""Programs that make deep copies of tensors, alone and in what holds them."""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import torch
from tests.traps.trap import Table, Trap, hold

TABLE = Table()
trap = TABLE.trap


def called(compiled: Any, function: Any, given: Any) -> Any:
    f = compiled(function)
    for args in given:
        yield f(*args), args


def vectors(*lengths: int) -> list[tuple[torch.Tensor]]:
    return [(torch.randn(length),) for length in lengths]


@trap(traces=2, hits=3)
def a_copy_that_is_written(compiled):
    def f(x):
        kept = copy.deepcopy(x)
        x.add_(1)
        kept.mul_(2)
        return kept, x * kept

    yield from called(compiled, f, vectors(3, 3, 4, 5))


@trap(traces=2, hits=3)
def copies_of_a_tree(compiled):
    def f(x):
        tree = {"a": x, "b": [x, x * 2, 3], "c": (None, "text")}
        copied = copy.deepcopy(tree)
        copied["a"].add_(1)
        return copied, copied["a"] is copied["b"][0], copied["a"] is x

    yield from called(compiled, f, vectors(3, 3, 4, 5))


@trap(traces=3, hits=2)
def two_tensors_and_then_one_twice(compiled):
    def f(x, y):
        first, second = copy.deepcopy([x, y])
        first.add_(1)
        return first, second, first is second

    x = torch.randn(3)
    given = [(torch.randn(3), torch.randn(3)) for _ in range(3)]
    yield from called(compiled, f, [*given, (x, x), given[0]])


@trap(traces=4, hits=3)
def tensors_that_share_memory(compiled):
    def f(x, y):
        first, second = copy.deepcopy([x, y])
        first.add_(1)
        return first, second

    x = torch.randn(4)
    given = [(torch.randn(4), torch.randn(4)) for _ in range(3)]
    yield from called(compiled, f, [*given, (x, x.view(2, 2)), (x[:2], x[1:]), given[0]])


@trap(traces=3, hits=2)
def gradients_of_what_is_copied(compiled):
    def f(x):
        return copy.deepcopy(x) * 2

    f = compiled(f)
    for given in (False, False, True, True, False):
        x = torch.randn(3)
        if given:
            x.grad = torch.ones(3)
        yield f(x)
    for x in (torch.randn(3, requires_grad=True), torch.randn(3, requires_grad=True) * 2):
        try:
            y = f(x)
            y.sum().backward()
            yield y, x.grad
        except RuntimeError as error:
            yield str(error)


@trap(traces=4, hits=2)
def attributes_are_copied(compiled):
    def f(x):
        y = copy.deepcopy(x)
        return y + getattr(y, "tag", 0), x

    f = compiled(f)
    for tag in (None, None, 3, 4, None):
        x = torch.randn(3)
        if tag:
            x.tag = tag
        yield f(x)


@trap(traces=3, hits=1)
def orders_of_memory(compiled):
    def f(x):
        y = copy.deepcopy(x)
        return y, y.stride(), y.is_contiguous()

    yield from called(
        compiled,
        f,
        [(torch.randn(3, 4),), (torch.randn(3, 4),), (torch.randn(4, 3).t(),), (torch.randn(1, 4).expand(3, 4),)],
    )


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    parts: list[torch.Tensor]
    name: str = "batch"


@trap(traces=2, hits=3)
def dictionaries_of_dataclasses(compiled):
    def f(x):
        batch = Batch(x, [x + 1])
        told = dataclasses.asdict(batch)
        told["x"].zero_()
        return told, dataclasses.astuple(dataclasses.replace(batch, name="other")), x

    yield from called(compiled, f, vectors(3, 3, 4, 5))


@TABLE.parametrize()
def test_copies_of_tensors(trap: Trap) -> None:
    hold(trap)
