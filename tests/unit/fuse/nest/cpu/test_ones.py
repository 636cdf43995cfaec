"""A size that was 1 is any size, but a kernel that would divide by it is written for 1, too."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.codegen.llvm.emitter import emit
from framefuse.codegen.llvm.target import host
from framefuse.ir.loops import Load, Loop
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.loops.walk import statements, values_of
from framefuse.ir.schedule import RunKernel

PROGRAMS = {
    "a row of one": (lambda x, y: x + y, lambda n, one: ((n, one), (1, one))),
    "two of one": (lambda x, y: x * y - 1, lambda n, one: ((n, one, one), (1, one, one))),
    "from the left": (lambda x, y: (x - y).abs(), lambda n, one: ((n, 3, one), (3, one))),
    "turned": (lambda x, y: x.transpose(0, 1).neg() + y, lambda n, one: ((one, n), (1, one))),
}


def kernels(fast):
    schedules = [product.stages.code.schedule for product in compiled_function(fast).products]
    return [item.kernel for each in schedules for item in each.items if isinstance(item, RunKernel)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_and_other_sizes_are_one_trace(name, dtype):
    program, shapes = PROGRAMS[name]
    fast = framefuse.compile(program)
    for n, one in ((50, 1), (50, 1), (77, 1), (50, 4), (9, 19), (1, 1), (33, 1), (0, 1), (5, 0)):
        given = [(torch.randn(shape) * 9).to(dtype) for shape in shapes(n, one)]
        torch.testing.assert_close(fast(*given), program(*given))
    assert fast.hits >= 7


def test_the_code_for_one_divides_by_nothing():
    fast = framefuse.compile(lambda x, y: x + y)
    for _ in range(3):
        x, y = torch.randn(50, 1), torch.randn(1, 1)
        torch.testing.assert_close(fast(x, y), x + y)
    (kernel,) = kernels(fast)
    (one,) = kernel.ones
    assert f"once more for {one} = 1" in kernel_text(kernel)
    general, special = emit(kernel, host()).text.split("@ones(", 2)[:2]
    assert "sdiv" in general and "sdiv" not in special


def test_the_code_for_one_moves_rows_of_one_as_vectors():
    fast = framefuse.compile(lambda x, y: x * y)
    for n, one in ((5000, 1), (5000, 1), (77, 1), (50, 4), (0, 1)):
        x, y = torch.randint(-9, 9, (n, 1), dtype=torch.int8), torch.randint(-9, 9, (one,), dtype=torch.int8)
        assert torch.equal(fast(x, y), x * y)
    assert fast.hits >= 3
    (kernel,) = kernels(fast)
    assert len(kernel.ones) == 1
    general, special = emit(kernel, host()).text.split("@ones(", 2)[:2]
    assert "call void @llvm.masked.scatter" in general and "call void @llvm.masked.scatter" not in special


def test_other_sizes_are_written_once():
    fast = framefuse.compile(lambda x, y: x + y)
    for n in (50, 50, 60):
        x, y = torch.randn(n, 3), torch.randn(1, 3)
        torch.testing.assert_close(fast(x, y), x + y)
    (kernel,) = kernels(fast)
    assert kernel.ones == () and emit(kernel, host()).text.count("define ") == 1


@pytest.mark.parametrize("reduce", [torch.amin, torch.sum, torch.mean])
def test_a_reduction_has_no_innermost_loop_of_one(reduce):
    fast = framefuse.compile(lambda x: reduce(x, (0, 1, 2)))
    for sizes in ((5, 19, 4), (5, 19, 4), (2, 50, 9), (1, 1, 4), (7, 3, 5)):
        x = torch.randn(sizes)[..., 2:-1]
        torch.testing.assert_close(fast(x), reduce(x, (0, 1, 2)))
    assert fast.hits >= 3
    kernel = kernels(fast)[0]
    loops = [each for each in statements(kernel.body) if isinstance(each, Loop)]
    lane = next(loop for loop in loops if loop.kind.vector)
    (load,) = [value for value in values_of(lane.body) if isinstance(value, Load)]
    step = load.index.coefficient(lane.axis)
    assert step is not None and step.constant != 1  # not along the axis of one element, which is along memory
