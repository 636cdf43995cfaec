"""Programs that find out which of their objects are one: called with two and then with one, weights tied and untied."""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import itertools
import operator
import weakref
from typing import Any

import pytest
import torch
from tests.traps.trap import Table, Trap, hold
from torch import nn

import framefuse

TABLE = Table()
trap = TABLE.trap


class Plain:
    """Equal only to itself."""


@dataclasses.dataclass(eq=False)
class Record:
    """A dataclass that is compared as a plain object."""

    value: int = 1


def _function():
    return lambda x: x


KINDS = {
    "tensor": lambda: torch.ones(2),
    "parameter": lambda: nn.Parameter(torch.ones(2)),
    "module": lambda: nn.Linear(1, 1),
    "plain": Plain,
    "record": Record,
    "function": _function,
    "tuple": lambda: (Plain(), 1),
}
QUESTIONS = {}


def question(function):
    QUESTIONS[function.__name__] = function
    return function


# Sets and dicts -------------------------------------------------------------------------------------------------------


@question
def members_of_sets(a, b):
    grown = {a}
    grown.add(b)
    updated = set()
    updated.update([a, b])
    made = set((a, b)), frozenset([a, b]), {each for each in (a, b) if each is not None}, grown, updated  # noqa: C405
    return len({a, b}), [len(each) for each in made]


@question
def algebra_of_sets(a, b):
    one, other = {a}, {b}
    grown = set(one)
    grown |= other
    found = [len(each) for each in (one | other, one & other, one - other, one ^ other, one.union([b]), grown)]
    return found, one <= other, one == other, one.issubset([b]), one.isdisjoint(other), a in one, a in frozenset([b])


@question
def entries_of_dicts(a, b):
    shown = {a: 1, b: 2}
    stored: dict[Any, int] = {}
    stored[a] = 1
    stored[b] = 2
    made = {key: place for place, key in enumerate((a, b))}
    paired = dict([(a, 1), (b, 2)]), dict(zip((a, b), (1, 2), strict=True)), dict.fromkeys([a, b])  # noqa: C406
    sizes = [len(each) for each in (shown, stored, made, *paired)]
    return shown[a], stored[a], made[a], sizes, stored.get(b), b in {a: 1}


@question
def methods_of_dicts(a, b):
    held: dict[Any, int] = {}
    found = [held.setdefault(a, 1), held.setdefault(b, 2), held.pop(a, 7), held.pop(b, 8)]
    grown = {a: 1}
    grown.update({b: 2})
    merged = {a: 1, b: 2}
    return found, grown[a], merged[a], ({a: 1} | {b: 2})[a], {a: 1}.keys() == {b: 1}.keys(), {a: 1}.get(b, 5)


@question
def dicts_of_the_library(a, b):
    counts, numbers = collections.Counter([a, b]), collections.defaultdict(int)
    numbers[a] += 1
    numbers[b] += 1
    ordered = collections.OrderedDict([(a, 1), (b, 2)])
    ordered.move_to_end(a)
    return len(counts), counts[a], numbers[a], len(ordered), ordered[a]


@question
def tuples_as_keys(a, b):
    return len({(a, 1), (b, 1)}), {(a, 2): 1, (b, 2): 2}[(a, 2)]


@question
def a_dict_that_leaves(a, b):
    return {a: 1, b: 2}


@question
def weak_containers(a, b):
    if type(a) in (tuple, torch.Tensor, nn.Parameter):
        return None
    held, members = weakref.WeakKeyDictionary(), weakref.WeakSet()
    held[a], held[b] = 1, 2
    members.add(a)
    members.add(b)
    return held[a], len(held), a in held, len(members), b in members


@question
def weak_references(a, b):
    if type(a) is tuple:
        return None
    return weakref.ref(a)() is b, weakref.ref(a)() is a


# Sequences and comparisons --------------------------------------------------------------------------------------------


@question
def comparisons(a, b):
    if isinstance(a, torch.Tensor):
        return None
    return a == b, a != b, operator.eq(a, b), [a] == [b], (a, 1) == (b, 1), {1: a} == {1: b}, a is b, operator.is_(a, b)


@question
def places_in_sequences(a, b):
    if isinstance(a, torch.Tensor):
        return None
    held = [b, 3]
    if a in held:
        held.remove(a)
    found = a in (b,), a in [b], [b].count(a), (b, 1).count(a), operator.contains([b], a), operator.countOf([b], a)
    return found, len(held), [1, a, b].index(b), len([key for key, _ in itertools.groupby([a, b])])


@question
def a_value_that_is_matched(a, b):
    if isinstance(a, torch.Tensor):
        return None
    space = Record(b)
    match a:
        case space.value:
            return "same"
        case _:
            return "other"


@question
def bound_methods(a, b):
    if not isinstance(a, nn.Module):
        return None
    return len({a.forward, b.forward}), a.forward == b.forward, a.forward in [b.forward]


# Copies and modules ---------------------------------------------------------------------------------------------------


@question
def copies(a, b):
    if not isinstance(a, (Plain, Record)):
        return None
    one, other = copy.deepcopy([a, b])
    (left,), (right,) = copy.deepcopy([[a], [b]])
    return one is other, left is right, len(set(copy.copy([a, b])))


@question
def parts_of_modules(a, b):
    if not isinstance(a, nn.Module):
        return None
    held = nn.ModuleList([a, b])
    parts = held.parameters(), held.modules(), held.named_modules(), held.children(), held.state_dict()
    return [len(list(each)) for each in parts], len(list(held.named_parameters(remove_duplicate=False)))


# Numbers --------------------------------------------------------------------------------------------------------------


@question
def ids(a, b):
    memo = {id(a): 1, id(b): 2}
    return id(a), id(b), id(a) == id(b), len({id(a), id(b)}), memo[id(a)], id(b) in {id(a)}, memo


@question
def hashes(a, b):
    return hash(a), hash(a) == hash(b), hash((a, 1)), len({hash(a), hash(b)})


@question
def orders_by_id(a, b):
    return sorted([a, b], key=id)[0] is a, min(a, b, key=id) is a


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", QUESTIONS)
def test_two_objects_and_then_one(name: str, kind: str) -> None:
    make, ask = KINDS[kind], QUESTIONS[name]
    compiled = framefuse.compile(lambda x, a, b: (x * 2, ask(a, b)))
    x, one, other = torch.ones(2), make(), make()
    again = (one, other), (one, one), (one, one), (one, other), (other, one), (other, other)
    for a, b in ((one, other), *again, *again, *again, (make(), make())):
        doubled, found = compiled(x, a, b)
        assert torch.equal(doubled, x * 2) and found == ask(a, b)
    assert compiled.hits >= 1


# Sets are walked by address -------------------------------------------------------------------------------------------


def _one_by_one(held):
    found = []
    for each in held:
        found.append(each)
    return found


@pytest.mark.parametrize("kind", ["tensor", "parameter"])
@pytest.mark.parametrize("walk", [list, _one_by_one, lambda held: [next(iter(held))]])
def test_a_set_is_walked_in_the_order_of_these_objects(walk: Any, kind: str) -> None:
    compiled = framefuse.compile(lambda x, a, b: (x * 2, walk({a, b})))
    x, kept = torch.ones(2), []
    for _ in range(12):
        a, b = KINDS[kind](), KINDS[kind]()
        kept += [a, b]
        if id(a) % 8 != id(b) % 8:  # else the order is that in which they came
            assert list(map(id, compiled(x, a, b)[1])) == list(map(id, walk({a, b})))


# What lasts -----------------------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """Asks for all its parts; a loss of all parameters."""

    def __init__(self):
        super().__init__()
        self.one, self.other = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.register_buffer("left", torch.ones(2))
        self.register_buffer("right", torch.ones(2))
        self.row = nn.ParameterList([torch.ones(2), torch.ones(2)])
        self.named = nn.ParameterDict({"u": torch.ones(2), "v": torch.ones(2)})

    def forward(self, x):
        loss = self.other(self.one(x)).sum() + sum((part**2).sum() for part in self.parameters())
        parts = self.buffers(), self.modules(), self.named_parameters(), self.children(), set(self.row)
        seen = {id(part) for part in self.parameters()}
        return loss, [len(list(part)) for part in parts], len(seen), self.one.weight is self.other.weight


@trap(traces=7, hits=12)
def parts_of_a_module_tied_and_untied(compiled):
    model = Tied()
    with torch.no_grad():
        for part in model.parameters():
            part.copy_(torch.arange(float(part.numel())).view_as(part))
    f = compiled(model)
    weight, module, buffer = model.other.weight, model.other, model.right

    def tie(holder, name, part):
        setattr(holder, name, part)
        return [f(torch.full((1, 2), float(scale))) for scale in range(3)]

    yield tie(model, "right", buffer)
    yield tie(model.other, "weight", model.one.weight)
    yield tie(model.other, "weight", weight)
    yield tie(model, "right", model.left)
    yield tie(model, "right", buffer)
    yield tie(model, "other", model.one)
    yield tie(model, "other", module)
    model.row[1] = model.row[0]
    yield tie(model.named, "u", model.named["v"])
    yield tie(model.other, "weight", nn.Parameter(torch.ones(2, 2)))


@trap(traces=3, hits=8)
def tensors_of_a_list_that_become_one(compiled):
    held = [torch.full((2,), float(number)) for number in range(4)]

    @compiled
    def f(x):
        return x + len(set(held)), len({id(part) for part in held}), sum(part.sum() for part in dict.fromkeys(held))

    for first, second in ((0, 0), (1, 0), (1, None), (3, 2)):
        held[first] = torch.ones(2) if second is None else held[second]
        for scale in range(3):
            yield f(torch.full((2,), float(scale)))


@trap(traces=4, hits=4)
def a_step_of_weights_that_are_tied_later(compiled):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @compiled
    def step(x):
        optimizer.zero_grad()
        loss = (model(x) ** 2).sum()
        loss.backward()
        optimizer.step()
        return loss

    for weight in (model[1].weight, model[0].weight):
        model[1].weight = weight
        for scale in range(4):
            yield step(torch.full((1, 2), scale + 1.0)), [part.detach().clone() for part in model.parameters()]


@trap(traces=2, hits=4)
def functions_with_one_code_as_keys(compiled):
    one, other = _function(), _function()
    names = {one: 1.0, other: 2.0}
    f = compiled(lambda x, key: (x * names[key], key in names, names.get(key)))
    for key in (one, one, other, other, one, other):
        yield f(torch.ones(2), key)


@trap(traces=4, hits=6)
def a_chain_that_closes_on_itself(compiled):
    class Node:
        next: Any = None

    first, second, third = Node(), Node(), Node()

    @compiled
    def f(x, node):
        seen, count = set(), 0
        while node is not None and node not in seen:
            seen.add(node)
            node, count = node.next, count + 1
        return x * count

    for links in ((second, first, None), (second, second, None), (second, None, None), (second, third, first)):
        first.next, second.next, third.next = links
        for _ in range(3):
            yield f(torch.ones(2), first)


@trap(traces=2, hits=3)
def a_copy_that_may_be_its_operand(compiled):
    f = compiled(lambda x: (len({x, x.contiguous()}), x * 2))
    square = torch.ones(3, 3)
    for x in (square, square, square.t(), square.t(), square, torch.ones(1, 3).t()):
        yield f(x)


# The user's own comparisons -------------------------------------------------------------------------------------------


@trap(traces=3, hits=1)
def hashes_and_comparisons_that_count(compiled):
    counts = collections.Counter()

    class Key:
        def __init__(self, value):
            self.value = value

        def __hash__(self):
            counts["hash"] += 1
            return hash(self.value)

        def __eq__(self, other):
            counts["eq"] += 1
            return self.value == other.value

        def __lt__(self, other):
            counts["lt"] += 1
            return self.value < other.value

    one, other = Key(1), Key(2)
    f = compiled(lambda x, a, b: (x * 2, len({a, b}), {a: 1}.get(b), a == b, a in [b], sorted([b, a])[0].value))
    for a, b in ((one, other), (one, one), (one, Key(1))) * 5:
        yield f(torch.ones(2), a, b), dict(counts)


@trap(traces=5, hits=3)
def truth_and_length_that_count(compiled):
    counts = collections.Counter()

    class Sized:
        def __init__(self, value):
            self.value = value

        def __len__(self):
            counts["len"] += 1
            return self.value

    class Judged(Sized):
        def __bool__(self):
            counts["bool"] += 1
            return self.value > 1

    f = compiled(lambda x, each: (x * 2 if each else x * 3, len(each), not each, bool(each), 1 if each and each else 2))
    for each in (Sized(0), Sized(1), Sized(1), Sized(2), Judged(1), Judged(1), Judged(2), Judged(2)):
        yield f(torch.ones(2), each), dict(counts)


@trap(traces=4, hits=2)
def weak_containers_that_change(compiled):
    one, other = Plain(), Plain()
    held, members = weakref.WeakKeyDictionary({one: 1}), weakref.WeakSet([one])

    @compiled
    def f(x, key):
        return x * 2, key in held, held.get(key), len(held), bool(held), key in members, len(members)

    for grow in (False, True):
        if grow:
            held[other] = 5
            members.add(other)
        for key in (one, one, other, other, one):
            yield f(torch.ones(2), key)


@trap(traces=1, hits=3)
def a_cache_by_identity(compiled):
    count = itertools.count(1)
    number_of = functools.lru_cache(lambda key: next(count))
    f = compiled(lambda x, key: x * number_of(key))
    one, other = Plain(), Plain()
    for key in (one, one, other, other, one):
        yield f(torch.ones(2), key)


@TABLE.parametrize()
def test_identity_is_eagers(trap: Trap) -> None:
    hold(trap)
