"""Borders of a few elements beside rows are loops of single elements, unless a formula takes long."""

import pytest
import torch
from torch.nn import functional as F

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.loops import Loop, LoopKind
from framefuse.ir.loops.walk import statements
from framefuse.ir.schedule import RunKernel


def kinds(fast):
    """How the loops inside of the parallel one run."""
    items = compiled_function(fast).products[0].stages.code.schedule.items
    bodies = [item.kernel.body for item in items if isinstance(item, RunKernel)]
    return [part.kind for body in bodies for part in statements(body) if isinstance(part, Loop)]


@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
@pytest.mark.parametrize("width", [1, 3, 5])
def test_values_beside_rows(mode, width):
    for function in (torch.relu, F.gelu):
        fast = framefuse.compile(lambda x, f=function: f(F.pad(x, (width, width), mode=mode)))
        for size in (40, 40, 7, 33):
            x = torch.randn(3, 8, size)
            torch.testing.assert_close(fast(x), function(F.pad(x, (width, width), mode=mode)))
        assert fast.hits >= 2


def test_borders_are_no_vectors_where_little_is_computed():
    for function, serial in ((torch.relu, 2), (F.gelu, 0)):
        fast = framefuse.compile(lambda x, f=function: f(torch.cat([x[:, :2], x + 1, x[:, -3:]], -1)))
        for _ in range(2):
            fast(torch.randn(8, 100))
        assert kinds(fast).count(LoopKind.SERIAL) == serial
