"""A module writes what it has: its own layer converted to the dtype that it has, a parameter by its own name."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import framefuse


class Router(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)).eval()
        self.scale = nn.Parameter(torch.rand(4))
        self.dtype = torch.float32

    def forward(self, x):
        self.head = self.head.to(self.dtype)
        self.scale = self.scale
        return self.head(x).relu() * self.scale


def held(model, compiled, dtype=torch.float32, calls=3):
    """Calls with new inputs, each compared with eager's."""
    for _ in range(calls):
        x = torch.randn(3, 4, dtype=dtype)
        torch.testing.assert_close(compiled(x), model(x))


def test_what_is_there_already_is_one_graph():
    model = Router()
    compiled = framefuse.compile(model, fullgraph=True)
    held(model, compiled)
    assert len(framefuse.explain(compiled).graphs) == 1


@pytest.mark.parametrize("change", ["head", "scale", "to", "part", "setting", "own"])
def test_what_takes_its_place_is_found(change, monkeypatch):
    model = Router()
    compiled = framefuse.compile(model)
    held(model, compiled)
    dtype = torch.float32
    if change == "head":
        model.head = nn.Sequential(nn.Linear(4, 4)).eval()
    elif change == "scale":
        model.scale = nn.Parameter(torch.rand(4))
    elif change == "to":
        dtype = model.dtype = torch.float64
    elif change == "part":
        model.head[0].double()
    elif change == "setting":
        monkeypatch.setattr(torch.__future__, "_overwrite_module_params_on_conversion", True)
        before = model.head[0].weight
        held(model, compiled)
        assert model.head[0].weight is not before
    else:
        model.head.append(nn.Linear(4, 4, dtype=torch.float64))
    held(model, compiled, dtype)
    assert all(each.dtype is dtype for each in model.head.parameters())


def test_a_class_that_converts_in_its_own_way_is_asked():
    class Own(nn.Linear):
        converted = 0

        def _apply(self, fn, recurse=True):
            type(self).converted += 1
            return super()._apply(fn, recurse)

    model = Router()
    compiled = framefuse.compile(model)
    held(model, compiled)
    model.head = nn.Sequential(Own(4, 4)).eval()
    held(model, compiled)
    assert Own.converted == 6


def test_two_names_of_one_parameter_are_held_to_be_one():
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.rand(4))
            self.other, self.head = self.scale, nn.Linear(4, 4)
            self.last = self.head

        def forward(self, x):
            self.scale = self.other
            self.head = self.last
            return self.head(x) * self.scale

    model = Tied()
    compiled = framefuse.compile(model)
    held(model, compiled)
    model.scale = nn.Parameter(torch.rand(4))
    compiled(torch.randn(3, 4))
    assert model.scale is model.other
    held(model, compiled)
    model.head = nn.Linear(4, 4)
    compiled(torch.randn(3, 4))
    assert model.head is model.last
    held(model, compiled)


def test_whether_a_buffer_is_kept_in_the_state_is_asked_at_each_write():
    class Holds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.seen = nn.Buffer(torch.ones(4))

        def forward(self, x):
            self.seen = self.seen
            return x * self.seen

    eager, model = Holds(), Holds()
    compiled = framefuse.compile(model)
    for persistent in (True, True, True, False, False, True, False, True):
        x = torch.randn(4)
        eager.seen.persistent = model.seen.persistent = persistent
        assert torch.equal(compiled(x), eager(x))
        assert list(model.state_dict()) == list(eager.state_dict())
    assert framefuse.api.compiled_function(compiled).dispatch.hits >= 2
