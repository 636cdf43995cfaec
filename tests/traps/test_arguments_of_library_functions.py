"""Functions of torch that are written in Python look into the sequences and dicts that they are given: others, of the
same length, are other arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.traps.trap import Trap, hold
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_sequence
from torch.utils import _pytree as pytree

Row = tuple[Callable[..., Any], list[tuple[Any, ...]]]


def of(*sizes: int) -> Tensor:
    return torch.randn(sizes)


ROWS: dict[str, Row] = {
    "broadcast_shapes": (
        lambda x, *shapes: x[0, 0] * x.new_ones(torch.broadcast_shapes(*shapes)),
        [(of(1, 1), (5, 1), (1, 4)), (of(1, 1), (3, 1), (1, 2)), (of(1, 1), (3,), (2, 3))],
    ),
    "broadcast_shapes of sizes": (
        lambda x, y: x.expand(torch.broadcast_shapes(x.shape, y.shape)) * 2,
        [(of(3, 1), of(1, 4)), (of(2, 1), of(1, 5)), (of(3, 1), of(4))],
    ),
    "broadcast_shapes of an int": (
        lambda x, n: x.sum() * torch.ones(torch.broadcast_shapes((n, 1), (1, n))),
        [(of(2), 2), (of(2), 3), (of(2), 4)],
    ),
    "einsum by numbers": (
        lambda a, first, b, second, result: torch.einsum(a, first, b, second, result),
        [(of(3, 3), [0, 1], of(3, 3), [1, 2], [0, 2]), (of(3, 3), [0, 1], of(3, 3), [1, 2], [2, 0])],
    ),
    "tensordot": (
        lambda a, b, axes: torch.tensordot(a, b, axes),
        [(of(2, 3), of(3, 2), ([1], [0])), (of(2, 3), of(3, 2), ([0], [1])), (of(2, 3), of(3, 2), 1)],
    ),
    "tree_map": (
        lambda tree: pytree.tree_map(lambda part: part * 2, tree),
        [({"a": of(2), "b": [of(1), 3]},), ({"a": of(2), "b": [of(1), 4]},), ({"a": of(2), "c": [of(1), 4]},)],
    ),
    "tree_flatten": (
        lambda tree: pytree.tree_flatten(tree)[0],
        [({"a": of(2), "b": 1},), ({"a": of(2), "b": 2},), ({"c": of(2), "b": 2},)],
    ),
    "pad_sequence": (
        lambda parts: pad_sequence(parts, batch_first=True),
        [([of(2, 3), of(4, 3)],), ([of(3, 3), of(1, 3)],), ([of(3, 3), of(1, 3), of(2, 3)],)],
    ),
    "pack_padded_sequence": (
        lambda x, lengths: pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False).data * 2,
        [(of(2, 4, 3), [3, 4]), (of(2, 4, 3), [1, 4]), (of(2, 4, 3), [2, 2])],
    ),
    "norm": (
        lambda x, p, axes: torch.norm(x, p, axes),
        [(of(2, 6), 2, (0,)), (of(2, 6), 2, (1,)), (of(2, 6), 1, (0,))],
    ),
    "max_pool2d": (
        lambda x, window, step: F.max_pool2d(x, window, step),
        [(of(1, 1, 6, 6), (2, 3), None), (of(1, 1, 6, 6), (3, 2), None), (of(1, 1, 6, 6), (2, 2), (1, 2))],
    ),
    "unravel_index": (
        lambda index, shape: torch.unravel_index(index, shape),
        [(torch.tensor([3, 4]), (2, 3)), (torch.tensor([3, 4]), (3, 2))],
    ),
    "histogram": (
        lambda x, limits: torch.histogram(x, bins=4, range=limits),
        [(of(9), (-1.0, 1.0)), (of(9), (-2.0, 1.0)), (of(9), (-3.0, 3.0))],
    ),
    "is_tensor": (
        lambda x, parts: x * sum(map(torch.is_tensor, parts)),
        [(of(2), [of(1), 1]), (of(2), [of(1), of(1)])],
    ),
}


@pytest.mark.parametrize("name", ROWS)
def test_arguments_of_library_functions(name: str) -> None:
    function, cases = ROWS[name]

    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        for args in cases * 2:
            yield list(f(*args)) if name in ("unravel_index", "histogram") else f(*args)

    hold(Trap(program, traces=len(cases), hits=len(cases)))


def _expanded(x: Tensor) -> Tensor:
    return torch.linalg.svdvals(x.expand(2, *x.shape))


def _copied(x: Tensor) -> Tensor:
    return x.expand(2, *x.shape).contiguous()


def _of_a_part(x: Tensor) -> Tensor:
    return torch.linalg.svdvals(torch.linalg.qr(x)[0].chunk(2)[1][None].expand(3, -1, -1))


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("function", [_expanded, _copied, _of_a_part])
def test_views_of_memory_that_begins_before_its_tensor(function: Callable[[Tensor], Tensor], grad: bool) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        for number, rows in enumerate((5, 6, 5, 7)):
            whole = torch.randn(rows, 3, generator=torch.Generator().manual_seed(number)).requires_grad_(grad)
            yield f(whole[1:]).detach()

    hold(Trap(program, traces=3, hits=2))
