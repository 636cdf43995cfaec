"""Tensors without elements: compiled code gives eager's results where nothing is to be computed."""

import pytest
import torch
from tests.unit.differential import compared

import framefuse
from framefuse.api import compiled_function

SHAPES = [(2, 3), (2, 0), (0, 2), (0, 0)]
FUNCTIONS = {
    "mean": lambda z: z - z.mean(),
    "row mean": lambda z: z - z.mean(-1, keepdim=True),
    "sums": lambda z: (z * 2).sum() + z.exp().sum(0).sum(),
    "identities": lambda z: (z.sum(-1), z.prod(0), (z > 0).any(-1), (z > 0).all()),
    "softmax": lambda z: torch.softmax(z, -1),
    "joined": lambda z: torch.cat([z, torch.ones(z.shape[0], 2)], 1) * 2 - z.sum(),
    "products": lambda z: (z @ z.T + 1, z.T @ z),
    "slices": lambda z: (z.exp()[:0] + 1, (z + 1)[:, :1].sigmoid()),
    "padded": lambda z: torch.nn.functional.pad(z, (1, 1)) * z.mean(),
    "variance": lambda z: z.var(0, keepdim=True) - z,
    "whole": lambda z: (z.to(torch.int64) // 3).sum() + z.numel(),
    "written": lambda z: z.add_(1).mul(2) - z.mean(),
}


@pytest.mark.filterwarnings("ignore:var")
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_is_computed_as_eager_does(name, dynamic, trains):
    function = FUNCTIONS[name]
    compiled = framefuse.compile(function, dynamic=dynamic)
    for shape in SHAPES:
        for _ in range(3):
            expected, found = (results(f, shape, trains and name != "written") for f in (function, compiled))
            assert not compared(found, expected, False)
    state = compiled_function(compiled)
    assert not [reason for reason in state.reasons if reason.code not in ("gradient", "raises")]
    assert state.dispatch.hits >= len(SHAPES)


SCANS = {
    "cumsum": lambda z: (z.cumsum(1), z),
    "cumprod": lambda z: z.exp().cumprod(1) + 1,
    "cummax": lambda z: (*z.cummax(1), z * 2),
    "logcumsumexp": lambda z: z.logcumsumexp(-1),
    "whole": lambda z: z.to(torch.int32).cumsum(1),
}


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", SCANS)
def test_a_scan_of_one_element_is_that_element(name, rows):
    fast = framefuse.compile(SCANS[name])
    for turn in range(3):
        z = torch.randn(rows, 1).mul_(3)
        z[0] = (-0.0, float("nan"), 1.0)[turn]
        given, found = SCANS[name](z), fast(z)
        for expected, mine in zip(*(r if isinstance(r, tuple) else (r,) for r in (given, found)), strict=True):
            torch.testing.assert_close(mine, expected, equal_nan=True)
            assert mine.dtype is expected.dtype and torch.equal(mine.signbit(), expected.signbit())
    assert compiled_function(fast).dispatch.hits == 2


def results(function, shape, trains):
    z = torch.ones(shape, requires_grad=trains)
    given = function(z)
    given = given if isinstance(given, tuple) else (given,)
    reached = [part.sum() for part in given if part.requires_grad]
    if reached:
        sum(reached).backward()
    return [part.detach() for part in given], z.grad, z.detach()
