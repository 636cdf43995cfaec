"""Recipes of results become templates or rebuilds that keep types, identity and the order of effects."""

import collections
import dataclasses
import types
from typing import NamedTuple

import torch

from framefuse.ir.facts import Source
from framefuse.ir.graph import Arg
from framefuse.ir.numbers import Real, Symbol
from framefuse.ir.trace import Build, Effect, Ref
from framefuse.runtime.templates import argument_template, result_template


def leaf(value):
    """Stands for the assembler: names the kind of leaf."""
    return ("leaf", value)


def rebuilt(result, leaves, effects=()):
    """What the Python callable of a template makes when its leaves have these values, by recipe leaf."""
    template = result_template(result, effects, leaf, plain=False)
    assert template[0] == "build"
    return template[1](*(leaves[part[1]] for part in template[2:]))


class Point(NamedTuple):
    x: object
    y: object


@dataclasses.dataclass
class Record:
    value: object
    other: object = None


class Named(collections.OrderedDict):
    """An ordered dict with attributes, as transformers' outputs are."""


def test_plain_results_need_no_python_code():
    recipe = Build("tuple", parts=(Ref(0), Build("dict", parts=(("a", Ref(1)), ("b", 3)))))
    expected = ("tuple", leaf(Ref(0)), ("dict", (("const", "a"), leaf(Ref(1))), (("const", "b"), ("const", 3))))
    assert result_template(recipe, (), leaf) == expected
    assert result_template(Ref(4), (), leaf) == leaf(Ref(4))
    assert result_template(None, (), leaf) == ("const", None)


def test_instances_and_kinds_of_dicts_need_no_python_code():
    base = Build("dict", parts=(("logits", Ref(0)),))
    named = Build("object", Named, (("logits", Ref(0)),), base)
    entry = (("const", "logits"), leaf(Ref(0)))
    assert result_template(named, (), leaf) == ("object", Named, collections.OrderedDict, (entry,), (entry,))
    point = Build("namedtuple", Point, (Ref(0), Build("namedtuple", torch.return_types.max, (1, Ref(1)))))
    kind = ("namedtuple", torch.return_types.max, torch.return_types.max, ("const", 1), leaf(Ref(1)))
    assert result_template(point, (), leaf) == ("namedtuple", Point, tuple, leaf(Ref(0)), kind)
    pair = Build("tuple", parts=(Build("object", Record, (("value", named),)), 3))
    assert result_template(pair, (), leaf)[1][:4] == ("object", Record, object, ())
    shared = Build("object", Record, (("value", 1), ("other", Build("same", 4))), number=4)
    error = Build("object", KeyError, (("args", Build("tuple")),))
    with_state = Build("namedtuple", Point, (Ref(0), 1), Build("dict", parts=(("more", 2),)))
    for recipe in (shared, error, with_state, Build("object", collections.deque, (), Build("list"))):
        assert result_template(recipe, (), leaf)[0] == "build"


def test_objects_are_rebuilt_with_their_class():
    leaves = {Ref(0): "a", Ref(1): "b"}
    assert rebuilt(Build("namedtuple", Point, (Ref(0), Ref(1))), leaves) == Point("a", "b")
    assert rebuilt(Build("object", Record, (("value", Ref(0)), ("other", 2))), leaves) == Record("a", 2)
    base = Build("dict", parts=(("logits", Ref(0)),))
    named = rebuilt(Build("object", Named, (("logits", Ref(0)),), base), leaves)
    assert type(named) is Named
    assert (dict(named), named.logits) == ({"logits": "a"}, "a")
    assert rebuilt(Build("namedtuple", torch.Size, (2, 3), number=0), {}) == torch.Size((2, 3))
    found = rebuilt(Build("namedtuple", torch.return_types.max, (Ref(0), Ref(1))), leaves)
    assert (found.values, found.indices) == ("a", "b")


def test_identity_and_cycles_are_kept():
    shared = Build("list", parts=(Ref(0),), number=1)
    first, second = rebuilt(Build("tuple", parts=(shared, Build("same", 1))), {Ref(0): "a"})
    assert first is second
    cycle = rebuilt(Build("list", parts=(Build("same", 1),), number=1), {})
    assert cycle[0] is cycle


def test_effects_come_in_program_order_and_share_objects_with_the_result():
    holder, log = types.SimpleNamespace(n=1), []
    target, logged = Source("object", key=holder), Source("object", key=log)
    made = Build("list", parts=(Ref(0),), number=7)
    effects = (
        Effect("call", logged, "append", Build("tuple", parts=("first",)), None),
        Effect("attr", target, "items", made, None),
        Effect("attr", target, "n", Symbol("n0").expr, None),
        Effect("delattr", target, "n", None, None),
        Effect("call", logged, "append", Build("tuple", parts=(Real("symbol", ("f0",)),)), None),
    )
    values = {target: holder, logged: log, Ref(0): "a", Symbol("n0").expr: 5, Real("symbol", ("f0",)): 0.5}
    result = rebuilt(Build("same", 7), values, effects)
    assert result is holder.items
    assert not hasattr(holder, "n")
    assert log == ["first", 0.5]


def test_arguments_of_library_calls():
    size = Symbol("s0").expr
    assert argument_template((1, 2), leaf) == ("const", (1, 2))
    assert argument_template([Arg(0), 2], leaf) == ("list", leaf(Arg(0)), ("const", 2))
    assert argument_template(slice(None, size), leaf) == ("slice", ("const", None), leaf(size), ("const", None))
    assert argument_template({"a": size}, leaf) == ("dict", (("const", "a"), leaf(size)))
