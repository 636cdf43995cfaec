"""Windows along a dimension, of few blocks and of many: kernels read them where they lie; gradients too."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.schedule import RunCall


def lying(tensor):
    """The strides of dimensions of more than one element."""
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


WINDOWS = [(4, 4), (4, 2), (3, 1), (4, 1), (5, 2), (1, 1), (2, 3), (8, 1), (6, 6), (7, 1), (7, 3)]


@pytest.mark.parametrize(("size", "step"), WINDOWS)
@pytest.mark.parametrize("dimension", [0, 1, -1])
def test_windows(size, step, dimension):
    def program(x):
        return x.unfold(dimension, size, step) * 2

    fast = framefuse.compile(program)
    for shape in ((9, 10, 11), (9, 10, 11), (12, 8, 13), (16, 15, 14), (8, 9, 9)):
        torch.manual_seed(shape[0])
        x = torch.randn(shape, requires_grad=True)
        ours, theirs = fast(x), program(x)
        assert lying(ours) == lying(theirs)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        g = torch.randn_like(theirs)
        (mine,) = torch.autograd.grad(ours.sin(), x, g, create_graph=True)
        (yours,) = torch.autograd.grad(theirs.sin(), x, g, create_graph=True)
        torch.testing.assert_close(mine, yours)
        seconds = [torch.autograd.grad(each.square().sum(), x)[0] for each in (mine, yours)]
        torch.testing.assert_close(*seconds)
    assert framefuse.explain(fast).hits >= 1


@pytest.mark.parametrize(("size", "step"), [(40, 16), (100, 30), (8, 24), (80, 10)])
def test_windows_of_long_blocks_are_kernels(size, step):
    def program(x):
        return x.unfold(-1, size, step) * torch.hann_window(size)

    fast = framefuse.compile(program)
    for shape in ((2, 300), (2, 300), (3, 241), (2, 100), (1, 999)):
        x = torch.randn(shape, requires_grad=True)
        ours, theirs = fast(x), program(x)
        assert lying(ours) == lying(theirs)
        torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
        mine, yours = (torch.autograd.grad(each.square().sum(), x)[0] for each in (ours, theirs))
        torch.testing.assert_close(mine, yours)
    assert fast.hits >= 3
    items = [item for product in compiled_function(fast).products for item in product.stages.code.schedule.items]
    assert all(item.node.attr("name") != "unfold" for item in items if isinstance(item, RunCall))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
@pytest.mark.parametrize(("size", "step"), [(12, 1), (9, 2), (20, 3)])
@pytest.mark.parametrize("computed", [False, True])
def test_windows_that_are_reduced_are_read_where_they_lie(size, step, dtype, computed):
    def program(x):
        windows = (x * 2 + 1 if computed else x).unfold(1, size, step)
        return windows.sum(-1), windows.amax(-1), windows.unfold(1, 2, 1).amin((-1, -2))

    fast = framefuse.compile(program)
    for shape in ((2, 40), (2, 40), (3, 51), (1, 30)):
        x = torch.randint(-9, 9, shape).to(dtype).requires_grad_(dtype.is_floating_point)
        ours, theirs = fast(x), program(x)
        torch.testing.assert_close(ours, theirs)
        if x.requires_grad:
            mine, yours = (torch.autograd.grad(sum(p.float().sum() for p in each), x)[0] for each in (ours, theirs))
            torch.testing.assert_close(mine, yours, rtol=2e-2, atol=2e-2)
    assert fast.hits >= 2
    items = [item for product in compiled_function(fast).products for item in product.stages.code.schedule.items]
    assert not any(isinstance(item, RunCall) for item in items)


def test_patches_are_views_and_written_through():
    def program(x, y):
        patches = x.unfold(0, 2, 2).unfold(1, 3, 3)
        patches.mul_(2)
        return patches, y.unfold(0, 3, 1), patches.sum((-1, -2))

    fast = framefuse.compile(program)
    for number in range(4):
        torch.manual_seed(number)
        x, y = torch.randn(5, 7), torch.randn(6)
        twins = x.clone(), y.clone()
        ours, theirs = fast(x, y), program(*twins)
        torch.testing.assert_close(ours, theirs)
        torch.testing.assert_close((x, y), twins)
        assert [part.stride() for part in ours] == [part.stride() for part in theirs]
        assert ours[0].data_ptr() == x.data_ptr() and ours[1].data_ptr() == y.data_ptr()
    assert framefuse.explain(fast).hits >= 1


def test_a_window_that_does_not_fit_is_eagers_error():
    fast = framefuse.compile(lambda x: x.unfold(0, 4, 2) + 1)
    for size in (6, 7):
        fast(torch.randn(size))
    with pytest.raises(RuntimeError, match="maximum size"):
        fast(torch.randn(3))
