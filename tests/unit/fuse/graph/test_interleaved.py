"""Complex numbers that kernels compute are written as they lie, and what they become is no view of anything."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.schedule import RunCall, RunKernel


def rotary(x, turns):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(3)


def operands(heads, width, requires_grad=False):
    x = torch.randn(2, 6, heads, width, requires_grad=requires_grad)
    angles = torch.randn(6, 1, width // 2)
    return x, torch.polar(torch.ones_like(angles), angles)


def schedules(compiled):
    """The schedules of the last graph and of its backward."""
    stages = compiled_function(compiled).products[-1].stages
    behind = [case.stages for derivative in stages.derivatives for case in derivative.cases]
    return [each.code.schedule for each in (stages, *behind)]


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_rotary_embedding_is_one_kernel_each_way(requires_grad):
    compiled = framefuse.compile(rotary)
    for heads, width in ((2, 8), (2, 8), (4, 16), (4, 16), (3, 10), (3, 10)):
        x, turns = operands(heads, width, requires_grad)
        out, expected = compiled(x, turns), rotary(x, turns)
        torch.testing.assert_close(out, expected)
        assert out.stride() == expected.stride() and out._is_view() == expected._is_view()
        if requires_grad:
            weight = torch.randn_like(out)
            mine, other = (torch.autograd.grad((each * weight).sum(), x)[0] for each in (out, expected))
            torch.testing.assert_close(mine, other)
    found = schedules(compiled)
    assert len(found) == 1 + requires_grad
    for schedule in found:  # nothing joins the parts, and no copy follows
        calls = [item.node.attr("target") for item in schedule.items if isinstance(item, RunCall)]
        assert torch.complex not in calls
        assert sum(isinstance(item, RunKernel) for item in schedule.items) == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_results_lie_as_eagers_and_are_no_views(order):
    def phases(x, y):
        return (x / y).exp()

    compiled = framefuse.compile(phases)
    for rows in (4, 4, 7):
        x, y = (torch.randn(rows, 5, dtype=torch.complex64).permute(order) for _ in range(2))
        found, expected = compiled(x, y), phases(x, y)
        torch.testing.assert_close(found, expected)
        assert found.stride() == expected.stride() and not found._is_view()
        assert found.untyped_storage().nbytes() == expected.untyped_storage().nbytes() and found._version == 0
        found.mul_(2)
        torch.testing.assert_close(compiled(x, y), expected)
    assert compiled_function(compiled).dispatch.hits >= 2
    calls = [item.node.attr("target") for item in schedules(compiled)[0].items if isinstance(item, RunCall)]
    assert torch.complex not in calls
