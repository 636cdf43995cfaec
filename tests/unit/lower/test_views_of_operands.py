"""Library calls are given the views that eager gives them, and what depends on strides agrees."""

import pytest
import torch
import torch.nn.functional as F

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.schedule import RunCall, RunKernel

PLACES = torch.tensor([3, 0, 5])  # made outside: a kernel would make it
VIEWS = {
    "turned": lambda x: x.mT,
    "every second": lambda x: x[..., ::2],
    "cut": lambda x: x[..., 2:-1],
    "rows": lambda x: x[::2],
    "one row for all": lambda x: x[:1].expand(x.shape),
    "one column for all": lambda x: x[..., :1].expand(x.shape),
}
CALLS = {
    "sort": lambda x: torch.sort(x, 0),
    "argsort": lambda x: x.argsort(-1),  # of equal numbers: their places depend on strides
    "take": lambda x: x.take(PLACES),
    "kthvalue": lambda x: x.kthvalue(2, 0),
    "interpolate": lambda x: F.interpolate(x.unsqueeze(0), scale_factor=2, mode="linear"),
    "median": lambda x: x.median(-1),
    "nonzero": lambda x: x.nonzero(),
}


def items_of(compiled):
    traces = [product.stages.code.schedule.items for product in compiled_function(compiled).products]
    return [item for items in traces for item in items]


def parts(value):
    return value if isinstance(value, tuple) else (value,)


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("view", VIEWS)
def test_no_kernel_copies_what_a_call_reads(view, call):
    def program(x):
        return CALLS[call](VIEWS[view](x))

    fast = framefuse.compile(program)
    for sizes in ((12, 18), (12, 18), (8, 14)):
        x = torch.randint(0, 9, sizes).float()
        for mine, other in zip(parts(fast(x)), parts(program(x)), strict=True):
            assert mine.stride() == other.stride()
            assert torch.equal(mine, other)
    assert fast.hits >= 2
    # A copy of elements that lie apart repays itself, where the call reads them all.
    copies = [item for item in items_of(fast) if isinstance(item, RunKernel)]
    assert not copies or (view == "every second" and call != "take")


def test_what_was_computed_is_seen_too():
    def program(x):
        return torch.msort((x * 2).mT)

    fast = framefuse.compile(program)
    for sizes in ((6, 9), (6, 9), (5, 11)):
        x = torch.randn(sizes)
        assert torch.equal(fast(x), program(x))
        assert fast(x).stride() == program(x).stride()
    assert sum(isinstance(item, RunKernel) for item in items_of(fast)) == 1
    assert sum(isinstance(item, RunCall) and item.node.attr("name") == "msort" for item in items_of(fast)) == 1


def test_a_copy_that_a_call_keeps_is_not_the_input():
    """The program's clone is its own memory, whatever becomes of the input."""

    def program(x):
        return torch.msort(x.clone().mT), x.add_(1)

    fast = framefuse.compile(program)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4, 6)
        y = x.clone()
        mine, other = fast(x), program(y)
        assert torch.equal(mine[0], other[0])
        assert torch.equal(x, y)
    assert fast.hits >= 2


def test_an_input_that_is_written_behind_the_call():
    def program(x):
        first = torch.msort(x.mT)
        x.mul_(2)
        return first, torch.msort(x[:, ::2])

    fast = framefuse.compile(program)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4, 6)
        y = x.clone()
        for mine, other in zip(fast(x), program(y), strict=True):
            assert torch.equal(mine, other)
        assert torch.equal(x, y)
    assert fast.hits >= 2


def test_gradients_through_views():
    def program(x):
        wide = F.interpolate(x[None, :, ::2], scale_factor=2, mode="linear")
        return torch.msort(x.mT)[1:].square().sum() + wide.sum()

    fast = framefuse.compile(program)
    for seed in range(3):
        torch.manual_seed(seed)
        x = torch.randn(4, 6, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        fast(x).backward()
        program(y).backward()
        torch.testing.assert_close(x.grad, y.grad)
    assert fast.hits >= 2
