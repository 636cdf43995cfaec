"""A call writes what was computed for it alone where it lies; what somebody else reads, keeps or gets is copied."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.schedule import RunCall

AT = torch.tensor([0, 2])


def alone(x):
    y = x * 2
    y[AT] = 1.0
    return y


def in_turn(x):
    y = x * 2
    y[AT] = 1.0
    y[..., ::3] = 2.0
    return y.index_fill_(0, AT, 3.0) + 1


def turned(x):
    y = x.mT.contiguous()
    return y.index_add_(0, AT, x.mT[:2])


def from_itself(x):
    y = x * 2
    return y.index_add_(0, AT, y[:2].clone())


def read_later(x):
    y = x @ x.mT
    z = y.clone()
    z[AT] = 1.0
    return z, y * z.sum()


def leaves_too(x):
    y = x * 2
    z = y.clone()
    z[AT] = 1.0
    return z, y


def twice(x):
    y = x * 2
    one, two = y.clone(), y.clone()
    one[AT] = 1.0
    two[AT] = 2.0
    return one, two


def sorted_before(x):
    y = x * 2
    values, _ = torch.sort(y, 0)
    y[AT] = 1.0
    return values, y


def of_a_view(x):
    y = x * 2
    z = y[1:].clone()
    z[AT] = 1.0
    return z, y[0] * 3


def of_an_argument(x):
    y = x.clone()
    y[AT] = 1.0
    return y


def masked_by_itself(x):
    y = x * 2
    return y.clone().masked_scatter_(y > 0, y)


def scattered_by_itself(x):
    y = x * 2
    return y.clone().scatter_(0, (y > 0).long(), y)


SPARED = {alone: 1, in_turn: 3, turned: 1, from_itself: 1, of_a_view: 1}
COPIED = (read_later, leaves_too, twice, sorted_before, of_an_argument, masked_by_itself, scattered_by_itself)


def spared(fast):
    """How many operands are written where they lie."""
    (product,) = compiled_function(fast).products
    calls = [item.node for item in product.stages.code.schedule.items if isinstance(item, RunCall)]
    return sum(len(getattr(node.attr("target"), "spared", ())) for node in calls)


@pytest.mark.parametrize("program", (*SPARED, *COPIED), ids=lambda program: program.__name__)
def test_contents(program):
    fast = framefuse.compile(program)
    kept = []
    for sizes in ((5, 8), (5, 8), (7, 6), (40, 30), (4, 9)):
        x = torch.randint(-9, 9, sizes).float()
        before = x.clone()
        mine, other = fast(x), program(x)
        pairs = list(zip(mine, other, strict=True)) if isinstance(other, tuple) else [(mine, other)]
        kept += pairs  # no later call writes what an earlier one gave
        for one, two in kept:
            assert torch.equal(one, two) and one.stride() == two.stride() and one._version == two._version
        assert torch.equal(x, before)
    assert fast.hits >= 3 and spared(fast) == SPARED.get(program, 0)


@pytest.mark.parametrize("program", (alone, in_turn, turned, leaves_too, twice), ids=lambda program: program.__name__)
def test_gradients(program):
    fast = framefuse.compile(program)
    for sizes in ((5, 8), (5, 8), (7, 6), (40, 30)):
        x = torch.randn(sizes, requires_grad=True)
        sums = [
            sum((part * part).sum() for part in (result if isinstance(result, tuple) else (result,)))
            for result in (fast(x), program(x))
        ]
        (one,), (two,) = (torch.autograd.grad(total, x) for total in sums)
        torch.testing.assert_close(one, two)
    assert fast.hits >= 2


def test_a_call_that_fails_in_between():
    def program(x, at):
        y = x * 2
        y[AT] = 1.0
        y[at] = 2.0
        return y

    fast = framefuse.compile(program)
    for last in (1, 2, 0, 3):
        x, at = torch.randn(5, 4), torch.tensor([last])
        assert torch.equal(fast(x, at), program(x, at))
    x = torch.randn(5, 4)
    with pytest.raises(IndexError):
        fast(x, torch.tensor([9]))
    assert torch.equal(fast(x, torch.tensor([4])), program(x, torch.tensor([4]))) and fast.hits >= 3
