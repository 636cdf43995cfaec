"""Pieces of a dimension whose size changes: their sizes follow it, and their number is what is asked at each call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.traps.trap import Trap, hold
from torch import Tensor


def _guided(x: Tensor) -> Tensor:
    plain, given = x.chunk(2)
    return plain + 7.5 * (given - plain)


def _thirds(x: Tensor) -> list[Tensor]:
    return [part.sum(0) for part in torch.chunk(x, chunks=3, dim=0)]


def _pairs(x: Tensor) -> list[Tensor]:
    return [part * 2 for part in x.split(2)]


def _of_length(x: Tensor) -> list[Tensor]:
    return [part + 1 for part in x.split(split_size=3, dim=-2)]


def _halves(x: Tensor) -> list[Tensor]:
    return [part + 1 for part in torch.split(x, x.shape[0] // 2 or 1)]


def _counted(x: Tensor) -> Tensor:
    return x * len(x.split(4))


# Sizes of the first dimension by call, and how many traces they need: of no rows, of one, of another number of pieces.
ROWS: dict[str, tuple[Callable[[Tensor], Any], tuple[int, ...], int]] = {
    "guided": (_guided, (4, 6, 8, 12, 20, 2), 2),
    "thirds": (_thirds, (6, 9, 12, 15, 7, 8, 10, 4, 5), 4),
    "pairs": (_pairs, (4, 3, 4, 3, 6, 5, 0, 1, 4), 7),
    "of_length": (_of_length, (6, 4, 5, 9, 7, 3, 0), 5),
    "halves": (_halves, (4, 6, 8, 10, 5, 7, 9, 1, 0), 5),
    "counted": (_counted, (5, 6, 7, 8, 9, 12, 4, 1), 5),
}


@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_pieces_of_a_size_that_changes(name: str, grad: bool) -> None:
    function, sizes, traces = ROWS[name]

    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        for rows in sizes * 2:
            x = torch.randn(rows, 3).requires_grad_(grad)
            result = f(x)
            parts = result if isinstance(result, list) else [result]
            if grad:
                sum((part * part).sum() for part in parts).backward()
            yield [part.detach() for part in parts], x.grad

    hold(Trap(program, traces=traces, hits=len(sizes)))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_pieces_under_other_backends(backend: str) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(_pairs)
        for rows in (4, 3, 5, 6, 0, 1, 4, 3, 5, 6):
            yield f(torch.randn(rows, 3))

    hold(Trap(program, traces=6, hits=4, options={"backend": backend}))
