"""Scans by kernels: values, places, strides and gradients are eager's, for sizes other than the recorded ones."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.schedule import RunCall, RunKernel


def parts(value):
    return value if isinstance(value, tuple) else (value,)


def agree(function, *shapes, dtype=torch.float32, twice=False):
    """Compares compiled code with eager on inputs of each shape; the first one records."""
    near = {"rtol": 2e-2, "atol": 0.2} if dtype.itemsize == 2 else {"rtol": 1e-4, "atol": 1e-4}
    fast = framefuse.compile(function)
    for number, shape in enumerate((shapes[0], shapes[0], *shapes[1:])):
        torch.manual_seed(number)
        x = (torch.randn(shape) * 2).to(dtype)
        ours, theirs = (x.clone().requires_grad_(dtype.is_floating_point) for _ in range(2))
        results, expected = parts(fast(ours)), parts(function(theirs))
        for mine, other in zip(results, expected, strict=True):
            assert mine.stride() == other.stride()
            torch.testing.assert_close(mine, other, **near)
        if expected[0].requires_grad:
            share = torch.randn_like(expected[0])
            found = [torch.autograd.grad((value[0] * share).sin().sum(), leaf, create_graph=twice)
                     for value, leaf in ((results, ours), (expected, theirs))]  # fmt: skip
            torch.testing.assert_close(*found, **near)
            if twice:
                again = [torch.autograd.grad(value[0].sin().sum(), leaf)
                         for value, leaf in zip(found, (ours, theirs), strict=True)]  # fmt: skip
                torch.testing.assert_close(*again, **near)
    state = compiled_function(fast)
    assert state.dispatch.hits >= len(shapes) and not state.reasons
    items = [product.stages.code.schedule.items for product in state.products]
    return [item for each in items for item in each if isinstance(item, (RunKernel, RunCall))]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int32, torch.uint8])
@pytest.mark.parametrize("axis", [0, 1, 2])
def test_sums_along_each_axis(axis, dtype):
    items = agree(lambda x: x.cumsum(axis), (3, 37, 5), (4, 20, 33), (2, 1, 1), dtype=dtype)
    assert [type(item) for item in items] == [RunKernel]


FUSED = {
    "around": lambda x: (x.relu() * 2).cumsum(1).sigmoid() + x,
    "of the one before": lambda x: x.cumsum(1) - x,
    "from the end": lambda x: x.flip(1).cumsum(1).flip(1) + 1,
    "of what is stored too": lambda x: (lambda y: (y, y * 2))((x * 2).cumsum(1)),
    "of a share": lambda x: x.softmax(1).cumsum(1),
    "then a sum": lambda x: (x.cumsum(1) * 2).sum(1),
    "of two": lambda x: x.cumsum(1).cumsum(0),
    "of several axes as one": lambda x: (x * 2).reshape(-1).cumsum(0).reshape(x.shape) + 1,
    "of a transpose": lambda x: (x.t() * 2).cumsum(0),
    "of a constant": lambda x: torch.ones_like(x).cumsum(1) + x,
    "of a test": lambda x: (x > 0).cumsum(1) * 2,
    "read twice": lambda x: (lambda y: y.sin() * y)(x.cumsum(1)),
    "read twice, a step apart": lambda x: (lambda y: (y * 0.5).exp().sin() + y.relu() * y)((x * 2).cumsum(0)),
    "beside": lambda x: (x.cumsum(1), x.exp().cumsum(1)),
}


@pytest.mark.parametrize("name", FUSED)
def test_what_is_around_a_scan(name):
    items = agree(FUSED[name], (5, 37), (3, 70), (1, 9), dtype=torch.float64, twice=True)
    assert all(isinstance(item, RunKernel) for item in items)


def test_what_is_around_a_scan_is_in_its_kernel():
    items = agree(FUSED["around"], (5, 37), (3, 70))
    assert sum("cumsum" in item.kernel.title for item in items) == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("axis", [0, 1])
def test_products_and_extremes(axis, dtype):
    with torch.no_grad():
        agree(lambda x: (x * 0.1 + 1).cumprod(axis), (5, 37), (3, 70), dtype=dtype)
        for function in (lambda x: x.round().cummax(axis), lambda x: x.round().cummin(axis)):
            fast = framefuse.compile(function)
            for shape in ((5, 37), (5, 37), (30, 70)):
                x = (torch.randn(shape) * 2).to(dtype)
                if dtype.is_floating_point:
                    x[2, 3] = float("nan")
                for mine, other in zip(fast(x), function(x), strict=True):
                    torch.testing.assert_close(mine, other, equal_nan=True)
            assert compiled_function(fast).dispatch.hits >= 2


def test_gradients_of_products_and_extremes():
    agree(lambda x: (x * 0.1 + 1).cumprod(1), (5, 37), (3, 70))
    agree(lambda x: x.cummax(1), (5, 37), (3, 70))


def test_nothing_and_one():
    fast = framefuse.compile(lambda x: x.cumsum(0) * 2)
    for x in (torch.ones(3, 2), torch.ones(3, 2), torch.ones(0, 2), torch.ones(3, 0), torch.ones(1, 1)):
        assert torch.equal(fast(x), x.cumsum(0) * 2)
    scalar = framefuse.compile(lambda x: x.cumsum(0) * 2)
    for _ in range(3):
        assert torch.equal(scalar(torch.tensor(2.0)), torch.tensor(4.0))


def test_no_digits_are_lost_over_a_long_row():
    fast = framefuse.compile(lambda x: x.cumsum(0))
    for _ in range(3):
        x = torch.rand(100_000)
        exact = x.double().cumsum(0)
        assert (fast(x) - exact).abs().max() <= (x.cumsum(0) - exact).abs().max()


@pytest.mark.parametrize(
    "program",
    [
        lambda x: (x.sum() + 1).cumsum(0),
        lambda x: x[:1, :1].long().cumsum(-1) - 1,
        lambda x: x.sum().cummax(0)[0],
    ],
)
def test_a_scan_of_one_element(program):
    fast = framefuse.compile(program)
    for rows in (3, 1, 5):
        x = torch.randn(rows, 4)
        torch.testing.assert_close(fast(x), program(x))
    assert compiled_function(fast).dispatch.hits == 2


def behind_zeros(x):
    return torch.cat((torch.zeros_like(x[:, :1]), x[:, :-1].cumsum(1)), 1)


def padded(x):
    return torch.nn.functional.pad(x.cumsum(1)[:, :-1], (1, 0)) * 2


def behind_ones(x):
    return torch.cat((torch.ones_like(x[:, :1]), x.cumprod(1)[:, :-1]), 1) + 1


def first(x):
    return torch.cat((x.new_zeros(1, *x.shape[1:]), x.cumsum(0)[:-1]))


@pytest.mark.parametrize("program", [behind_zeros, padded, behind_ones, first], ids=lambda program: program.__name__)
def test_scans_of_what_comes_before_are_one_kernel(program):
    fast = framefuse.compile(program)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        for shape in ((5, 7), (5, 7), (6, 9), (3, 4)):
            x = torch.randn(shape).to(dtype)
            torch.testing.assert_close(fast(x), program(x))
    for product in compiled_function(fast).products:
        items = product.stages.code.schedule.items
        assert sum(isinstance(item, (RunKernel, RunCall)) for item in items) == 1


def test_a_scan_that_is_longer_than_what_comes_before_is_kept():
    pad = torch.nn.functional.pad
    for program in (lambda x: pad(x.cumsum(1), (1, 0)), lambda x: pad(x.cumsum(1)[:, :-1], (1, 1)),
                    lambda x: (pad(x.cumsum(1)[:, :-1], (1, 0)), x.cumsum(1))):  # fmt: skip
        agree(program, (5, 7), (6, 9))
