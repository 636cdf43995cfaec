"""What a kept call leaves out of its facts decides all the same."""

import pytest
import torch
from tests.unit.driver.calls.test_calls import first, second
from torch import nn

from framefuse.driver.calls.fewer_facts import fewer
from framefuse.ir.facts import Fact, Source

MODULE, OTHER, TUPLE = nn.Conv1d(1, 1, 1), nn.Conv1d(1, 1, 1), (2, 2.5, "two", None)
HELD = Source("attr", Source("object", None, MODULE), "stride")
ARGUMENT = Source("arg", None, 0)


def elements(place: Source) -> list[Fact]:
    """What a recording that reads a tuple at a place states of it."""
    kinds = ("int", "float", "str")
    read = [Fact(Source("item", place, index), kind, TUPLE[index]) for index, kind in enumerate(kinds)]
    return [Fact(place, "length", 4), *read]


def lacking(module: Source, *names: str) -> list[Fact]:
    return [Fact(Source("dict", module), "absent", name) for name in names]


def test_elements_of_a_tuple_that_is_held_are_left_out():
    held = Fact(Source("attr", Source("object", None, MODULE), "stride"), "is", TUPLE)
    assert fewer([held, *elements(HELD)]) == (held,)


@pytest.mark.parametrize(("place", "kind", "value"), [(ARGUMENT, "is", TUPLE), (HELD, "type", tuple)])
def test_elements_of_other_tuples_stay(place, kind, value):
    facts = [Fact(place, kind, value), *elements(place)]
    assert fewer(facts) == tuple(facts)


def test_names_that_an_object_lacks_join_in_one_fact():
    one, two = Source("object", None, MODULE), Source("object", None, OTHER)
    bare = Fact(one, "bare", (("a", "b"), ("_hooks",)))
    facts = [*lacking(one, "c"), bare, *lacking(one, "a", "d"), *lacking(two, "e")]
    assert fewer(facts) == (Fact(one, "bare", (("a", "b", "c", "d"), ("_hooks",))), *lacking(two, "e"))


class Steps(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.act = nn.Conv1d(2, 2, 3, padding=1), nn.ReLU()

    def forward(self, x):
        return self.act(self.conv(x)) + self.conv.stride[0]


def steps():
    torch.manual_seed(0)
    return Steps().eval()


def strided():
    net = steps()
    net.conv.stride = (2,)
    return net


def with_an_act_of_its_own():
    net = steps()
    object.__setattr__(net, "act", torch.tanh)
    return net


def with_a_forward_of_its_own():
    net = steps()
    net.conv.forward = lambda x: x * 3
    return net


@pytest.mark.parametrize("other", [strided, with_an_act_of_its_own, with_a_forward_of_its_own])
def test_another_content_is_recorded_anew(other, drawer):
    x = (torch.randn(2, 2, 8),)
    with torch.no_grad():
        first(drawer, steps(), x)
        second(drawer, steps, x)
        second(drawer, other, x, found=False)


def test_what_changes_after_a_call_was_found_counts(drawer):
    x = (torch.randn(2, 2, 8),)
    with torch.no_grad():
        first(drawer, steps(), x)
        net = steps()
        fast = drawer.compile(net)
        fast(*x)
        assert drawer.recorded == 0
        net.conv.stride = (2,)
        torch.testing.assert_close(fast(*x), net(*x))
        object.__setattr__(net, "act", torch.tanh)
        torch.testing.assert_close(fast(*x), net(*x))
