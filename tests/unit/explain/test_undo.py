"""What a program reaches is kept and put back: tensors, attributes, containers, variables, arrays, generators."""

import collections
import functools
import random

import numpy
import torch

from framefuse.explain import undo
from framefuse.explain.undo import Undo

told = [1]
count = 3


class Slotted:
    __slots__ = ("held", "__weakref__")

    def __init__(self, held):
        self.held = held


class Plain:
    def __init__(self):
        self.n, self.items, self.slotted = 1, {"a": [1, 2]}, Slotted((1,))


def changing(plain, more):
    free = 5

    def inner():
        nonlocal free
        global count
        free += 1
        count += 1
        told.append(2)
        plain.n += 1
        plain.new = 3
        plain.items["a"].append(3)
        plain.items["b"] = 4
        plain.slotted.held = None
        more["set"].add(9)
        more["deque"].append(7)
        more["ordered"].move_to_end("x")
        more["array"][0] = 5
        more["default"]["y"]
        torch.rand(2, generator=more["generator"])
        random.random()
        return free

    return inner


def test_everything_is_what_it_was_and_the_same_objects():
    plain = Plain()
    more = {
        "set": {1}, "deque": collections.deque([1, 2], maxlen=2), "ordered": collections.OrderedDict(x=1, y=2),
        "array": numpy.zeros(3), "default": collections.defaultdict(list), "generator": torch.Generator(),
    }  # fmt: skip
    change = functools.partial(changing(plain, more))
    items, seed, drawn = plain.items, more["generator"].get_state(), random.getstate()
    kept = Undo([change])
    assert kept.whole
    for _ in range(2):
        assert change() == 6 and count == 4 and told == [1, 2]
        kept.put_back()
        assert (plain.n, plain.items, plain.slotted.held) == (1, {"a": [1, 2]}, (1,)) and not hasattr(plain, "new")
        assert plain.items is items and told == [1] and count == 3
        assert more["set"] == {1} and list(more["deque"]) == [1, 2] and list(more["ordered"]) == ["x", "y"]
        assert not more["array"].any() and not more["default"] and torch.equal(more["generator"].get_state(), seed)
        assert random.getstate() == drawn


def test_tensors_have_their_memory_values_versions_and_gradients():
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.full((3,), 2.0)
    plain, grad, where = torch.arange(3.0), weight.grad, weight.data_ptr()
    kept = Undo([{"w": weight, "p": plain}])
    with torch.no_grad():
        weight.mul_(3)
        weight.grad.add_(1)
        plain.data.add_(1)  # no version tells of it
    weight.data = torch.zeros(3)
    weight.grad = None
    weight.requires_grad_(False)
    kept.put_back()
    assert weight.data_ptr() == where and weight.tolist() == [1, 1, 1] and weight.requires_grad
    assert weight.grad is grad and grad.tolist() == [2, 2, 2] and plain.tolist() == [0, 1, 2]
    assert weight._version == 0 and plain._version == 0
    ((weight * 2).sum()).backward()
    assert weight.grad.tolist() == [4, 4, 4]


def test_too_much_is_not_kept(monkeypatch):
    monkeypatch.setattr(undo, "OBJECTS", 10)
    assert not Undo([[[n] for n in range(20)]]).whole
