"""A cat of a few points along the innermost axis has a vector loop over rows for each point."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.codegen.llvm.compile import text
from framefuse.ir.loops import Loop, LoopKind, Store
from framefuse.ir.loops.walk import statements
from framefuse.ir.schedule import RunKernel


def boxes(x):
    a, b, c, d = x[..., 0], x[..., 1], x[..., 2], x[..., 3]
    return torch.stack([a - c / 2, b - d / 2, a + c / 2, b + d / 2], -1)


def rotations(q):
    w, x, y, z = q[..., :4].unbind(-1)
    rows = [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w), 2 * (x * y + z * w)]
    rows += [1 - 2 * (x * x + z * z), 2 * (y * z - x * w), 2 * (x * z - y * w), 2 * (y * z + x * w)]
    return torch.stack([*rows, 1 - 2 * (x * x + y * y)], -1).reshape(*x.shape, 3, 3)


PROGRAMS = {
    "rotations": rotations,
    "turned pairs": lambda x: torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2) * 2,
    "chosen columns": lambda x: torch.stack([x[..., 0], x[..., 3], x[..., 1]], -1),
    "boxes": boxes,
    "a cat of several": lambda x: torch.cat([x[..., 2:4], x[..., :1] + 1, x[..., 1:2] * x[..., :1]], -1),
    "a stack of grids": lambda x: torch.stack(torch.meshgrid(x[0, 0], x[:, 0, 1], indexing="ij"), -1) + 1,
    "a stack of stacks": lambda x: torch.stack(
        [torch.stack([x[..., 0], -x[..., 1], x[..., 2]], -1), torch.stack([x[..., 2], x[..., 0], x[..., 1]], -1)], -2
    ),
    "few pairs of many rows": lambda x: torch.stack([x[:, 0, 0:4:2] * 2, x[:, 0, 1:4:2]], -1).flatten(-2),
    "equal pieces": lambda x: torch.stack([x[..., ::2], x[..., ::2]], -1).flatten(-2) + 1,
    "integers": lambda x: torch.stack([x[..., 1].to(torch.int8), x[..., 0].to(torch.int8)], -1),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_points_of_a_short_cat(name):
    program = PROGRAMS[name]
    fast = framefuse.compile(program)
    for sizes in ((5, 7, 20), (5, 7, 20), (3, 2500, 4), (700, 6, 6), (2, 9, 34), (1, 5, 8)):
        x = torch.randint(-9, 9, sizes).float()
        mine, other = fast(x), program(x)
        assert mine.stride() == other.stride()
        assert torch.equal(mine, other)
    assert fast.hits >= 3


def kernel_of(fast):
    (product,) = compiled_function(fast).products
    (kernel,) = (item.kernel for item in product.stages.code.schedule.items if isinstance(item, RunKernel))
    return kernel


def vector_loops(kernel):
    return [each for each in statements(kernel.body) if isinstance(each, Loop) and each.kind is LoopKind.VECTOR]


def test_no_vector_loop_has_a_single_point():
    fast = framefuse.compile(rotations)
    for sizes in ((5, 40, 4), (5, 40, 4)):
        fast(torch.randn(sizes))
    assert fast.hits >= 1
    loops = vector_loops(kernel_of(fast))
    assert len(loops) == 9
    assert all(each.extent.constant is None for each in loops)


NEIGHBOURS = {
    "boxes": boxes,
    "three": lambda x: torch.stack([x[..., 2], x[..., 0] * 2, x[..., 1]], -1),
    "turned pairs": lambda x: torch.stack((-x[..., 1], x[..., 0]), -1),
}
KINDS = (torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int8, torch.uint8)


@pytest.mark.parametrize("dtype", KINDS, ids=str)
@pytest.mark.parametrize("name", NEIGHBOURS)
def test_points_that_are_neighbours_in_memory_are_written_together(name, dtype):
    program = NEIGHBOURS[name]
    if name == "boxes" and not dtype.is_floating_point:
        return
    fast = framefuse.compile(program)
    for count in (40, 40, 3, 1, 67, 300, 5000):
        x = torch.randint(0, 9, (count, 5)).to(dtype)
        assert torch.equal(fast(x), program(x))
    assert fast.hits >= 5
    kernel = kernel_of(fast)
    (loop,) = vector_loops(kernel)
    stores = [each for each in loop.body if isinstance(each, Store)]
    assert loop.body[-len(stores) :] == tuple(stores) and len(stores) in (2, 3, 4)
    whole = [line for line in text(kernel).splitlines() if "  store <" in line]
    assert whole, "vectors of neighbours are stored whole"


def clamped(x):
    x[:, 0::2].clamp_(0, 5)
    x[:, 1::2].clamp_(0, 7)


def test_neighbours_of_an_argument_are_written_where_they_lie():
    fast = framefuse.compile(clamped)
    for count in (40, 40, 3, 1, 67, 5000):
        x = torch.randn(count, 4) * 9
        expected = x.clone()
        fast(x)
        clamped(expected)
        assert torch.equal(x, expected) and x._version == expected._version
    assert fast.hits >= 4
    assert kernel_of(fast).buffers[0].aliases == "b1"
