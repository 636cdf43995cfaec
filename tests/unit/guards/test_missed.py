"""A miss is told in the user's words: the place, what was, what is, and the line that asked."""

import torch

import framefuse
from framefuse.runtime.function import compiled_function


def reasons(function, *calls):
    """Why each trace after the first was compiled; the last call runs compiled code with eager's result."""
    compiled = framefuse.compile(function)
    for args in calls:
        compiled(*args)
    state = compiled_function(compiled)
    before = state.dispatch.hits
    assert torch.equal(compiled(*calls[-1]), function(*calls[-1])) and state.dispatch.hits == before + 1
    return [product.why for product in state.products[1:]]


def test_a_size_that_decides_a_branch():
    def f(x):
        if x.shape[1] > 12:
            return x + 1
        return x * 2

    line = f.__code__.co_firstlineno + 1
    told = f"x.shape[1] was 12, is 13: x.shape[1] <= 12 holds no longer (asked at test_missed.py:{line})"
    assert reasons(f, (torch.ones(3, 12),), (torch.ones(3, 13),)) == [told]


def test_of_two_sizes_the_one_that_changed_is_told():
    def f(x, y):
        if x.shape[0] <= y.shape[0]:
            return x.sum() + 1
        return x.sum() * 2

    (told,) = reasons(f, (torch.ones(3), torch.ones(5)), (torch.ones(7), torch.ones(5)))
    assert told.startswith("x.shape[0] was 3, is 7: x.shape[0] <= y.shape[0] holds no longer (asked at ")


def test_a_size_that_broadcasts():
    (told,) = reasons(lambda x, y: x + y, (torch.ones(3, 4), torch.ones(3, 4)), (torch.ones(5, 4), torch.ones(1, 4)))
    assert told.startswith("x.shape[0] was 3, is 5, y.shape[0] was 3, is 1: x.shape[0] == y.shape[0] holds no longer")


def test_numbers_and_what_is_computed_of_them():
    def f(x, k, rate):
        if k * 2 > 7:
            return x * k
        if rate * 2.0 > 1.0:
            return x * rate
        return x + k

    x = torch.ones(3)
    first, second = reasons(f, (x, 1, 0.25), (x, 1, 0.75), (x, 5, 0.75))
    assert "rate was 0.25, is 0.75" in first
    assert second.startswith("k was 1, is 5: 2*k <= 7 holds no longer (asked at test_missed.py:")


def test_parts_of_a_module_and_a_new_attribute():
    class Net(torch.nn.Module):
        scale = 2.0

        def __init__(self):
            super().__init__()
            self.layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout())

        def forward(self, x):
            return self.layers(x) * self.scale

    net, x = Net(), torch.ones(2, 4)
    compiled = framefuse.compile(net)
    compiled(x)
    net.eval()
    compiled(x)
    net.scale = 3.0
    compiled(x)
    first, second = [product.why for product in compiled_function(compiled).products[1:]]
    assert first.startswith("Net.layers[1].training was True, is False (asked at test_missed.py:")
    assert second.startswith("Net.scale was absent, is 3.0 (asked at test_missed.py:")
    assert torch.equal(compiled(x), net(x)) and compiled_function(compiled).dispatch.hits


def test_what_stands_behind_a_break_has_the_programs_names():
    def scaled(x, limits):
        total = 0
        add = lambda: total + x.sum() * 0  # so that total is kept in a cell
        total = limits[1]
        if x.sum() > 3:
            return x * 2
        return x + add() if total > 5 else x - add()

    small, large = torch.ones(3), torch.ones(4)
    told = reasons(scaled, (small, (1, 4)), (large, (1, 4)), (small, (1, 9)))
    assert any("the branch was False, is True" in (why or "") for why in told), told
    assert any("was 4, is 9" in (why or "") and "total" in why and "args" not in why for why in told), told


def test_the_variable_of_a_function_that_came_as_an_argument():
    def times(k):
        return lambda x: x * k

    (told,) = reasons(lambda x, g: g(x) + 1, (torch.ones(3), times(2)), (torch.ones(3), times(3)))
    assert told.startswith("g's k was 2, is 3 (asked at test_missed.py:")
