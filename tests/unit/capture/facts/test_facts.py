"""A trace is not used when something that the program read has changed, and is used when only other things have."""

import dataclasses
import functools
import math
import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from framefuse import _native
from framefuse.capture.entry import bind
from framefuse.capture.record import record
from framefuse.guards.program import build

SCALE = 2.0


def helper(x: Any, k: float = 2.0) -> Any:
    return x * k


class Box:
    shared = 1.0

    def __init__(self, value: Any) -> None:
        self.value = value

    def method(self, x: Any) -> Any:
        return x * self.value


class Getter:
    def __get__(self, holder: Any, kind: Any = None) -> Any:
        return SCALE


class Holder:
    field = Getter()


@dataclasses.dataclass
class Traced:
    """A trace with its guards, built before anything changes."""

    trace: Any
    guards: Any


def guarded(trace: Any) -> Traced:
    """The guards of a trace; relations over sizes of intermediate values are left to lowering."""
    assumed = trace.assumptions
    bound = {size for given in assumed.inputs for size in given.spec.sizes}
    bound |= {fact.value for fact in assumed.facts if fact.kind in ("integer", "count")}
    kept = tuple(r for r in assumed.relations if (r.left.symbols | r.right.symbols) <= bound)
    return Traced(trace, _native.GuardSet(build(dataclasses.replace(assumed, relations=kept)).program))


def trace_of(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Traced:
    made = record(function, args, kwargs)
    assert made.trace is not None, str(made.reason or repr(made.exception))
    return guarded(made.trace)


def misses(traced: Traced, function: Any, *args: Any, **kwargs: Any) -> str | None:
    """Why the trace may not be used on these arguments."""
    answer = traced.guards.check(tuple(bind(function, args, kwargs)))
    if not isinstance(answer, int):
        return None
    return "state" if answer < 0 else str(traced.guards.program.texts[answer])


def test_other_values_and_sizes_hit() -> None:
    def f(x: Any, n: int, k: float) -> Any:
        return x * n + k

    trace = trace_of(f, torch.randn(3, 4), 3, 0.5)
    assert misses(trace, f, torch.randn(7, 2), 9, -0.0) is None
    assert misses(trace, f, torch.randn(7, 2).double(), 9, 1.0) is not None
    assert misses(trace, f, torch.randn(7), 9, 1.0) is not None
    assert misses(trace, f, torch.randn(7, 2), True, 1.0) is not None
    assert misses(trace, f, torch.randn(7, 2), 2**70, 1.0) is not None
    assert misses(trace, f, torch.randn(2, 7).T, 9, 1.0) is not None


def test_a_relation_is_guarded_not_the_size() -> None:
    def f(x: Any) -> Any:
        return x + 1 if x.shape[0] < 5 else x - 1

    trace = trace_of(f, torch.randn(3))
    assert [(r.op, str(r.right)) for r in trace.trace.assumptions.relations] == [("<", "5")]
    assert "in test_a_relation" in trace.trace.assumptions.relations[0].why
    assert misses(trace, f, torch.randn(4)) is None
    assert misses(trace, f, torch.randn(5)) is not None


def test_static_sizes() -> None:
    def f(x: Any) -> Any:
        return x.view(x.shape[0] * 2, -1)

    made = record(f, (torch.randn(4, 2),), {}, dynamic=False)
    assert made.trace is not None and not made.trace.hints
    assert made.trace.assumptions.inputs[0].spec.sizes == (4, 2)
    assert misses(guarded(made.trace), f, torch.randn(6, 2)) is not None


def test_float_value_facts_look_at_bits() -> None:
    def f(x: Any, k: float) -> Any:
        return x * (1 if math.copysign(1.0, k) > 0 else 2)

    trace = trace_of(f, torch.randn(3), 0.0)
    assert misses(trace, f, torch.randn(3), 0.0) is None
    assert misses(trace, f, torch.randn(3), -0.0) is not None


Change = Callable[[dict[str, Any]], None]


def set_scale(value: float) -> None:
    globals()["SCALE"] = value


CASES: dict[str, tuple[Callable[[dict[str, Any]], Any], Change]] = {
    "global rebound": (lambda s: lambda x: x * SCALE, lambda s: set_scale(3.0)),
    "function rebound": (
        lambda s: lambda x: s["box"].helper(x) if False else helper(x),
        lambda s: s["patch"].setitem(globals(), "helper", lambda x: x + 1),
    ),
    "default replaced": (lambda s: lambda x: helper(x), lambda s: s["patch"].setattr(helper, "__defaults__", (5.0,))),
    "code replaced": (
        lambda s: lambda x: helper(x),
        lambda s: s["patch"].setattr(helper, "__code__", (lambda x, k=1: x + k).__code__),
    ),
    "torch function patched": (
        lambda s: lambda x: torch.nn.functional.relu(x),
        lambda s: s["patch"].setattr(torch.nn.functional, "relu", torch.sin),
    ),
    "attribute": (lambda s: lambda x: x * s["box"].value, lambda s: setattr(s["box"], "value", 9.0)),
    "instance override of a method": (
        lambda s: lambda x: s["box"].method(x),
        lambda s: setattr(s["box"], "method", lambda x: x),
    ),
    "method replaced": (lambda s: lambda x: s["box"].method(x), lambda s: s["patch"].setattr(Box, "method", helper)),
    "class attribute": (lambda s: lambda x: x * s["box"].shared, lambda s: s["patch"].setattr(Box, "shared", 4.0)),
    "descriptor's result": (lambda s: lambda x: x * s["held"].field, lambda s: set_scale(4.0)),
    "attribute added that was absent": (
        lambda s: lambda x: x * getattr(s["box"], "extra", 1.0),
        lambda s: setattr(s["box"], "extra", 2.0),
    ),
    "class of an object": (
        lambda s: lambda x: s["box"].method(x),
        lambda s: setattr(s["box"], "__class__", type("Other", (Box,), {"method": helper})),
    ),
    "list length": (lambda s: lambda x: x * len(s["items"]), lambda s: s["items"].append(3)),
    "truth of a list": (lambda s: lambda x: x if s["items"] else -x, lambda s: s["items"].clear()),
    "list element": (lambda s: lambda x: x * s["items"][1], lambda s: s["items"].__setitem__(1, 7)),
    "list iterated": (lambda s: lambda x: x * sum(i for i in s["items"]), lambda s: s["items"].__setitem__(0, 7)),
    "list to native code": (lambda s: lambda x: x * max(s["items"]), lambda s: s["items"].__setitem__(0, 7)),
    "dict entry": (lambda s: lambda x: x * s["table"]["a"], lambda s: s["table"].update(a=5)),
    "dict key absent": (lambda s: lambda x: x * s["table"].get("z", 1), lambda s: s["table"].update(z=5)),
    "dict key missing": (lambda s: lambda x: x * ("z" in s["table"]), lambda s: s["table"].update(z=5)),
    "dict order": (
        lambda s: lambda x: x * float(next(iter(s["table"])) == "a"),
        lambda s: s["table"].update(a=s["table"].pop("a")),
    ),
    "hook added": (lambda s: lambda x: s["net"](x), lambda s: s["net"].register_forward_hook(lambda m, a, o: o * 2)),
    "hook added inside": (
        lambda s: lambda x: s["net"](x),
        lambda s: s["net"][0].register_forward_pre_hook(lambda m, a: (a[0] * 2,)),
    ),
    "training flag": (lambda s: lambda x: s["net"](x), lambda s: s["net"].train()),
    "module replaced": (lambda s: lambda x: s["net"](x), lambda s: s["net"].__setitem__(0, nn.Identity())),
    "module added": (lambda s: lambda x: s["net"](x), lambda s: s["net"].append(nn.Identity())),
    "parameter of another dtype": (lambda s: lambda x: s["net"](x), lambda s: s["net"].double()),
    "forward overridden on the instance": (
        lambda s: lambda x: s["net"](x),
        lambda s: setattr(s["net"][0], "forward", lambda x: x),
    ),
    "environment": (
        lambda s: lambda x: x * (2 if os.environ.get("FRAMEFUSE_T") else 1),
        lambda s: s["patch"].setenv("FRAMEFUSE_T", "1"),
    ),
    "cell rebound": (lambda s: cell_program(s), lambda s: s["set"](5.0)),
    "partial's function": (
        lambda s: lambda x: s["partials"]["p"](x),
        lambda s: s["partials"].update(p=functools.partial(helper, k=4.0)),
    ),
}


def cell_program(state: dict[str, Any]) -> Any:
    k = 2.0

    def change(value: float) -> None:
        nonlocal k
        k = value

    state["set"] = change
    return lambda x: x * k


@pytest.mark.parametrize("name", list(CASES))
def test_change_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    set_scale(2.0)
    program, change = CASES[name]
    state: dict[str, Any] = {
        "box": Box(2.0),
        "held": Holder(),
        "items": [1, 2],
        "table": {"a": 1, "b": 2},
        "net": nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5)).eval(),
        "partials": {"p": functools.partial(helper, k=3.0)},
        "patch": monkeypatch,
    }
    function, x = program(state), torch.randn(2, 3)
    trace = trace_of(function, x)
    assert misses(trace, function, torch.randn(5, 3)) is None
    change(state)
    assert misses(trace, function, torch.randn(5, 3)) is not None


def test_unrelated_changes_hit() -> None:
    box, net = Box(2.0), nn.Linear(3, 3)

    def f(x: Any) -> Any:
        return net(x) * box.value

    trace = trace_of(f, torch.randn(2, 3))
    box.other = 3
    net.note = "n"
    with torch.no_grad():
        net.weight.mul_(2)
    net.weight = nn.Parameter(torch.zeros(3, 3))
    assert misses(trace, f, torch.randn(2, 3)) is None


def test_gradient_mode_is_part_of_the_state() -> None:
    def f(x: Any) -> Any:
        return x * 2

    trace = trace_of(f, torch.randn(3))
    with torch.no_grad():
        assert misses(trace, f, torch.randn(3)) is not None


def test_written_arguments_must_stay_apart() -> None:
    def f(a: Any, b: Any) -> Any:
        a.add_(1)
        return a + b

    x = torch.zeros(4)
    trace = trace_of(f, torch.zeros(4), torch.zeros(4))
    assert misses(trace, f, torch.zeros(4), torch.zeros(4)) is None
    assert misses(trace, f, x, x) is not None
    assert misses(trace, f, x, x.view(4)) is not None
    assert record(f, (x, x.view(4)), {}).reason.code == "alias"


def test_the_same_argument_twice() -> None:
    def f(a: Any, b: Any) -> Any:
        return a * 2 if a is b else a + b

    x = torch.zeros(3)
    same, other = trace_of(f, x, x), trace_of(f, x, torch.ones(3))
    assert misses(same, f, x, x) is None and misses(same, f, x, torch.ones(3)) is not None
    assert misses(other, f, x, torch.ones(3)) is None and misses(other, f, x, x) is not None


def test_the_same_list_twice() -> None:
    def f(a: Any, b: Any, x: Any) -> Any:
        a.append(x)
        return b[0] * 2

    x = torch.zeros(3)
    trace = trace_of(f, [x], [x], x)
    items = [x]
    assert misses(trace, f, [x], [x], x) is None
    assert misses(trace, f, items, items, x) is not None


def test_what_a_module_leaves_in_its_facts() -> None:
    net = nn.Linear(3, 3)
    made = record(net, (torch.randn(2, 3),), {}, owner=net)
    assert made.trace is not None
    texts = [str(fact) for fact in made.trace.assumptions.facts]
    assert any("_forward_hooks" in text and "len" in text for text in texts)
    assert any("'forward' not in" in text for text in texts)
    assert all(given.source.root.kind in ("object", "arg") for given in made.trace.assumptions.inputs)
    assert sum(not given.source.is_argument for given in made.trace.assumptions.inputs) == 2
    assert len(set(texts)) >= len(texts) * 0.9


def test_bound_arguments_have_the_declared_order() -> None:
    def f(a: Any, b: Any = 2, *rest: Any, c: Any, d: Any = 4, **named: Any) -> None: ...

    assert bind(f, (1,), {"c": 3}) == [1, 2, 3, 4, (), {}]
    assert bind(f, (1, 5, 6), {"c": 3, "z": 0}) == [1, 5, 3, 4, (6,), {"z": 0}]
    with pytest.raises(TypeError, match=r"f\(\) missing 1 required keyword-only argument: 'c'"):
        bind(f, (1,), {})
