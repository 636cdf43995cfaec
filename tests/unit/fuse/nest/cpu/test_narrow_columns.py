"""Sums of a few columns take several rows together, which lie below each other in memory; any sizes are right."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.ir import costs
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.schedule import RunKernel

PROGRAMS = {
    "sum": lambda x, y: x.sum(0),
    "mean": lambda x, y: (x.abs() + 1).mean(0) * 2,
    "amax": lambda x, y: x.amax(0),
    "amin": lambda x, y: x.amin(0) - 1,
    "any": lambda x, y: (x > 8).any(0),
    "all": lambda x, y: (x < 8).all(0),
    "prod": lambda x, y: (x.abs() > 8).to(torch.int64).add(1).prod(0),
    "several": lambda x, y: ((x * y).sum(0), x.amax(0), y.sum(0)),
    "a number for all": lambda x, y: (x * y[0, 0]).sum(0),
    "a row for all": lambda x, y: (x * y[0]).sum(0),
    "a column for all": lambda x, y: (x * y[:, :1]).sum(0),
    "turned": lambda x, y: (x.t() + y.t()).sum(1),
}
FULL = ((900, 3), (900, 3), (33, 3), (1, 2), (512, 2), (1030, 2), (171, 3), (85, 6), (40, 600), (64, 513), (3, 1))
SIZES = (*FULL, (0, 4))

PLACES = 4096  # bytes after which a first-level cache of 64 lines begins anew


def kernels(fast):
    schedules = [product.stages.code.schedule for product in compiled_function(fast).products]
    return [item.kernel for each in schedules for item in each.items if isinstance(item, RunKernel)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_few_columns(name, dtype):
    program = PROGRAMS[name]
    if name == "mean" and not dtype.is_floating_point:
        return
    fast = framefuse.compile(program)
    for sizes in SIZES:
        if not sizes[0] and name in ("amax", "amin", "several", "a number for all", "a row for all"):
            continue
        x, y = (torch.randint(0, 9, sizes).to(dtype) for _ in range(2))
        torch.testing.assert_close(fast(x, y), program(x, y), equal_nan=True)
    assert fast.hits >= 7


def test_rows_lie_below_each_other_in_one_vector_loop():
    fast = framefuse.compile(lambda x: x.sum(0))
    for count in (900, 900, 70):
        x = torch.randn(count, 3)
        torch.testing.assert_close(fast(x), x.sum(0))
    (kernel,) = kernels(fast)
    assert "*min(" in kernel_text(kernel)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("columns", [8, 16, 20, 32, 48, 64])
def test_rows_that_fill_vectors_are_read_in_the_order_of_memory(columns, dtype):
    """As many as registers hold: no row lies further off than the next of its lane."""
    fast = framefuse.compile(lambda x: (x.sum(0), x.amax(0)))
    for count in (900, 900, 70, 3):
        x = torch.randint(-9, 9, (count, columns)).to(dtype)
        torch.testing.assert_close(fast(x), (x.sum(0), x.amax(0)))
    size = max(dtype.itemsize, 4)
    fills = columns * size >= costs.CPU_VECTOR and costs.CPU_HELD // size % columns == 0
    wanted = costs.CPU_HELD // size if fills else costs.CPU_TOGETHER
    schedules = [product.stages.code.schedule for product in compiled_function(fast).products]
    assert all(f"(({wanted}) // max(1, " in str(schedule) for schedule in schedules)


def test_what_is_in_memory_comes_last_where_extremes_join():
    """``select(is_nan(memory), memory, ...)`` stored there would be a store by lanes."""
    fast = framefuse.compile(lambda x: x.amax(0))
    for count in (900, 900, 70):
        x = torch.randn(count, 3)
        assert torch.equal(fast(x), x.amax(0))
    (kernel,) = kernels(fast)
    assert "maximum(a" in kernel_text(kernel)
    assert "maximum(s" not in kernel_text(kernel)


@pytest.mark.parametrize("size", [1, 2, 4, 8])
@pytest.mark.parametrize("columns", [1, 2, 4, 16, 32, 64])
def test_rows_read_together_do_not_lie_at_one_place_of_a_cache(columns, size):
    apart = costs.CPU_TOGETHER // columns * columns * size
    assert apart % PLACES


@pytest.mark.parametrize("step", [2, 3, 5])
def test_few_rows_of_elements_that_lie_apart_are_read_along_them(step):
    fast = framefuse.compile(lambda x: x.norm(dim=1))
    for rows, count in ((2, 500), (2, 500), (3, 77), (1, 9)):
        x = torch.randn(rows, count * step)[:, ::step]
        torch.testing.assert_close(fast(x), x.norm(dim=1))
    assert fast.hits >= 2
    assert all("scratch" not in kernel_text(kernel) for kernel in kernels(fast))
