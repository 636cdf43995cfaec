"""Programs that write in place, share memory or return what they were given: compiled, they leave what eager leaves."""

import pytest
import torch
from tests.unit.differential import Outcome, difference, twin

import framefuse
from framefuse.api import compiled_function


def add_to_input(x):
    x.add_(1)
    return x * 2


def twice_written(x):
    x.mul_(2)
    x.add_(1)
    return x


def relu_on_intermediate(x):
    y = x + 1
    y.relu_()
    return y


def write_through_view(x):
    y = x + 0.5
    z = y.view(-1)
    z.mul_(2)
    return y, z


def write_through_view_of_input(x):
    y = x.view(-1)
    y.mul_(2)
    return x + 1


def view_of_input(x):
    return x.t(), x[1:], x.view(-1)


def same_tensor_twice(x, y):
    x.add_(1)
    return x + y


def swap(x, y):
    kept = x.clone()
    x.copy_(y)
    y.copy_(kept)


def clone_before_write(x):
    y = x.clone()
    x.zero_()
    return y


def out_argument(x, y):
    torch.add(x, 1, out=y)
    return y * 2


def setitem_on_intermediate(x):
    y = torch.zeros_like(x)
    y[0] = x[1]
    y[:, 1] = 3
    return y


def setitem_on_input(x):
    x[0] = 0
    return x.sum()


def returns_input(x):
    return x


def returns_one_object_twice(x):
    y = x * 2
    return y, y, [y]


def dict_and_list(x):
    y = x + 1
    return {"a": y, "b": [y.sum(), x], "c": (x.t(),)}


def identity_write(x):
    x.mul_(1)
    x.copy_(x)
    return x


def intermediate_view_kept(x):
    y = x * 3
    return y[0], y


def detached(x):
    y = x.detach()
    y.add_(1)
    return y


MATRIX = torch.arange(12.0).reshape(3, 4) - 5
FLAT = torch.arange(20.0)
ONE = (MATRIX,)
TWO = (MATRIX, MATRIX + 1)
SAME = (MATRIX, MATRIX)
OVERLAPPING = (FLAT[:12].view(3, 4), FLAT[4:16].view(3, 4))
PROGRAMS = {
    add_to_input: (ONE,),
    twice_written: (ONE,),
    relu_on_intermediate: (ONE,),
    write_through_view: (ONE,),
    write_through_view_of_input: (ONE,),
    view_of_input: (ONE,),
    same_tensor_twice: (TWO, SAME, OVERLAPPING),
    swap: (TWO, SAME, OVERLAPPING),
    clone_before_write: (ONE,),
    out_argument: (TWO, SAME, OVERLAPPING),
    setitem_on_intermediate: (ONE,),
    setitem_on_input: (ONE,),
    returns_input: (ONE,),
    returns_one_object_twice: (ONE,),
    dict_and_list: (ONE,),
    identity_write: (ONE,),
    intermediate_view_kept: (ONE,),
    detached: (ONE,),
}


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
@torch.no_grad()
def test_same_results_memory_and_versions(program):
    first = PROGRAMS[program][0]
    compiled = framefuse.compile(program)
    for args in (first, first, *PROGRAMS[program], *(tuple(reversed(args)) for args in PROGRAMS[program]), first):
        args = twin(args)
        expected = Outcome(program, twin(args), {})
        assert difference(compiled, expected, twin(args), {}) == ""
    state = compiled_function(compiled)
    assert state.products and state.dispatch.hits, state.reasons


@torch.no_grad()
def test_a_returned_view_has_its_base():
    x = MATRIX.clone()
    compiled = framefuse.compile(view_of_input)
    for _ in range(2):
        assert all(view._base is x for view in compiled(x))


def test_a_tensor_that_was_not_contiguous_and_is():
    def f(x):
        y = torch.ones(2)
        if x.is_contiguous():
            y.add_(1)
        return y

    compiled = framefuse.compile(f)
    wide = torch.randn(2, 6)
    with torch.no_grad():
        for x in (wide[:, ::2], torch.randn(2, 3), wide[:, ::2], wide[:, :3], torch.randn(3, 2).t(), torch.randn(2, 3)):
            assert torch.equal(compiled(x), f(x))


def test_a_result_in_another_order_is_a_view_of_nothing():
    def f(x):
        found = torch.nonzero(x).float()  # eager lays it column by column
        return found.unsqueeze(0), found

    compiled = framefuse.compile(f)
    with torch.no_grad():
        for _ in range(3):
            outer, inner = compiled(torch.tensor([[1.0, 0.0], [2.0, 3.0]]))
            assert outer._is_view() and not inner._is_view()
            assert outer._base is inner and inner.stride() == (1, 3)
