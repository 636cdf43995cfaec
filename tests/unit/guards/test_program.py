"""Assumptions about arguments and models become programs that hit and miss where the facts hold and fail."""

from __future__ import annotations

import time
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.native.plans import Writer

from framefuse import _native
from framefuse.guards.check import Miss, check, explain
from framefuse.guards.program import Guards, build
from framefuse.ir import dtypes
from framefuse.ir.comparisons import Relation
from framefuse.ir.facts import Assumptions, Fact, GlobalState, Input, Source, TensorSpec
from framefuse.ir.numbers import Real, Symbol, Whole, expr
from framefuse.native import abi


@pytest.fixture(scope="module", autouse=True)
def initialised() -> None:
    abi.initialise()


def state() -> GlobalState:
    return GlobalState(torch.is_grad_enabled(), False, (), "float32", "cpu", False, 0, abi.thread_keys())


def arg(index: int) -> Source:
    return Source("arg", None, index)


def root(value: Any) -> Source:
    return Source("object", None, value)


def spec(tensor: torch.Tensor, sizes: tuple[Any, ...] | None = None) -> TensorSpec:
    order = tuple(range(tensor.dim()))
    row = dtypes.BY_TORCH[tensor.dtype]
    return TensorSpec(type(tensor), abi.keys_of(tensor), row, "cpu", sizes or tuple(tensor.shape), order, None, None)


class Guarded:
    """A program with both executors, which must agree."""

    def __init__(
        self, facts: list[Fact], inputs: Any = (), relations: Any = (), definitions: Any = (), sources: Any = ()
    ) -> None:
        assumptions = Assumptions(state(), tuple(facts), tuple(inputs), tuple(relations), tuple(definitions))
        self.built: Guards = build(assumptions, sources=sources)
        self.native = _native.GuardSet(self.built.program)

    def __call__(self, *arguments: Any) -> bool:
        expected, found = check(self.built.program, arguments), self.native.check(arguments)
        assert (found if isinstance(found, int) else -2) == (expected.index if isinstance(expected, Miss) else -2)
        return isinstance(found, tuple)

    def number(self, symbol: Any, *arguments: Any) -> int:
        found = self.native.check(arguments)
        assert isinstance(found, tuple)
        return found[1][self.built.number_of[symbol]]

    def register(self, source: Source, *arguments: Any) -> Any:
        found = self.native.check(arguments)
        assert isinstance(found, tuple)
        return found[0][self.built.register_of[source]]


class Config:
    def __init__(self) -> None:
        self.width = 3
        self.names = ["a", "b"]
        self.table: dict[str, Any] = {"x": 1}
        self.rate = 0.5


def test_arguments() -> None:
    x, y = Symbol("x"), Symbol("y")
    given = [
        Input(0, arg(0), spec(torch.ones(4, 3), (x, y))),
        Input(1, Source("item", arg(1), 0), spec(torch.ones(3), (y,))),
    ]
    facts = [Fact(arg(1), "type", list), Fact(arg(1), "length", 2), Fact(Source("item", arg(1), 1), "int", 5)]
    facts += [
        Fact(arg(2), "integer", Symbol("n")),
        Fact(arg(3), "real", "r"),
        Fact(Source("item", arg(4), "k"), "str", "v"),
    ]
    guarded = Guarded(facts, given, [Relation("<", x.expr, expr(10)), Relation("==", (y.expr * 2) % 2, expr(0))])
    good = (torch.ones(4, 3), [torch.ones(3), 5], 7, 1.5, {"k": "v"})
    assert guarded(*good)
    assert guarded.number(x, *good) == 4 and guarded.number(Symbol("n"), *good) == 7
    assert guarded.register(given[1].source, *good) is good[1][0]
    assert guarded(torch.ones(9, 8), [torch.ones(8), 5], -7, 0.0, {"k": "v", "z": 1})
    for bad in (
        (torch.ones(10, 3), *good[1:]), (torch.ones(4, 4), *good[1:]), (good[0], (torch.ones(3), 5), *good[2:]),
        (good[0], [torch.ones(3), 6], *good[2:]), (good[0], [torch.ones(3), 5, 1], *good[2:]),
        (*good[:2], 7.0, *good[3:]),
        (*good[:3], 1, good[4]), (*good[:4], {"k": "w"}), (*good[:4], {}), (torch.ones(4, 3).t(), *good[1:]), good[:3],
    ):  # fmt: skip
        assert not guarded(*bad), bad


def test_definitions() -> None:
    x, half, bits = Symbol("x"), Symbol("half"), Symbol("bits")
    given = [Input(0, arg(0), spec(torch.ones(4), (x,)))]
    made = [
        (half, Whole("trunc", (Real("mul", (Real("symbol", ("r",)), Real("int", (x.expr,)))),))),
        (bits, Whole("and", (half.expr, expr(6)))),
    ]
    guarded = Guarded([Fact(arg(1), "real", "r")], given, [Relation("!=", bits.expr, expr(2))], made)
    assert guarded(torch.ones(4), 0.3) and not guarded(torch.ones(7), 0.5) and not guarded(torch.ones(4), 0.5)
    assert guarded.number(half, torch.ones(11), 0.5) == 5 and guarded.number(bits, torch.ones(11), 0.5) == 4
    assert not guarded(torch.ones(4), float("nan")) and not guarded(torch.ones(4), 1e300)


def test_arguments_by_identity_and_aliasing() -> None:
    key, other = object(), object()
    a, b = torch.ones(2), torch.ones(2)
    facts = [
        Fact(arg(0), "is", key),
        Fact(arg(1), "same", arg(2)),
        Fact(arg(1), "different", arg(3)),
        Fact(arg(1), "disjoint", arg(3)),
    ]
    guarded = Guarded(facts)
    assert guarded(key, a, a, b)
    assert (
        not guarded(other, a, a, b)
        and not guarded(key, a, b, b)
        and not guarded(key, a, a, a)
        and not guarded(key, a, a, a[1:])
    )


ATTRIBUTES: dict[str, tuple[Callable[[Source], list[Fact]], Callable[[Config], Any]]] = {
    "int": (lambda s: [Fact(Source("attr", s, "width"), "int", 3)], lambda c: setattr(c, "width", 4)),
    "bool for int": (lambda s: [Fact(Source("attr", s, "width"), "int", 3)], lambda c: setattr(c, "width", True)),
    "float": (lambda s: [Fact(Source("attr", s, "rate"), "float", 0.5)], lambda c: setattr(c, "rate", 0.25)),
    "removed": (lambda s: [Fact(Source("attr", s, "width"), "int", 3)], lambda c: delattr(c, "width")),
    "added": (lambda s: [Fact(Source("dict", s), "absent", "new")], lambda c: setattr(c, "new", 1)),
    "unset": (lambda s: [Fact(Source("attr", s, "new"), "unset")], lambda c: setattr(c, "new", 1)),
    "no attribute": (lambda s: [Fact(Source("getattr", s, "new"), "unset")], lambda c: setattr(c, "new", 1)),
    "read": (lambda s: [Fact(Source("getattr", s, "width"), "int", 3)], lambda c: setattr(c, "width", 4)),
    "type": (lambda s: [Fact(s, "type", Config)], lambda c: setattr(c, "__class__", type("Other", (Config,), {}))),
    "dict": (lambda s: [Fact(Source("attr", s, "width"), "int", 3)],
        lambda c: setattr(c, "__dict__", {**vars(c), "width": 4})),
    "length": (lambda s: [Fact(Source("attr", s, "names"), "length", 2)], lambda c: c.names.append("c")),
    "element": (lambda s: [Fact(Source("item", Source("attr", s, "names"), 0), "str", "a")],
        lambda c: c.names.insert(0, "z")),
    "replaced": (lambda s: [Fact(Source("item", Source("attr", s, "names"), 0), "str", "a")],
        lambda c: setattr(c, "names", ["z"])),
    "keys": (lambda s: [Fact(Source("attr", s, "table"), "keys", ("x",))], lambda c: c.table.update(y=1)),
    "entry": (lambda s: [Fact(Source("item", Source("attr", s, "table"), "x"), "int", 1)],
        lambda c: c.table.update(x=2)),
    "present": (lambda s: [Fact(Source("attr", s, "table"), "present", "x")], lambda c: c.table.clear()),
    "type of a value": (lambda s: [Fact(Source("attr", s, "width"), "type", int)], lambda c: setattr(c, "width", "w")),
    "class attribute": (lambda s: [Fact(Source("type", s), "type_absent", "late")],
        lambda c: setattr(type(c), "late", 1)),
    "class version": (lambda s: [Fact(root(Config), "version")], lambda c: setattr(type(c), "late", 1)),
}  # fmt: skip


@pytest.mark.parametrize("name", ATTRIBUTES)
@pytest.mark.parametrize("argument", [False, True])
def test_attributes_of_long_lived_objects_and_arguments(name: str, argument: bool) -> None:
    facts, change = ATTRIBUTES[name]
    config = Config()
    guarded = Guarded(facts(arg(0) if argument else root(config)))
    try:
        for _ in range(3):
            assert guarded(config)
        config.other = 1  # type: ignore[attr-defined]
        assert guarded(config)
        change(config)
        assert not guarded(config) and not guarded(config)
    finally:
        if hasattr(Config, "late"):
            del Config.late


def make(value: Any) -> Any:
    def inner(a: Any = 1) -> Any:
        return value, a, len, GLOBAL

    return inner


GLOBAL = 3


def test_functions() -> None:
    global GLOBAL
    f = make([1])
    source = root(f)
    facts = [
        Fact(source, "code", (f.__code__, f.__defaults__, f.__kwdefaults__)),
        Fact(Source("global", source, "GLOBAL"), "int", 3),
        Fact(Source("global", source, "len"), "is", len), Fact(Source("cell", source, 0), "length", 1),
        Fact(Source("global", source, "torch"), "is", torch),
        Fact(Source("attr", Source("global", source, "torch"), "nn"), "is", torch.nn),
    ]  # fmt: skip
    guarded = Guarded(facts)
    assert guarded()
    GLOBAL = 4
    assert not guarded()
    GLOBAL = 3
    assert guarded()
    globals()["len"] = print
    assert not guarded()
    del globals()["len"]
    assert guarded()
    f.__closure__[0].cell_contents.append(2)
    assert not guarded()
    f.__closure__[0].cell_contents = [1]
    assert not guarded()


def test_methods() -> None:
    config = Config()
    listed = [config.__init__, [].append]  # type: ignore[misc]
    source = Source("item", root(listed), 0)
    facts = [Fact(source, "type", type(listed[0])), Fact(Source("func", source), "is", Config.__init__)]
    facts += [Fact(Source("attr", Source("self", source), "width"), "int", 3)]
    facts += [Fact(Source("self", Source("item", root(listed), 1)), "length", 0)]
    guarded = Guarded(facts)
    assert guarded()
    config.width = 4
    assert not guarded()
    config.width = 3
    assert guarded()
    listed[1].__self__.append(1)
    assert not guarded()


def test_an_ordered_dict_whose_order_moves() -> None:
    holder = OrderedDict(a=1, b=2)
    guarded = Guarded([Fact(root(holder), "keys", ("a", "b"))])
    assert guarded()
    holder.move_to_end("a")
    assert not guarded()


def test_another_parameter_of_the_same_kind_needs_no_new_program() -> None:
    model = torch.nn.Linear(3, 4)
    place = Source("item", Source("attr", root(model), "_parameters"), "weight")
    guarded = Guarded([], [Input(0, place, spec(model.weight))])
    assert guarded() and guarded.register(place) is model.weight
    model.weight = torch.nn.Parameter(torch.zeros(4, 3))
    assert guarded() and guarded.register(place) is model.weight
    model.weight.data = torch.zeros(5, 3)
    assert not guarded()
    model.weight = torch.nn.Parameter(torch.zeros(4, 3, dtype=torch.float64))
    assert not guarded()
    model.weight = None
    assert not guarded()


def test_attributes_of_a_parameter_do_not_hold_it_to_its_identity() -> None:
    model = torch.nn.Linear(3, 4)
    place = Source("item", Source("attr", root(model), "_parameters"), "weight")
    guarded = Guarded([Fact(Source("grad", place), "is", None)], [Input(0, place, spec(model.weight))])
    assert guarded()
    model.weight = torch.nn.Parameter(torch.zeros(4, 3))
    assert guarded()
    model.weight.grad = torch.zeros(4, 3)
    assert not guarded()


def test_tied_parameters() -> None:
    model = torch.nn.ModuleList([torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)])
    places = [Source("item", Source("attr", root(layer), "_parameters"), "weight") for layer in model]
    guarded = Guarded(
        [Fact(places[0], "different", places[1])], [Input(i, p, spec(model[0].weight)) for i, p in enumerate(places)]
    )
    assert guarded()
    model[0].weight = model[1].weight
    assert not guarded()


def test_what_a_fact_says_counts_not_what_is_there_now() -> None:
    """The recording call itself may have moved on: the facts are those of its beginning."""
    config, old = Config(), {"x": 1}
    place = Source("attr", root(config), "table")
    guarded = Guarded([Fact(place, "is", old), Fact(Source("item", place, "x"), "int", 1)])
    assert not guarded()
    config.table = old
    assert guarded()
    old["x"] = 2
    assert not guarded()


class Plain:
    def __init__(self, n: int) -> None:
        self.n = n


def test_what_lies_in_a_long_lived_tuple_is_not_read_again() -> None:
    holder = types.SimpleNamespace(shape=(3, "a", [1], Plain(1), torch.zeros(2)))
    shape = Source("attr", root(holder), "shape")
    parts = [Source("item", shape, index) for index in range(5)]
    facts = [
        Fact(parts[0], "int", 3), Fact(parts[1], "str", "a"), Fact(parts[2], "type", list), Fact(parts[2], "length", 1),
        Fact(parts[3], "type", type(holder.shape[3])), Fact(Source("attr", parts[3], "n"), "int", 1),
        Fact(parts[4], "tensor", spec(holder.shape[4])), Fact(parts[0], "type", int),
    ]  # fmt: skip
    guarded = Guarded(facts)
    names = [instruction[0] for instruction in guarded.built.program.instructions]
    assert names.count("int_eq") == 1 and "str_eq" not in names  # what an attribute holds is read, a tuple's part not
    assert guarded() and guarded()
    holder.shape[2].append(2)
    assert not guarded()
    holder.shape[2].pop()
    holder.shape[3].n = 2
    assert not guarded()
    holder.shape[3].n = 1
    holder.shape[4].resize_(3)
    assert not guarded()
    holder.shape[4].resize_(2)
    assert guarded()
    holder.shape = (4, *holder.shape[1:])
    assert not guarded()
    for false in (Fact(parts[0], "int", 5), Fact(parts[1], "type", int), Fact(parts[2], "is", [])):
        assert not Guarded([false])()


def test_sources_of_results_and_effects_get_registers() -> None:
    config = Config()
    names, width = Source("attr", root(config), "names"), Source("attr", root(config), "width")
    guarded = Guarded([], sources=(names, width, arg(0), root(config)))
    assert guarded.register(names, "here") is config.names and guarded.register(arg(0), "here") == "here"
    config.width = 9
    assert guarded.register(width, 1) == 9 and guarded.register(root(config), 1) is config


def test_explanations_name_the_place() -> None:
    config = Config()
    guarded = Guarded([Fact(Source("attr", root(config), "width"), "int", 3), Fact(arg(0), "type", int)])
    assert explain(guarded.built.program, (1,)) is None
    assert explain(guarded.built.program, ("x",)) == "type(args[0]) is int: int -> str"
    config.width = 4
    assert explain(guarded.built.program, (1,)) == "Config.width == 3: 3 -> 4"
    with torch.inference_mode():
        assert "torch's grad enabled: True -> False" == explain(guarded.built.program, (1,))


def test_unknown_facts_are_refused() -> None:
    with pytest.raises(ValueError, match="no fact 'wishes'"):
        Guarded([Fact(arg(0), "wishes")])
    with pytest.raises(ValueError, match="long-lived"):
        Guarded([Fact(arg(0), "version")])


def module_facts(model: torch.nn.Module) -> tuple[list[Fact], list[Input]]:
    """What recording a model leaves behind for each module: its type, its dicts, its hooks, its parameters."""
    facts: list[Fact] = []
    inputs: list[Input] = []

    def walk(module: torch.nn.Module, source: Source) -> None:
        own = Source("dict", source)
        facts.append(Fact(source, "type", type(module)))
        facts.extend(Fact(own, "absent", name) for name in ("forward", "_compiled_call_impl", "_call_impl"))
        facts.append(Fact(Source("attr", source, "training"), "is", module.training))
        for name in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            facts.append(Fact(Source("attr", source, name), "is", module.__dict__[name]))
            facts.append(Fact(Source("attr", source, name), "length", 0))
        place = Source("attr", source, "_parameters")
        facts.append(Fact(place, "is", module._parameters))
        for name, value in module._parameters.items():
            if value is not None:
                inputs.append(Input(len(inputs), Source("item", place, name), spec(value)))
        children = Source("attr", source, "_modules")
        facts.append(Fact(children, "is", module._modules))
        facts.append(Fact(children, "keys", tuple(module._modules)))
        for name, child in module._modules.items():
            assert child is not None
            facts.append(Fact(Source("item", children, name), "is", child))
            walk(child, Source("item", children, name))

    walk(model, root(model))
    return facts, inputs


def test_a_model() -> None:
    model = torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()) for _ in range(20)])
    facts, inputs = module_facts(model)
    guarded = Guarded(facts, inputs)
    assert guarded() and guarded()
    inner = model[7][0]
    changes: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
        (lambda: model.eval(), lambda: model.train()),
        (lambda: inner.register_forward_hook(print), lambda: inner._forward_hooks.clear()),
        (lambda: setattr(inner, "forward", print), lambda: delattr(inner, "forward")),
        (lambda: model[3].append(torch.nn.ReLU()), lambda: model[3]._modules.popitem()),
        (lambda: inner.double(), lambda: inner.float()),
        (lambda: setattr(inner, "__class__", torch.nn.Bilinear), lambda: setattr(inner, "__class__", torch.nn.Linear)),
    ]
    for change, back in changes:
        change()
        assert not guarded()
        back()
        assert guarded()
    with torch.no_grad():
        inner.weight.mul_(2)
    inner.weight = torch.nn.Parameter(torch.ones(4, 4))
    inner.unrelated = 5
    assert guarded()


def test_a_model_without_hooks() -> None:
    """One fact for a module: its empty dicts are looked at on every call, also where its own dict is unchanged."""
    model = torch.nn.Sequential(*[torch.nn.ReLU() for _ in range(5)])
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    value = (("forward", "_call_impl"), hooks)
    guarded = Guarded([Fact(Source("item", Source("attr", root(model), "_modules"), str(i)), "bare", value)
                       for i in range(5)])  # fmt: skip
    assert guarded() and guarded() and guarded.native.dicts == 7
    inner = model[3]

    class Told(dict[str, Any]):
        def __bool__(self) -> bool:
            return False

    def put(name: str, held: Any) -> Callable[[], Any]:
        return lambda: inner.__dict__.__setitem__(name, held)

    changes: list[tuple[Callable[[], Any], Callable[[], Any], str]] = [
        (lambda: inner._forward_hooks.update(a=print), lambda: inner._forward_hooks.clear(), "._forward_hooks: empty"),
        (lambda: inner.register_full_backward_hook(print), lambda: inner._backward_hooks.clear(), "_backward_hooks"),
        (put("_forward_pre_hooks", {"a": print}), put("_forward_pre_hooks", OrderedDict()), "_forward_pre_hooks"),
        (put("_forward_hooks", Told()), put("_forward_hooks", {}), "_forward_hooks"),
        (put("_forward_hooks", None), put("_forward_hooks", {}), "_forward_hooks"),
        (put("forward", print), lambda: delattr(inner, "forward"), ".forward: absent"),
        (lambda: inner.__dict__.pop("_forward_hooks"), put("_forward_hooks", {}), "_forward_hooks"),
        (lambda: setattr(inner, "__dict__", dict(inner.__dict__)), lambda: None, "attributes"),
    ]
    for change, back, told in changes:
        change()
        assert not guarded()
        assert told in str(explain(guarded.built.program, ()))
        back()
        assert guarded() == (told != "attributes")
    given = Guarded([Fact(arg(0), "bare", value)])
    assert given(model[0]) and not given(torch.nn.Linear(2, 2).register_forward_hook(print)) and not given(7)


def test_the_cost_of_checking_a_model() -> None:
    """About 8,000 facts in well under 15 us; the bound leaves room for a busy machine."""
    blocks = [
        torch.nn.Sequential(*[torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Dropout()) for _ in range(6)])
        for _ in range(24)
    ]
    model = torch.nn.Sequential(*blocks)
    facts, inputs = module_facts(model)
    guards = _native.GuardSet(Guarded(facts, inputs).built.program)
    dispatch = _native.Dispatch(lambda: None, None)
    dispatch.add(_native.Compiled(guards, _native.PlanProgram(Writer().plan(("const", None)))))
    dispatch()
    before, best = guards.reruns, float("inf")
    for _ in range(20):
        start = time.perf_counter()
        for _ in range(50):
            dispatch()
        best = min(best, (time.perf_counter() - start) / 50)
    assert dispatch.hits == 1001 and guards.reruns == before
    assert len(facts) > 5000 and best < 30e-6
