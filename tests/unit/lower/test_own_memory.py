"""What a library call has written leaves as it is: one copy, as in eager, which shares memory with nothing else."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.schedule import RunCall
from framefuse.lower.values import Values

AT = torch.tensor([0, 2])


def every_third(x):
    y = x.clone()
    y[..., ::3] = 1
    return y


def rows(x):
    y = x.clone()
    y[AT] = x[AT] * 2 + 1
    return y


def added(x):
    y = x.clone()
    return y.index_add_(0, AT, y[:2].clone())


def twice(x):
    y = x.clone()
    y[AT] = 1.0
    y[..., ::3] = 2.0
    return y


def with_a_view(x):
    y = x.clone()
    y[..., ::3] = 1
    return y, y[1], y.mT


def beside_its_copy(x):
    y = x.clone()
    y[..., ::3] = 1
    z = y.clone()
    return y, z


PROGRAMS = (every_third, rows, added, twice, with_a_view, beside_its_copy)
LAYOUTS = {
    "in rows": lambda x: x,
    "turned": lambda x: x.mT,
    "reversed": lambda x: x.permute(2, 1, 0),
    "cut": lambda x: x[:, 1:-1],
    "stepped": lambda x: x[..., ::2],
    "expanded": lambda x: x[..., :1].expand(x.shape),
    "expanded in front": lambda x: x[:1].expand(x.shape),
}


def same(mine, other):
    assert mine.stride() == other.stride() and torch.equal(mine, other)
    assert mine._version == other._version and mine.is_contiguous() == other.is_contiguous()


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_copies_that_calls_write(program, layout):
    fast = framefuse.compile(program)
    for sizes in ((5, 8, 6), (5, 8, 6), (4, 7, 9), (3, 6, 5)):
        x = LAYOUTS[layout](torch.randn(sizes))
        before = x.clone()
        mine, other = fast(x), program(x)
        assert torch.equal(x, before)
        pair = zip(mine, other, strict=True) if isinstance(other, tuple) else [(mine, other)]
        for one, two in pair:
            same(one, two)
        first = mine[0] if isinstance(mine, tuple) else mine
        first.add_(1)
        assert torch.equal(x, before)
        if program is with_a_view:
            assert torch.equal(mine[1], mine[0][1]) and torch.equal(mine[2], mine[0].mT)
        if program is beside_its_copy:
            assert torch.equal(mine[1], other[1])
    assert fast.hits >= 2


@pytest.mark.parametrize("program", (every_third, rows, added), ids=lambda program: program.__name__)
def test_gradients_of_copies_that_calls_write(program):
    fast = framefuse.compile(program)
    for sizes in ((5, 8, 6), (5, 8, 6), (4, 7, 9)):
        x = torch.randn(sizes).mT.requires_grad_()
        mine, other = fast(x), program(x)
        (one,), (two,) = (torch.autograd.grad((y * y).sum(), x) for y in (mine, other))
        torch.testing.assert_close(one, two)
        same(mine.detach(), other.detach())
    assert fast.hits >= 1


def test_a_result_that_a_call_wrote_is_copied_once():
    fast = framefuse.compile(every_third)
    for _ in range(3):
        fast(torch.randn(3, 4, 5))
    (product,) = compiled_function(fast).products
    assert len([item for item in product.stages.code.schedule.items if isinstance(item, RunCall)]) == 1


def test_of_many_parts_each_looks_at_a_few_others(monkeypatch):
    looked, shares = [], Values.shares

    def counted(values, value):
        for other in shares(values, value):
            looked.append(other)
            yield other

    monkeypatch.setattr(Values, "shares", counted)
    program, parts = (lambda x: (x * 2).cumsum(0).split(4)), 300
    fast = framefuse.compile(program)
    for _ in range(3):
        x = torch.randn(4 * parts)
        torch.testing.assert_close(fast(x), program(x))
    assert fast.hits == 2
    assert len(looked) < 4 * parts
