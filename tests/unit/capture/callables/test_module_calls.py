"""Modules without hooks are entered at once; hooks, overrides and breaks inside them behave as in eager."""

import ast
import re

import pytest
import torch
from torch import nn
from torch.nn.modules import module as modules

import framefuse
from framefuse.capture.callables.module_calls import shape_of_calls
from framefuse.capture.facts.contents import Contents
from framefuse.capture.facts.sources import Sources
from framefuse.capture.record import record


class Leaf(nn.Module):
    def __init__(self, scale=2.0):
        super().__init__()
        self.scale = scale

    def forward(self, x, *, shift=0.0):
        return x * self.scale + shift


class Tree(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = Leaf(), Leaf(3.0), Leaf(4.0)

    def forward(self, x):
        return self.third(self.second(self.first(x), shift=1.0))


def agree(module, fast, hits):
    state = fast.__framefuse__
    for size in (3, 4):
        x = torch.randn(size)
        torch.testing.assert_close(fast(x), module(x))
    assert state.dispatch.hits == hits, state.reasons


def test_this_torch_is_known():
    assert shape_of_calls() is not None


def test_hooks_that_come_and_go():
    module = Tree()
    fast = framefuse.compile(module)
    agree(module, fast, 1)
    handle = module.second.register_forward_hook(lambda module, args, out: out * 10)
    agree(module, fast, 2)
    handle.remove()
    agree(module, fast, 4)
    handle = modules.register_module_forward_hook(lambda module, args, out: out - 1)
    try:
        agree(module, fast, 5)
    finally:
        handle.remove()
    agree(module, fast, 7)


def test_a_hook_added_in_the_middle_of_a_call():
    class Adds(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = Leaf(), Leaf(3.0)

        def forward(self, x):
            y = self.first(x)
            if not self.second._forward_hooks:
                self.second.register_forward_hook(lambda module, args, out: out * 10)
            return self.second(y)

    ours, theirs = Adds(), Adds()
    fast = framefuse.compile(ours)
    for _ in range(3):
        x = torch.randn(3)
        torch.testing.assert_close(fast(x), theirs(x))


def test_forward_and_call_replaced():
    module = Tree()
    fast = framefuse.compile(module)
    agree(module, fast, 1)
    module.second.forward = lambda x, shift: x - shift
    agree(module, fast, 2)
    del module.second.forward
    agree(module, fast, 4)

    class Loud(Leaf):
        def __call__(self, *args, **kwargs):
            return super().__call__(*args, **kwargs) + 100

    module.third = Loud()
    agree(module, fast, 5)


def test_an_error_inside_has_eagers_text_and_frames():
    module = Tree()
    module.third.scale = "a"
    fast = framefuse.compile(module)

    def seen(function):
        with pytest.raises(TypeError) as caught:
            function(torch.ones(2))
        names, step = [], caught.value.__traceback__
        while step is not None:
            names.append(step.tb_frame.f_code.co_name)
            step = step.tb_next
        return str(caught.value), [name for name in names if name in ("forward", "seen")]

    assert seen(fast) == seen(module)


def test_a_break_inside_and_what_forward_returns_to():
    class Reads(Leaf):
        def forward(self, x, *, shift=0.0):
            return x * self.scale + (shift if float(x.sum()) > 0 else -5.0)

    module = Tree()
    module.second = Reads()
    fast = framefuse.compile(module)
    for sign in (1, 1, -1, -1, 1):
        x = sign * torch.rand(4)
        torch.testing.assert_close(fast(x), module(x))


def test_facts_stated_at_once_are_those_stated_one_by_one(monkeypatch):
    class Shares(nn.Module):
        def __init__(self):
            super().__init__()
            self.tree, self.again = Tree(), nn.ReLU()

        def forward(self, x):
            return self.again(self.tree(self.again(x)))

    module, x = Shares(), torch.randn(3)

    def facts():
        trace = record(module, (x,), {}, owner=module).trace
        return [(str(fact), fact.kind, str(fact.line)) for fact in trace.assumptions.facts]

    def one_by_one(text, kind, line):
        """The facts for which one stands; the dicts of the hooks are held to their identity where it does not."""
        found = re.fullmatch(r"(\S+) has no (\(.*\)) of its own, and nothing in (\(.*\))", text)
        if found is None:
            return [(text, kind, line)] if "_hooks is " not in text else []
        absent, empty = map(ast.literal_eval, found.groups()[1:])
        return [
            *((f"{name!r} not in {found[1]}.__dict__", "absent", line) for name in absent),
            *((f"len({found[1]}.{name}) == 0", "length", line) for name in empty),
        ]

    bare = facts()
    assert sum(kind == "bare" for _, kind, _ in bare) >= 4
    monkeypatch.setattr(Contents, "guard_bare", lambda self, holder, absent, empty: False)
    together = facts()
    stated = [each for fact in bare for each in one_by_one(*fact)]
    assert sorted(stated) == sorted(each for fact in together for each in one_by_one(*fact))
    monkeypatch.setattr(Contents, "guard_empty_dicts", lambda self, holder, names: 0)
    monkeypatch.setattr(
        Sources, "guard_absent_names", lambda self, holder, names: [self.guard_absent(holder, name) for name in names]
    )
    assert facts() == together
    assert sum(kind == "length" for _, kind, _ in together) >= 4 * 5


def test_a_keyword_that_names_the_module():
    class Named(nn.Module):
        def forward(self, x, **extra):
            return x + 1

    inner = Named()

    def calls(x):
        return inner(inner(x), self=1)

    with pytest.raises(TypeError) as eager:
        calls(torch.ones(2))
    with pytest.raises(TypeError) as ours:
        framefuse.compile(calls)(torch.ones(2))
    assert str(ours.value) == str(eager.value)


class Lazy(nn.modules.lazy.LazyModuleMixin, nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.UninitializedParameter()

    def initialize_parameters(self, x):
        self.scale.materialize(x.shape)
        nn.init.constant_(self.scale, 2.0)

    def forward(self, x):
        return x * self.scale


def test_a_lazy_module_made_inside():
    compiled = framefuse.compile(lambda x: Lazy()(x + 1) + 1)
    for size in (3, 3, 5, 5):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), (x + 1) * 2 + 1)
