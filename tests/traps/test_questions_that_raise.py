"""Questions about a tensor that raise, where the program goes on: that they do is a fact about the tensor."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.traps.trap import Trap, hold
from torch import Tensor

QUESTIONS: dict[str, Callable[[Tensor], Any]] = {
    "a size": lambda x: x.size(2),
    "a size from behind": lambda x: x.size(-3),
    "all sizes": lambda x: tuple(x.shape),
    "a hash of sizes": lambda x: hash(x.shape),
    "a length": len,
    "elements": lambda x: x.numel(),
    "bytes": lambda x: x.nbytes,
    "a stride": lambda x: x.stride(2),
    "a walk": lambda x: [part.numel() for part in x],
    "turned": lambda x: x.mT.size(0),
    "limits of whole numbers": lambda x: torch.iinfo(x.dtype).max,
    "indices": lambda x: tuple(x.indices().shape),
    "a scale": lambda x: x.q_scale(),
}


def _kinds() -> tuple[Tensor, ...]:
    matrix = torch.arange(12.0).view(3, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)])
        quantised = torch.quantize_per_tensor(matrix, 0.1, 0, torch.quint8)
    more = (torch.ones(2, 3, 4), torch.tensor(2.0), torch.arange(12).view(3, 4), matrix.to_sparse())
    return matrix, nested, quantised, *more


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.filterwarnings("ignore:.*:UserWarning")
def test_questions_that_raise(name: str) -> None:
    ask = QUESTIONS[name]

    def function(x: Tensor, y: Tensor) -> tuple[Any, Tensor]:
        try:
            told = ask(x)
        except (RuntimeError, TypeError, IndexError, NotImplementedError) as error:
            told = f"{type(error).__name__}: {error}"
        return told, y * 2

    def program(compiled: Any) -> Iterator[Any]:
        for first in _kinds():
            fast = compiled(function)
            for number, x in enumerate((first, first, *_kinds(), first)):
                yield fast(x, torch.arange(3.0) + number)

    hold(Trap(program, traces=100, hits=7))
