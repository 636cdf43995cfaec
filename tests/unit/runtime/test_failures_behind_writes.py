"""A run that fails behind a write to an input says so: run again eagerly, it would write the input twice."""

from __future__ import annotations

import pytest
import torch

import framefuse
from framefuse.ir.wrapped_calls import BeforeWrite

MADE = BeforeWrite.__call__


def doubled(x, y):
    view = x.view(-1)
    x.mul_(2)
    return view


def multiplied(x, y):
    view = x.view(-1)
    x.mul_(y)
    return view


def both(x, y):
    view = x.view(-1)
    x.mul_(2)
    z = y * x
    z.mul_(y)
    return view, z


@pytest.mark.parametrize("function", [doubled, multiplied, both])
@pytest.mark.parametrize("grad", [False, True])
def test_inputs_are_written_once(function, grad, monkeypatch):
    fast = framefuse.compile(function)

    def call():
        x = torch.full((2, 3), 1.5)
        return x, lambda: fast(x, torch.full((2, 3), 2.0, requires_grad=grad))

    for _ in range(3):
        call()[1]()
    dispatch = fast.__framefuse__.dispatch
    before = dispatch.hits

    def planted(self, base, *args, **kwargs):
        raise RuntimeError("planted")

    monkeypatch.setattr(BeforeWrite, "__call__", planted)
    for _ in range(2):
        x, run = call()
        with pytest.raises(RuntimeError, match="planted"):
            run()
        assert torch.equal(x, torch.full((2, 3), 3.0))
    monkeypatch.setattr(BeforeWrite, "__call__", MADE)
    x, run = call()
    run()
    assert torch.equal(x, torch.full((2, 3), 3.0))
    assert dispatch.hits > before and dispatch.declines == 0
