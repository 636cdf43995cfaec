"""``select_scatter`` and its kin are kernels, with eager's contents, layout and gradients, or calls without a form."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.schedule import RunCall

PROGRAMS = {
    "select": lambda x: x.select_scatter(x.select(-2, 0) * 2, -2, -1),
    "select by name": lambda x: torch.select_scatter(x, x[1].sin(), dim=0, index=2) + 1,
    "slice": lambda x: x.slice_scatter(x[:1] + 1, 0, 0, 1),
    "slice of the middle": lambda x: torch.slice_scatter(x * 2, x[:, 1:3], dim=1, start=1, end=3),
    "slice to the end": lambda x: x.slice_scatter(x[..., 2:].neg(), -1, 2),
    "slice with steps": lambda x: x.slice_scatter(x[:, ::2] * 3, 1, step=2),
    "diagonal": lambda x: x.diagonal_scatter(x.diagonal() * 2),
    "another diagonal": lambda x: torch.diagonal_scatter(x, x.diagonal(1, 0, 2) + 1, 1, 0, 2),
    "a diagonal below": lambda x: torch.diagonal_scatter(x, x.diagonal(-1, 1, 2) + 1, -1, 1, 2),
    "all of it": lambda x: x.slice_scatter(x * 2),
    "of a number": lambda x: x.select_scatter(x.new_zeros(x.shape[1:]), 0, 1) * x,
}
CALLS = {
    "of another dtype": lambda x: x.select_scatter(x[0].double(), 0, 1),
    "three steps": lambda x: x.slice_scatter(x[:, ::3] * 2, 1, step=3),
}
LAYOUTS = {"in rows": lambda x: x, "turned": lambda x: x.mT, "stepped": lambda x: x[..., ::2]}


def called(program, layout):
    """The compiled function after calls of several sizes, each like eager's, forward and backward."""
    fast = framefuse.compile(program)
    for sizes in ((4, 6, 8), (4, 6, 8), (5, 7, 10), (3, 9, 14)):
        x = torch.randn(sizes, dtype=torch.float32, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        mine, other = fast(layout(x)), program(layout(y))
        torch.testing.assert_close(mine, other)
        assert mine.stride() == other.stride()
        weights = torch.randn(other.shape, dtype=other.dtype)
        mine.backward(weights)
        other.backward(weights)
        torch.testing.assert_close(x.grad, y.grad)
    assert fast.hits >= 1
    return fast


def calls_of(fast):
    schedules = [product.stages.code.schedule for product in compiled_function(fast).products]
    return [item for schedule in schedules for item in schedule.items if isinstance(item, RunCall)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROGRAMS)
def test_what_a_view_shows_is_replaced_by_kernels(name, layout):
    fast = called(PROGRAMS[name], LAYOUTS[layout])
    assert not calls_of(fast)


@pytest.mark.parametrize("name", CALLS)
def test_other_forms_are_calls(name):
    fast = called(CALLS[name], LAYOUTS["in rows"])
    assert calls_of(fast)


def test_the_result_is_memory_of_its_own():
    fast = framefuse.compile(lambda x, part: x.slice_scatter(part))
    for _ in range(3):
        x, part = torch.randn(3, 4), torch.randn(3, 4)
        mine = fast(x, part)
        assert torch.equal(mine, part) and mine.data_ptr() not in (x.data_ptr(), part.data_ptr())
    assert fast.hits >= 2


def test_what_is_replaced_whole_has_gradients_of_zeros():
    """It had none: an optimizer with weight decay leaves such a parameter where it is."""
    fast = framefuse.compile(lambda x, part: x.slice_scatter(part) * 2)
    for _ in range(3):
        x, part = (torch.randn(3, 4, requires_grad=True) for _ in range(2))
        fast(x, part).sum().backward()
        assert torch.equal(x.grad, torch.zeros(3, 4)) and torch.equal(part.grad, torch.full((3, 4), 2.0))
    assert fast.hits >= 2


@pytest.mark.parametrize(
    "program",
    [lambda x, y: torch.fill(x, y.sum()) * 2, lambda x, y: torch.cat([y, x[:0]]) * 2, lambda x, y: x.fill_(y[0]) * 2],
    ids=["filled", "joined without an element", "filled in place"],
)
def test_what_gives_no_element_has_gradients_of_zeros(program):
    fast = framefuse.compile(lambda x, y: program(x * 1, y))
    for size in (3, 3, 4):
        x, y, mine, other = (torch.randn(size) for _ in range(4))
        for f, leaves in ((fast, (mine, other)), (lambda x, y: program(x * 1, y), (x, y))):
            f(*(leaf.requires_grad_() for leaf in leaves)).sum().backward()
        assert mine.grad is not None and torch.equal(mine.grad, x.grad) and torch.equal(other.grad, y.grad)
    assert fast.hits >= 1
