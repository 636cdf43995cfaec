"""Writes to every second element and to diagonals are kernels: eager's contents, layout and gradients."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.schedule import RunCall, RunKernel


def steps(y):
    y[..., ::2] = 1


def steps_from(y):
    y[:, 1::4] = 7


def steps_to(y):
    y[1:4:2, :, :-1] = y[1:4:2, :, 1:] * 2


def steps_twice(y):
    y[::2, 1::2] = y[::2, :1] + 1


def steps_of_steps(y):
    y[..., ::2][..., 1::2].mul_(3)


def through_a_view(y):
    y[..., ::2].mul_(2).add_(1)
    y.mT[:, ::2].neg_()


def computed(y):
    y[:, :, ::2] = (y[:, :, ::2] * 2 + y[:, :, ::2]).clamp(-20, 20) - y[:, :, :1]


def of_neighbours(y):
    y[..., 1:-1:2] = (y[..., :-2:2] + y[..., 2::2]) / 2


def diagonals(y):
    y.diagonal(0, -2, -1).fill_(3)


def other_diagonals(y):
    y.diagonal(1, 0, 2).mul_(2)
    y.diagonal(-1, -1, 1).add_(y[:, :1, :1].sum())


def filled(y):
    y[0].fill_diagonal_(4)


WRITES = (
    steps, steps_from, steps_to, steps_twice, steps_of_steps, through_a_view, computed, of_neighbours, diagonals,
    other_diagonals, filled,
)  # fmt: skip
LAYOUTS = {
    "in rows": lambda x: x,
    "turned": lambda x: x.mT,
    "reversed": lambda x: x.permute(2, 1, 0),
    "stepped": lambda x: x[..., ::2],
    "expanded": lambda x: x[..., :1].expand(x.shape),
}
SIZES = ((5, 8, 6), (5, 8, 6), (6, 9, 17), (7, 6, 5), (5, 33, 40))
names = {"ids": lambda write: write.__name__}


def copied(write):
    def program(x):
        y = x.clone()
        write(y)
        return y

    return program


def is_one_kernel_each(fast):
    schedules = [product.stages.code.schedule for product in compiled_function(fast).products]
    return schedules and not any(isinstance(item, RunCall) for each in schedules for item in each.items)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("write", WRITES, **names)
def test_of_a_copy(write, layout):
    fast = framefuse.compile(copied(write))
    for sizes in SIZES:
        x = LAYOUTS[layout](torch.randint(-9, 9, sizes).float())
        mine, other = fast(x), copied(write)(x)
        assert torch.equal(mine, other) and mine.stride() == other.stride() and mine._version == other._version
    assert fast.hits >= 1 and is_one_kernel_each(fast)


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8, torch.bool, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("write", (steps, steps_from, diagonals, filled), **names)
def test_of_other_dtypes(write, dtype):
    fast = framefuse.compile(copied(write))
    for sizes in SIZES:
        x = torch.randint(0, 9, sizes).to(dtype)
        assert torch.equal(fast(x), copied(write)(x))
    assert fast.hits >= 2 and is_one_kernel_each(fast)


@pytest.mark.parametrize("write", WRITES, **names)
def test_of_an_argument(write):
    def program(x):
        write(x)
        return x.sum()

    fast = framefuse.compile(program)
    for sizes in SIZES:
        x = torch.randint(-9, 9, sizes).float()
        y = x.clone()
        mine, other = fast(x), program(y)
        assert torch.equal(x, y) and mine == other and x._version == y._version
    assert fast.hits >= 1


@pytest.mark.parametrize("write", WRITES, **names)
def test_gradients(write):
    fast = framefuse.compile(copied(write))
    for sizes in SIZES:
        x = torch.randint(-9, 9, sizes).float().mT.requires_grad_()
        results = [program(x) for program in (fast, copied(write))]
        weight = torch.randint(-9, 9, results[0].shape).float()
        (one,), (two,) = (torch.autograd.grad(result, x, weight) for result in results)
        assert torch.equal(*results) and torch.equal(one, two) and one.stride() == two.stride()
    assert fast.hits >= 1


def test_slices_without_elements():
    def program(x, stop):
        y = x * 2
        y[1:stop:2] = 5
        return y

    fast = framefuse.compile(program)
    for stop in (4, 5, 6, 1, 0, 2, 3, 9, -1, -8, -9):
        x = torch.randn(9)
        assert torch.equal(fast(x, stop), program(x, stop))
    assert fast.hits >= 2


def test_what_is_turned_is_no_view():
    def program(x):
        y = x.flip(0)
        y[::2].mul_(2)
        return y, x + 1

    fast = framefuse.compile(program)
    for size in (5, 6, 9):
        x = torch.randn(size, 3)
        for mine, other in zip(fast(x), program(x), strict=True):
            assert torch.equal(mine, other)
    assert fast.hits >= 1


@pytest.mark.parametrize("sizes", [(3, 7), (7, 3), (4, 4), (1, 5)])
@pytest.mark.parametrize("value", [0, 1.5, True])
@pytest.mark.parametrize("wrap", [False, True])
def test_filled_diagonals(sizes, value, wrap):
    def program(x):
        return x.clone().fill_diagonal_(value, wrap)

    fast = framefuse.compile(program)
    for dtype in (torch.float32, torch.float32, torch.int32, torch.int32, torch.complex64):
        x = torch.randn(sizes).to(dtype)
        assert torch.equal(fast(x), program(x))
    assert fast.hits >= 2


def test_what_lies_between_is_neither_divided_by_nor_gathered():
    def program(x, y):
        z = x.clone()
        z[:, ::2] //= y[:, ::2]
        return z

    fast = framefuse.compile(program)
    for width in (7, 7, 9, 33):
        x, y = torch.randint(1, 9, (5, width)), torch.randint(1, 9, (5, width))
        y[:, 1::2] = 0
        assert torch.equal(fast(x, y), program(x, y))
    assert fast.hits >= 3


def test_vectors_read_in_order_what_lies_apart():
    fast = framefuse.compile(copied(computed))
    for sizes in ((5, 8, 33), (5, 8, 33), (4, 9, 35)):
        x = torch.randn(sizes)
        assert torch.equal(fast(x), copied(computed)(x))
    (product,) = compiled_function(fast).products
    (kernel,) = (item.kernel for item in product.stages.code.schedule.items if isinstance(item, RunKernel))
    assert "// 2)" not in kernel_text(kernel).split("\n", 2)[2]
