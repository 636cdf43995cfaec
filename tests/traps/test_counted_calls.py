"""Programs that count how often their code runs: methods, hooks, caches and finalizers run as often as under eager."""

from __future__ import annotations

import collections
import functools
import sys
import types
import weakref
from typing import Any

import pytest
import torch
from tests.traps.trap import Table, Trap, hold, outcome
from torch import nn

import framefuse

TABLE = Table()
trap = TABLE.trap

# A special method, what it gives, and expressions that ask for it.
METHODS: dict[str, tuple[Any, str]] = {
    "__getattr__": (lambda self, name: name, "k.one, getattr(k, 'two'), hasattr(k, 'three')"),
    "__eq__": (lambda self, other: other == 2, "k == 1, 1 == k, k in [1, 2], [k] == [1], (k,) == (2,), [1].count(k)"),
    "__hash__": (lambda self: 7, "hash(k), len({k}), {k: 1}[k], k in {1, 2}"),
    "__bool__": (lambda self: True, "bool(k), not k, 1 if k else 2, any([k]), all([k]), [*filter(None, [k])] == []"),
    "__len__": (lambda self: 2, "len(k), bool(k), 1 if k else 2, any([k])"),
    "__iter__": (
        lambda self: iter([1, 2]),
        "list(k), sum(k), [e for e in k], max(k), dict.fromkeys(k), {*k}, [*k], [*zip(k, k)], 1 in k, 3 in k",
    ),
    "__contains__": (lambda self, other: other == 1, "1 in k, 1 not in k"),
    "__call__": (lambda self, value: value, "k(1), list(map(k, [1, 2])), sorted([2, 1], key=k)"),
    "__str__": (lambda self: "s", "str(k), f'{k}', '%s' % k, '{}'.format(k)"),
    "__repr__": (lambda self: "r", "repr(k), f'{k!r}', str([k]), '%r' % k, f'{[k]}'"),
    "__format__": (lambda self, how: how, "format(k, 'x'), f'{k:y}', '{:z}'.format(k)"),
    "__int__": (lambda self: 2, "int(k)"),
    "__float__": (lambda self: 2.0, "float(k), math.sqrt(k)"),
    "__index__": (lambda self: 2, "[1, 2, 3][k], list(range(k)), [1, 2, 3][:k], bin(k)"),
    "__complex__": (lambda self: 1j, "complex(k)"),
    "__bytes__": (lambda self: b"a", "bytes(k)"),
    "__round__": (lambda self: 1, "round(k)"),
    "__add__": (lambda self, other: 5, "k + 1, sum([1], k)"),
    "__radd__": (lambda self, other: 5, "1 + k, sum([k])"),
    "__lt__": (lambda self, other: False, "k < 1, sorted([k, k])[0] is k, min(k, k) is k, max([k, k]) is k"),
    "__getitem__": (lambda self, key: 1, "k[0], k['a'], k[1:2]"),
    "__reversed__": (lambda self: iter([2, 1]), "list(reversed(k))"),
    "__next__": (lambda self: 1, "next(k), next(k, 3)"),
}


@pytest.mark.parametrize("name", METHODS)
def test_special_methods_run_as_often_as_under_eager(name: str) -> None:
    gives, asked = METHODS[name]
    counts: collections.Counter[str] = collections.Counter()

    def method(self, *args):
        counts[name] += 1
        return gives(self, *args)

    space: dict[str, Any] = {}
    exec(f"import math\ndef ask(x, k): return x * 2, {asked}", space)
    kind = type("Kind", (), {name: method, "__module__": __name__})
    k, ask = kind(), space["ask"]
    compiled = framefuse.compile(ask)
    for call in range(5):
        seen = []
        for function in (ask, compiled):
            counts.clear()
            value = outcome(function, torch.full((2,), float(call)), k)
            seen.append((list(map(repr, value)) if name != "__repr__" else len(value), counts[name]))
        assert seen[0] == seen[1], call


@trap(traces=5, hits=4)
def properties_and_descriptors(compiled):
    counts = collections.Counter()

    class Described:
        def __get__(self, holder, kind):
            counts["get"] += 1
            return 3

        def __set__(self, holder, value):
            counts["set"] += 1

    class Kind:
        described = Described()

        @property
        def moving(self):
            counts["property"] += 1
            return counts["property"]

        @functools.cached_property
        def once(self):
            counts["once"] += 1
            return counts["once"]

        def __setattr__(self, name, value):
            counts["setattr"] += 1
            object.__setattr__(self, name, value)

    kind = Kind()

    @compiled
    def f(x):
        kind.described, kind.plain = 1, 4
        return x * kind.described, kind.moving, kind.once, hasattr(kind, "moving"), getattr(kind, "lacking", 1)

    for call in range(8):
        if call == 5:
            del vars(kind)["once"]
        yield f(torch.ones(2)), dict(counts)


@trap(traces=4, hits=7)
def the_getattr_of_a_module(compiled):
    module = types.ModuleType("dynamic")
    counts = collections.Counter()

    def lacking(name):
        if name == "none":
            raise AttributeError(name)
        counts[name] += 1
        return counts[name]

    module.__getattr__ = lacking

    @compiled
    def f(x):
        return x * module.one, getattr(module, "two"), hasattr(module, "none"), getattr(module, "none", 3)  # noqa: B009

    for call in range(11):
        if call == 5:
            module.one = 10
        if call == 8:
            module.__getattr__ = lambda name: 5
        yield f(torch.ones(1)), dict(counts)


@trap(traces=3, hits=5)
def the_getattr_of_a_class_of_modules(compiled):
    counts = collections.Counter()

    class Lazy(types.ModuleType):
        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            counts[name] += 1
            return counts[name]

        @property
        def described(self):
            counts["described"] += 1
            return 2

    module = Lazy("lazy")
    f = compiled(lambda x: (x * module.one, module.described))
    for call in range(8):
        if call == 5:
            module.one = 3
        yield f(torch.ones(1)), dict(counts)


@trap(traces=2, hits=3)
def an_import_from_a_module_with_getattr(compiled):
    module = types.ModuleType("framefuse_dynamic")
    counts = collections.Counter()

    def lacking(name):
        if name.startswith("__"):
            raise AttributeError(name)
        counts[name] += 1
        return counts[name]

    module.__getattr__ = lacking
    sys.modules["framefuse_dynamic"] = module

    @compiled
    def f(x):
        from framefuse_dynamic import factor

        return x * factor

    for _ in range(5):
        yield f(torch.ones(1)), dict(counts)


# Caches ---------------------------------------------------------------------------------------------------------------


@trap(traces=2, hits=4)
def a_cache_of_tensors_that_is_cleared(compiled):
    made = collections.Counter()

    @functools.cache
    def mask(scale):
        made[scale] += 1
        return torch.full((2,), float(made[scale] * scale))

    f = compiled(lambda x: x * mask(2) + mask(3))
    for call in range(6):
        if call == 3:
            mask.cache_clear()
        yield f(torch.ones(2)), dict(made), tuple(mask.cache_info())


@trap(traces=5, hits=2)
def a_cache_that_forgets(compiled):
    made = collections.Counter()

    @functools.lru_cache(maxsize=1)
    def mask(scale):
        made[scale] += 1
        return torch.full((2,), float(made[scale] * scale))

    both, one = compiled(lambda x: x * mask(2) + mask(3)), compiled(lambda x: x * mask(3))
    for function in (both, one, both, one, one, both, one):
        yield function(torch.ones(2)), dict(made), mask.cache_info().misses


@trap(traces=12, hits=7)
def a_cache_that_forgets_and_whose_function_counts(compiled):
    made = [0]

    @functools.lru_cache(maxsize=1)
    def mask(scale):
        made[0] += 1
        return torch.full((2,), float(scale))

    f = compiled(lambda x, scale: (x * mask(scale), made[0]))
    for call in (0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 8, 8, 8, 8, 8, 9, 9, 9):
        yield f(torch.ones(2), call % 2), mask.cache_info().misses


@trap(traces=7, hits=5)
def a_cached_function_that_writes_what_was_read_before(compiled):
    made = [0]

    @functools.lru_cache(maxsize=1)
    def mask(scale):
        made[0] += 1
        return torch.full((2,), float(scale))

    f = compiled(lambda x, scale: (x * made[0], x * mask(scale), made[0]))
    for scale in (0, 0, 0, 1, 1, 1, 0, 1, 0, 0, 0, 0, 1, 1):
        yield f(torch.ones(2), scale), mask.cache_info().misses


@trap(traces=2, hits=3)
def a_cache_of_a_model_that_is_asked_for_a_tensor_of_the_call(compiled):
    def positions(shape, mask=None):
        return torch.ones(shape) if mask is None else mask.cumsum(0)

    positions.__module__ = "transformers.models.detr.modeling_detr"
    cached = functools.lru_cache(maxsize=1)(positions)
    f = compiled(lambda x: x * cached(x.shape, mask=x > 0) + 1)
    for call in range(5):
        yield f(torch.arange(3.0) - call)
    if hasattr(f, "__framefuse__"):
        assert not framefuse.explain(f).breaks


@trap(traces=7, hits=4)
def a_cache_of_a_model_that_is_asked_for_a_tensor_of_the_caller(compiled):
    def positions(mask):
        return mask.cumsum(0)

    positions.__module__ = "transformers.models.detr.modeling_detr"
    cached = functools.lru_cache(maxsize=1)(positions)
    f = compiled(lambda x, mask: x * cached(mask))
    mask = torch.ones(3)
    for call in range(6):
        mask += 1
        yield f(torch.arange(3.0) - call, mask), cached.cache_info().misses


@trap(traces=2, hits=3)
def a_cache_of_numbers_that_is_cleared(compiled):
    made = collections.Counter()

    @functools.lru_cache(maxsize=None)  # noqa: UP033
    def number(scale):
        made[scale] += 1
        return made[scale] * scale

    f = compiled(lambda x: x * number(2) + number(3))
    for call in range(6):
        if call == 3:
            number.cache_clear()
        yield f(torch.ones(2)), dict(made)


@trap(traces=4, hits=4)
def a_cached_method(compiled):
    made = collections.Counter()

    class Masked(nn.Module):
        @functools.lru_cache  # noqa: B019
        def mask(self, size):
            made[size] += 1
            return torch.full((size,), float(made[size]))

        def forward(self, x):
            return x * self.mask(x.shape[0])

    f = compiled(Masked())
    for clear in (False, True):
        if clear:
            Masked.mask.cache_clear()
        for size in (2, 2, 3, 3, 2):
            yield f(torch.ones(size)), dict(made)


# The end of objects ---------------------------------------------------------------------------------------------------


def _ended(compiled, make):
    """Calls of a function that ``make`` writes around a class that tells of its instances."""
    log = []

    class Told:
        def __init__(self):
            log.append("+")

        def __del__(self):
            log.append("-")

    f = compiled(make(Told, log))
    for _ in range(5):
        log.clear()
        value = f(torch.ones(2))
        yield value, "".join(log)


@trap(traces=1, hits=0)
def an_object_that_is_deleted(compiled):
    def make(told, log):
        def f(x):
            held = told()
            y = x * 2
            del held
            log.append("a")
            return y

        return f

    yield from _ended(compiled, make)


@trap(traces=1, hits=0)
def objects_that_nobody_holds(compiled):
    def make(told, log):
        def f(x):
            told()
            held = [told() for _ in range(2)]
            log.append("a")
            held.clear()
            log.append("b")
            return x * len(held)

        return f

    yield from _ended(compiled, make)


@trap(traces=1, hits=0)
def callbacks_of_weak_references(compiled):
    log = []

    class Plain:
        pass

    @compiled
    def f(x):
        one, other = Plain(), Plain()
        weakref.finalize(one, log.append, "f")
        there = weakref.ref(other, lambda _: log.append("w"))
        y = x * 2
        del one, other
        log.append("a")
        return y, there() is None

    for _ in range(5):
        log.clear()
        yield f(torch.ones(2)), "".join(log)


@trap(traces=1, hits=0)
def an_object_that_another_one_replaces(compiled):
    log = []

    class Told:
        def __init__(self, number):
            self.number = number

        def __del__(self):
            log.append(str(self.number))

    held = types.SimpleNamespace(told=Told(-1))

    @compiled
    def f(x, told):
        held.told = told
        log.append("w")
        return x * 2

    for number in range(5):
        log.clear()
        yield f(torch.ones(2), Told(number)), "".join(log)


# Hooks ----------------------------------------------------------------------------------------------------------------

HOOKS = {
    "always": lambda model, log: [model.register_forward_hook(lambda m, a, o: log.append(o is None), always_call=True)],
    "keywords": lambda model, log: [
        model.register_forward_hook(lambda m, a, k, o: log.append((o, len(k))[1]), always_call=True, with_kwargs=True)
    ],
    "inner": lambda model, log: [
        model.inner.register_forward_hook(lambda m, a, o: log.append(o is None), always_call=True),
        model.register_forward_hook(lambda m, a, o: log.append("outer")),
    ],
    "several": lambda model, log: [
        model.register_forward_hook(lambda m, a, o: log.append(1), always_call=True),
        model.register_forward_hook(lambda m, a, o: log.append(2)),
        model.register_forward_hook(lambda m, a, o: log.append(3), always_call=True),
    ],
    "raising": lambda model, log: [
        model.register_forward_hook(lambda m, a, o: log.append(1 / 0 if o is None else 1), always_call=True)
    ],
    "before": lambda model, log: [
        model.register_forward_pre_hook(lambda m, a: (log.append("p"), (a[0] * 2,))[1]),
        model.register_forward_hook(lambda m, a, o: o + 1),
    ],
    "global": lambda model, log: [
        nn.modules.module.register_module_forward_hook(lambda m, a, o: log.append(type(m).__name__), always_call=True),
        nn.modules.module.register_module_forward_pre_hook(lambda m, a: log.append("p")),
    ],
    "backward": lambda model, log: [
        model.register_full_backward_hook(lambda m, i, o: log.append("b")),
        model.register_full_backward_pre_hook(lambda m, o: log.append("bp")),
    ],
}


class Refusing(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(2, 2)

    def forward(self, x):
        y = self.inner(x)
        if x.shape[0] > 2:
            raise ValueError("more than two rows")
        return y * 2


@pytest.mark.parametrize("kind", HOOKS)
def test_hooks_run_as_often_as_under_eager(kind: str) -> None:
    seen = []
    for compile_ in (lambda model: model, framefuse.compile):
        torch.manual_seed(3)
        model, log, found = Refusing(), [], []
        call = compile_(model)
        for hooked in (False, True, False, True):
            handles = HOOKS[kind](model, log) if hooked else []
            for rows, grad in ((1, False), (3, False), (3, False), (2, False), (1, True), (3, True), (1, True)):
                x = torch.ones(rows, 2, requires_grad=grad)
                y = outcome(call, x)
                if grad and isinstance(y, torch.Tensor):
                    y.sum().backward()
                found.append((y.tolist() if isinstance(y, torch.Tensor) else y, list(log)))
            for handle in handles:
                handle.remove()
        seen.append(found)
    assert seen[0] == seen[1]


@TABLE.parametrize()
def test_counts_are_eagers(trap: Trap) -> None:
    hold(trap)
