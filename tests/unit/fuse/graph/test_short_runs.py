"""Reductions over groups of channels that lie channels-last, and group norms: right, and in loops over all channels."""

import pytest
import torch
from torch.nn import functional as F

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.schedule import RunKernel

LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
NORMS = [  # a shape and the number of groups
    ((3, 12, 7, 9), 3), ((2, 12, 40, 3), 12), ((2, 12, 5, 6), 1), ((4, 6, 1, 1), 2), ((2, 8, 3, 4, 5), 2),
    ((2, 6, 50), 3), ((5, 6), 3), ((2, 160, 6, 6), 2), ((0, 4, 3, 3), 2),
]  # fmt: skip


def laid(x, last):
    return x.contiguous(memory_format=LAST[x.dim()]) if last and x.dim() in LAST else x


def texts(compiled):
    """The loop nests of the last plan of a compiled function."""
    schedule = compiled_function(compiled).products[-1].stages.code.schedule
    return [kernel_text(item.kernel) for item in schedule.items if isinstance(item, RunKernel)]


@pytest.mark.parametrize("name", ["sum", "amax", "amin", "any", "all"])
@pytest.mark.parametrize("last", [False, True])
def test_reductions_of_groups(name, last):
    def function(x):
        parts = x.unflatten(1, (3, 4))
        return getattr(torch, name)(parts > 0 if name in ("any", "all") else parts * 2, dim=(2, 3, 4))

    fast = framefuse.compile(function)
    for seed, side in ((0, 40), (1, 40), (2, 23)):
        torch.manual_seed(seed)
        x = laid(torch.randn(2, 12, side, 5), last)
        torch.testing.assert_close(fast(x), function(x), rtol=1e-4, atol=1e-4)
    assert compiled_function(fast).dispatch.hits == 2
    assert len(texts(fast)) == 1 + last


def test_a_long_run_is_reduced_at_once():
    fast = framefuse.compile(lambda x: x.unflatten(1, (2, 80)).sum((2, 3, 4)))
    for _ in range(2):
        x = torch.randn(2, 160, 6, 6).to(memory_format=torch.channels_last)
        torch.testing.assert_close(fast(x), x.unflatten(1, (2, 80)).sum((2, 3, 4)), rtol=1e-4, atol=1e-4)
    assert len(texts(fast)) == 1 and compiled_function(fast).dispatch.hits == 1


def gradients(function, x, slope, groups, factors):
    x, *factors = (each.clone().requires_grad_() if each is not None else None for each in (x, *factors))
    y = function(x, groups, *factors)
    y.backward(slope)
    return [y.detach(), *(each.grad for each in (x, *factors) if each is not None)]


def distance(found, exact):
    return ((found.double() - exact).norm() / exact.norm().clamp_min(1e-30)).item()


@pytest.mark.parametrize("last", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("given", ["both", "weight", "neither"])
def test_group_norm_is_as_close_to_float64_as_eagers(given, dtype, last):
    for shape, groups in NORMS if given == "both" else NORMS[:1]:
        fast = framefuse.compile(lambda *given: F.group_norm(*given))
        for seed, offset in ((0, 0.0), (1, 0.0), (2, 30.0)):
            torch.manual_seed(seed)
            x, slope = (laid((torch.randn(shape) + at).to(dtype), last) for at in (offset, 0.0))
            weight, bias = ((torch.rand(shape[1]) + 0.5).to(dtype) for _ in range(2))
            factors = weight if given != "neither" else None, bias if given == "both" else None
            found, eager = (gradients(each, x, slope, groups, factors) for each in (fast, F.group_norm))
            wide = [factor.double() if factor is not None else None for factor in factors]
            exact = gradients(F.group_norm, x.double(), slope.double(), groups, wide)
            for one, other, true in zip(found, eager, exact, strict=True):
                assert one.stride() == other.stride() and one.dtype is other.dtype
                least = {torch.float32: 2e-6, torch.bfloat16: 5e-3, torch.float64: 1e-11}[dtype]
                assert distance(one, true) <= max(2 * distance(other, true), least)
        assert compiled_function(fast).dispatch.hits == 2, shape


def test_groups_that_lie_channels_last_are_lanes():
    """No loop divides or runs along the few channels of a group, where it goes over all points."""
    fast = framefuse.compile(lambda *given: F.group_norm(*given))
    for _ in range(2):
        x = torch.randn(2, 64, 32, 32).to(memory_format=torch.channels_last).requires_grad_()
        fast(x, 8, torch.ones(64)).sum().backward()
    assert compiled_function(fast).dispatch.hits == 1
    large = [text for text in texts(fast) if "512" in text or "sub_mul" in text.split("(")[0]]
    assert len(large) == 3
    for text in large:
        lines = [line for line in text.splitlines() if "vector(" in line or " v" in line]
        assert not any("// n" in line or "// 8" in line for line in lines), text


@pytest.mark.parametrize("batch, kernels", [(20, 1), (400, 2)])
def test_rows_of_a_few_points_are_reduced_across_where_there_are_many(batch, kernels):
    fast = framefuse.compile(lambda x: x.sum((0, 2, 3)))
    for _ in range(2):
        x = torch.randn(batch, 5, 3, 3)
        torch.testing.assert_close(fast(x), x.sum((0, 2, 3)), rtol=1e-4, atol=1e-4)
    assert len(texts(fast)) == kernels and compiled_function(fast).dispatch.hits == 1
