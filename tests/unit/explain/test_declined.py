"""A run of compiled code that is given up counts as no hit, and ``explain`` says how many there were and why."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import framefuse
from framefuse.explain.left import left_of
from framefuse.runtime.function import compiled_function


def rows(x: Tensor, places: Tensor) -> Tensor:
    return torch.sin(x)[places] * 2


def test_a_place_outside_is_eagers_error_and_no_hit() -> None:
    fast = framefuse.compile(rows)
    x = torch.randn(5)
    for places in ([1, 2], [3, 4], [0, 1]):
        torch.testing.assert_close(fast(x, torch.tensor(places)), rows(x, torch.tensor(places)))
    with pytest.raises(IndexError, match="index 7 is out of bounds"):
        fast(x, torch.tensor([1, 7]))
    explained = framefuse.explain(fast)
    assert (explained.calls, explained.hits) == (4, 2)
    assert "1 of 3 runs ended before they changed anything and ran eagerly\n" in str(explained)
    assert left_of(explained) == ()


def test_an_error_that_ends_runs_is_told() -> None:
    refused = False

    @torch.library.custom_op("declined::halved", mutates_args=())
    def halved(x: Tensor) -> Tensor:
        if refused:
            raise RuntimeError("no more halves")
        return x / 2

    halved.register_fake(torch.empty_like)
    fast = framefuse.compile(lambda x: halved(x.cos()) + 1)
    for _ in range(3):
        fast(torch.randn(5))
    assert framefuse.explain(fast).graphs[0].declined is None
    refused = True
    for _ in range(2):
        with pytest.raises(RuntimeError, match="no more halves"):
            fast(torch.randn(5))
    explained = framefuse.explain(fast)
    state = compiled_function(fast)
    assert state is not None
    assert (explained.hits, state.dispatch.declines) == (2, 2)
    assert "2 of 4 runs ended before they changed anything and ran eagerly: RuntimeError: no more halves" in str(
        explained
    )
    assert left_of(explained)[0].fact.endswith("compiled code failed 2 times: RuntimeError: no more halves")
