"""Results of inference mode, which autograd knows nothing of: their memory, offsets and identity are eager's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.traps.small_programs import draw

import framefuse
from framefuse.api import compiled_function


def _turned_input(x):
    x.t_()
    return (x,)


def _turned_part(x):
    y = x * 2
    z = y[1:]
    z.t_()
    return z, y


def _turned_and_back(x):
    y = x * 2
    y.unsqueeze_(0)
    return y, y.squeeze(0)


def _turned_alone(x):
    y = x[1:]
    y.transpose_(0, 1)
    return (y,)


def _written_part(x):
    y = (x * 2).detach()
    y[1:].add_(1)
    return y[1:].contiguous(), y.data[2:]


def _written_view(x):
    x[0] = 5
    y = x.view(-1)
    y.mul_(2)
    return (y,)


ROWS: dict[str, Callable[..., Any]] = {
    "parts": lambda x: ((x * 2)[1:], (x + 1).flatten()[3:], x.clone()[1], (x - 1).chunk(2)[1], (x * 3).unbind(0)[2]),
    "parts_of_the_input": lambda x: (x[1:], x.view(-1)[2:], x.t(), x.narrow(0, 1, 1)),
    "whole": lambda x: ((x * 2).view(-1), (x + 1).t(), (x * 3).flatten().view(3, 4)[1:], (x - 1).expand(2, 4, 3)),
    "squeezed": lambda x: ((x * 2).unsqueeze_(0), (x + 1).t_()[1:]),
    "turned_input": _turned_input,
    "turned_part": _turned_part,
    "turned_and_back": _turned_and_back,
    "turned_alone": _turned_alone,
    "written_part": _written_part,
    "written_view": _written_view,
}


@pytest.mark.parametrize("inference", [True, False])
@pytest.mark.parametrize("name", ROWS)
def test_memory_of_results(name: str, inference: bool) -> None:
    function = ROWS[name]
    fast = framefuse.compile(function)
    for number in range(4):
        with torch.inference_mode(inference), torch.no_grad():
            x, y = draw(number, 4, 3), draw(number, 4, 3)
            expected, found = function(x), fast(y)
        assert x.stride() == y.stride()
        for eager, mine in zip(expected, found, strict=True):
            assert torch.equal(eager, mine)
            assert (mine is y) == (eager is x)
            for told in ("stride", "storage_offset", "is_inference", "_is_view"):
                assert getattr(mine, told)() == getattr(eager, told)(), told
    assert compiled_function(fast).dispatch.hits == 3
