"""Native code that reads objects, and special methods that appear later: what decided the outcome is watched."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import math
import operator
import string
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from tests.traps.trap import Table, Trap, hold, outcome
from torch import nn

TABLE = Table()
trap = TABLE.trap
WAITS = "argument native-call"


def ones(*sizes: int) -> torch.Tensor:
    return torch.ones(*sizes)


class Plain:
    def __init__(self, **named: Any) -> None:
        self.__dict__.update(named)


@dataclasses.dataclass
class Setting:
    k: float = 2.0
    parts: Any = None


@dataclasses.dataclass(frozen=True)
class Frozen:
    k: float = 2.0


def changing(compiled: Any, function: Any, holder: Any, name: str = "k", values: Any = (2.0, 2.0, 3.0, 3.0)) -> Any:
    f = compiled(function)
    for value in values:
        setattr(holder, name, value)
        yield f(ones(2))


@trap(traces=2, hits=2)
def an_attribute_by_attrgetter(compiled):
    held = Plain(k=2.0)
    yield from changing(compiled, lambda x: x * operator.attrgetter("k")(held), held)


@trap(traces=2, hits=2)
def an_attribute_by_a_kept_attrgetter(compiled):
    held, get = Plain(k=2.0), operator.attrgetter("k")
    yield from changing(compiled, lambda x: x * get(held), held)


@trap(traces=2, hits=2)
def an_item_by_itemgetter(compiled):
    table, get = {"k": 2.0}, operator.itemgetter("k")
    f = compiled(lambda x: x * get(table))
    for table["k"] in (2.0, 2.0, 3.0, 3.0):
        yield f(ones(2))


@trap(traces=2, hits=2)
def an_item_by_a_function_of_operator(compiled):
    table = {"k": 2.0}
    f = compiled(lambda x: x * operator.getitem(table, "k"))
    for table["k"] in (2.0, 2.0, 3.0, 3.0):
        yield f(ones(2))


@trap(traces=2, hits=2)
def a_method_by_methodcaller(compiled):
    class A:
        k = 2.0

        def h(self):
            return self.k

    held, call = A(), operator.methodcaller("h")
    yield from changing(compiled, lambda x: x * call(held), held)


@trap(traces=2, hits=2, waits=WAITS)
def a_dataclass_as_a_dict(compiled):
    held = Setting()
    yield from changing(compiled, lambda x: x * dataclasses.asdict(held)["k"], held)


@trap(traces=2, hits=2, waits=WAITS)
def a_dataclass_as_a_tuple(compiled):
    held = Setting()
    yield from changing(compiled, lambda x: x * dataclasses.astuple(held)[0], held)


@trap(traces=2, hits=2)
def a_dataclass_replaced(compiled):
    held = Setting()
    yield from changing(compiled, lambda x: x * dataclasses.replace(held, parts=1).k, held)


@trap(traces=2, hits=2)
def dataclasses_compared(compiled):
    held, other = Setting(), Setting()
    yield from changing(compiled, lambda x: x + 1 if held == other else x - 1, held)


@trap(traces=2, hits=2, waits=WAITS)
def frozen_dataclasses_hashed(compiled):
    table = {Frozen(2.0): 5.0, Frozen(3.0): 7.0}
    f = compiled(lambda x, key: x * table[key])
    for k in (2.0, 2.0, 3.0, 3.0):
        yield f(ones(2), Frozen(k))


@trap(traces=4, hits=3)
def an_object_in_a_text(compiled):
    held = Setting()
    values = (2.0, 2.0, 3.0, 3.0, 4.0, 4.0)  # the two texts are steps once they were met
    yield from changing(compiled, lambda x: (x + 1, f"{held} {held!r} {held.k:.2f}"), held, values=values)


@trap(traces=1, hits=2)
def a_number_of_numpy_formatted(compiled):
    """Without a specification its text is not that of ``str``: 1.1 in float32 is 1.100000023841858."""
    held = np.float32(1.1)
    f = compiled(lambda x: (x * 2, f"{held}", f"{held!s}", format(held), "{}".format(held)))  # noqa: UP032
    for number in range(3):
        yield f(ones(2) * number)


@trap(traces=2, hits=2)
def an_object_formatted(compiled):
    held = Plain(k=2.0)
    yield from changing(compiled, lambda x: (x + 1, f"{held.k} {held.k}"), held)


@trap(traces=4, hits=3)
def an_object_formatted_by_percent(compiled):
    held = Setting()
    values = (2.0, 2.0, 3.0, 3.0, 4.0, 4.0)
    yield from changing(compiled, lambda x: (x + 1, "%s %r" % (held, [held])), held, values=values)  # noqa: UP031


@trap(traces=2, hits=2)
def a_dict_in_json(compiled):
    table = {"k": 2.0, "inner": {"n": [1, 2]}}
    f = compiled(lambda x: (x + 1, json.dumps(table)))
    for value in (2, 2, 3, 3):
        table["inner"]["n"][0] = value
        yield f(ones(2))


@trap(traces=2, hits=2)
def a_template_of_string(compiled):
    table = {"k": 2.0}
    f = compiled(lambda x: (x + 1, string.Template("$k").substitute(table)))
    for table["k"] in (2, 2, 3, 3):
        yield f(ones(2))


@trap(traces=2, hits=2)
def nested_containers_compared(compiled):
    held = Plain(k=[1, {"a": 2}])
    f = compiled(lambda x: x + 1 if held.k == [1, {"a": 2}] else x - 1)
    for value in (2, 2, 3, 3):
        held.k[1]["a"] = value
        yield f(ones(2))


@trap(traces=2, hits=2)
def a_deep_copy(compiled):
    held = Plain(k=[1.0, {"a": 2.0}])
    f = compiled(lambda x: x * copy.deepcopy(held).k[1]["a"])
    for value in (2.0, 2.0, 3.0, 3.0):
        held.k[1]["a"] = value
        yield f(ones(2))


@trap(traces=2, hits=2)
def objects_sorted(compiled):
    @functools.total_ordering
    class A:
        def __init__(self, k: float) -> None:
            self.k = k

        def __lt__(self, other: Any) -> bool:
            return self.k < other.k

        def __eq__(self, other: object) -> bool:
            return self.k == other.k  # type: ignore[attr-defined]

    rows = [A(2.0), A(2.5)]
    yield from changing(compiled, lambda x: x * sorted(rows)[0].k, rows[0])


@trap(traces=2, hits=2)
def the_sum_and_product_of_a_list(compiled):
    row = [2.0, 3.0]
    f = compiled(lambda x: x * sum(row) + math.prod(row))
    for value in (2.0, 2.0, 4.0, 4.0):
        row[0] = value
        yield f(ones(2))


@trap(traces=2, hits=2)
def the_namespace_of_an_object(compiled):
    held = types.SimpleNamespace(k=2.0)
    yield from changing(compiled, lambda x: x * held.k, held)


@trap(traces=2, hits=2, waits=WAITS)
def a_view_of_a_mapping(compiled):
    table = {"k": 2.0}
    view = types.MappingProxyType(table)
    f = compiled(lambda x: x * view["k"])
    for table["k"] in (2.0, 2.0, 3.0, 3.0):
        yield f(ones(2))


@trap(traces=3, hits=3)
def the_module_table(compiled):
    sys.modules["framefuse_trap"] = types.ModuleType("framefuse_trap")
    held = sys.modules["framefuse_trap"]

    def program(x):
        import framefuse_trap

        return x * framefuse_trap.k

    try:
        yield from changing(compiled, program, held)
        sys.modules["framefuse_trap"] = types.SimpleNamespace(k=9.0)
        f = compiled(program)
        yield f(ones(2)), f(ones(2))
    finally:
        del sys.modules["framefuse_trap"]


@trap(traces=3, hits=2)
def an_import_that_finds_another_module(compiled):
    def program(x):
        import framefuse_trap

        return x * framefuse_trap.k

    f = compiled(program)
    try:
        for k in (2.0, 3.0, 4.0):
            sys.modules["framefuse_trap"] = types.ModuleType("framefuse_trap")
            sys.modules["framefuse_trap"].k = k
            yield f(ones(2)), f(ones(2))
    finally:
        del sys.modules["framefuse_trap"]


# Special methods that appear -----------------------------------------------------------------------------------------


def appearing(compiled: Any, make: Any, name: str, method: Any, function: Any) -> Any:
    kind = make()
    held = kind()
    f = compiled(lambda x: function(x, held))
    for _ in range(2):
        yield outcome(f, ones(2))
    setattr(kind, name, method)
    for _ in range(2):
        yield outcome(f, ones(2))
    delattr(kind, name)
    yield outcome(f, ones(2))


def empty() -> Any:
    class A:
        pass

    return A


def listing() -> Any:
    class A(list):
        pass

    return A


@trap(traces=3, hits=2)
def a_truth_appears(compiled):
    yield from appearing(compiled, empty, "__bool__", lambda self: False, lambda x, a: x + 1 if a else x - 1)


@trap(traces=3, hits=2)
def a_length_appears(compiled):
    yield from appearing(compiled, empty, "__len__", lambda self: 0, lambda x, a: x + 1 if a else x - 1)


@trap(traces=3, hits=2)
def an_equality_appears(compiled):
    other = empty()()
    equal = lambda self, o: True
    yield from appearing(compiled, empty, "__eq__", equal, lambda x, a: x + 1 if a == other else x - 1)


@trap(traces=6, hits=4)
def an_equality_of_the_other_side_appears(compiled):
    yield from appearing(compiled, empty, "__eq__", lambda self, o: True, lambda x, a: x + 1 if a == 3 else x - 1)
    yield from appearing(compiled, empty, "__eq__", lambda self, o: True, lambda x, a: x + 1 if 3 == a else x - 1)


def rows() -> Any:
    class A(list):
        def __init__(self) -> None:
            super().__init__([2.0, 3.0])

    return A


@trap(traces=3, hits=2)
def an_iteration_of_a_list_appears(compiled):

    def program(x: Any, a: Any) -> Any:
        total = 0.0
        for k in a:
            total = total + k
        return x * total

    yield from appearing(compiled, rows, "__iter__", lambda self: iter([7.0]), program)


@trap(traces=3, hits=2)
def a_getitem_of_a_list_appears(compiled):
    yield from appearing(compiled, rows, "__getitem__", lambda self, k: 9.0, lambda x, a: x * a[0])


class Counting(list):
    """Counts what is asked of it."""

    def __init__(self, *items: float) -> None:
        super().__init__(items)
        self.asked = 0

    def __iter__(self) -> Any:
        self.asked += 10
        return super().__iter__()

    def __getitem__(self, index: Any) -> Any:
        self.asked += 1
        return super().__getitem__(index)


def _replaced(x: Any, a: Counting) -> Any:
    first = max(list(a))
    a[:] = a[:2]
    a.asked += 100
    a.sort()
    return x * first


def _cleared(x: Any, a: Counting) -> Any:
    a.asked += 5
    a.clear()
    a.asked += 7
    a.extend([3.0, 2.0])
    return x * a[0]


@trap(traces=3, hits=6)
def attributes_of_a_list_that_is_written_whole(compiled):
    for program in (_replaced, _cleared):
        f, a = compiled(program), Counting(2.0, 3.0)
        for number in range(5):
            yield f(ones(2) * number, a), a.asked, list.copy(a)


@trap(traces=3, hits=2)
def a_contains_of_a_dict_appears(compiled):
    def make() -> Any:
        class A(dict):
            pass

        return A

    always = lambda self, k: True
    yield from appearing(compiled, make, "__contains__", always, lambda x, a: x * (2 if "k" in a else 3))


@trap(traces=3, hits=2)
def a_call_appears(compiled):
    yield from appearing(compiled, empty, "__call__", lambda self: 4.0, lambda x, a: x * (a() if callable(a) else 2))


@trap(traces=3, hits=2)
def an_add_appears(compiled):
    class Other:
        def __radd__(self, other: Any) -> Any:
            return 5.0

    yield from appearing(compiled, empty, "__add__", lambda self, o: 8.0, lambda x, a: x * (a + Other()))


@trap(traces=0, hits=0)
def operands_of_one_class_are_asked_once(compiled):
    class A:
        def __radd__(self, other: Any) -> Any:
            return 5.0

    f = compiled(lambda x, a: x * (a + A()))
    for _ in range(3):
        yield outcome(f, ones(2), A())


@trap(traces=3, hits=2)
def a_setattr_appears(compiled):
    def program(x: Any, a: Any) -> Any:
        a.k = 2.0
        return x * a.k

    def store(self: Any, name: str, value: Any) -> None:
        object.__setattr__(self, name, 11.0)

    yield from appearing(compiled, empty, "__setattr__", store, program)


@trap(traces=3, hits=2)
def an_instancecheck_changes(compiled):
    class Meta(type):
        pass

    class A(metaclass=Meta):
        pass

    f = compiled(lambda x: x + 1 if isinstance(3, A) else x - 1)
    for _ in range(2):
        yield f(ones(2))
    Meta.__instancecheck__ = lambda cls, value: True
    for _ in range(2):
        yield f(ones(2))


@trap(traces=4, hits=2)
def an_object_becomes_iterable_and_a_mapping(compiled):
    class A:
        pass

    held = A()
    f = compiled(lambda x: x + isinstance(held, Iterable) * 2 + isinstance(held, Mapping) * 4)
    for _ in range(2):
        yield f(ones(2))
    A.__iter__ = lambda self: iter(())
    for _ in range(2):
        yield f(ones(2))
    Mapping.register(A)
    yield f(ones(2)), f(ones(2))


@trap(traces=3, hits=2)
def a_subclass_check_changes(compiled):
    class A:
        pass

    class B:
        pass

    class C(A):
        pass

    f = compiled(lambda x: x + 1 if issubclass(C, B) else x - 1)
    for _ in range(2):
        yield f(ones(2))
    C.__bases__ = (B,)
    for _ in range(2):
        yield f(ones(2))


@trap(traces=3, hits=2)
def an_instance_check_changes_by_the_bases(compiled):
    class A:
        pass

    class B:
        pass

    class C(A):
        pass

    held = C()
    f = compiled(lambda x: x + 1 if isinstance(held, B) else x - 1)
    for _ in range(2):
        yield f(ones(2))
    C.__bases__ = (B,)
    for _ in range(2):
        yield f(ones(2))


@trap(traces=2, hits=2)
def an_exception_class_changes_its_bases(compiled):
    class A(Exception):
        pass

    class B(Exception):
        pass

    class C(A):
        pass

    @compiled
    def f(x):
        try:
            try:
                raise C
            except B:
                return x + 1
        except A:
            return x - 1
        except B:
            return x * 5

    for _ in range(2):
        yield f(ones(2))
    C.__bases__ = (B,)
    for _ in range(2):
        yield f(ones(2))


@trap(traces=2, hits=2)
def static_methods_that_are_objects(compiled):
    class Callee:
        k = 2.0

        def __call__(self, x: Any) -> Any:
            return x * self.k

    callee = Callee()

    class A:
        s = staticmethod(callee)

    yield from changing(compiled, lambda x: A.s(x) + A().s(x), callee)


@trap(traces=2, hits=2)
def an_object_in_a_default(compiled):
    held = Plain(k=2.0)

    def inner(x: Any, setting: Any = held) -> Any:
        return x * setting.k

    yield from changing(compiled, lambda x: inner(x), held)


@trap(traces=2, hits=2)
def an_object_in_a_default_of_a_nested_function(compiled):
    held = Plain(k=2.0)

    def program(x: Any) -> Any:
        def inner(x: Any, setting: Any = held) -> Any:
            return x * setting.k

        return inner(x)

    yield from changing(compiled, program, held)


@trap(traces=2, hits=2)
def an_object_on_a_function(compiled):
    def inner(x: Any) -> Any:
        return x * inner.k

    yield from changing(compiled, lambda x: inner(x), inner)


@trap(traces=2, hits=2)
def an_object_behind_a_wrapper(compiled):
    held = Plain(k=2.0)

    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def wrapper(*args: Any) -> Any:
            return function(*args) * held.k

        return wrapper

    yield from changing(compiled, decorate(lambda x: x + 1), held)


@trap(traces=2, hits=2)
def an_object_behind_super(compiled):
    class Base:
        k = 2.0
        held = Plain(k=2.0)

        @property
        def p(self) -> Any:
            return self.held.k

    class A(Base):
        @property
        def p(self) -> Any:
            return super().p + super().held.k

    a = A()
    yield from changing(compiled, lambda x: x * a.p, Base.held)


@trap(traces=2, hits=2)
def an_object_that_a_class_holds(compiled):
    class A:
        held = Plain(k=2.0)
        table = {"n": [2.0]}

    f = compiled(lambda x: x * A.held.k + A().table["n"][0])
    for value in (2.0, 2.0, 3.0, 3.0):
        A.held.k = value
        A.table["n"][0] = value
        yield f(ones(2))


@trap(traces=3, hits=2)
def a_cached_property(compiled):
    class A:
        @functools.cached_property
        def p(self) -> Any:
            return self.k + 1

    a = A()
    f = compiled(lambda x: x * a.p)
    for k in (2.0, 2.0, 3.0, 3.0):
        a.k = k
        yield f(ones(2)), a.p
    del a.p
    yield f(ones(2)), a.p


@trap(traces=2, hits=2)
def a_partial_and_its_parts(compiled):
    held = Plain(k=2.0)
    call = functools.partial(lambda h, x: x * h.k, held)
    yield from changing(compiled, lambda x: call(x), held)


@trap(traces=12, hits=12)
def an_iterator_over_known_objects(compiled):
    rows = [Plain(k=2.0), Plain(k=3.0)]
    yield from changing(compiled, lambda x: x * sum(row.k for row in reversed(rows)), rows[0])
    yield from changing(compiled, lambda x: x * sum(r.k * n for n, r in enumerate(rows)), rows[1])
    yield from changing(compiled, lambda x: x * next(a.k for a, b in zip(rows, rows, strict=True)), rows[0])
    yield from changing(compiled, lambda x: x * max(rows, key=lambda r: r.k).k, rows[0])
    yield from changing(compiled, lambda x: x * next(filter(None, rows)).k, rows[0])
    yield from changing(compiled, lambda x: x * next(iter({"a": rows[0]}.values())).k, rows[0])


@trap(traces=2, hits=2)
def modules_found_by_name(compiled):
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.0)).requires_grad_(False)
    nn.init.ones_(model[0].weight)
    nn.init.ones_(model[0].bias)

    def program(x: Any) -> Any:
        for _, child in model.named_children():
            x = child(x)
        return x * dict(model.named_modules())["1"].p + len(list(model.parameters()))

    f = compiled(program)
    for p in (0.0, 0.0, 0.5, 0.5):
        model[1].p = p
        model[1].eval()
        yield f(ones(1, 2))


@trap(traces=4, hits=3)
def how_tensors_print_is_set(compiled):
    @compiled
    def f(x):
        torch.set_printoptions(precision=2)
        return x + 1

    try:
        for _ in range(4):
            torch.set_printoptions(precision=5)
            yield f(ones(2)), str(torch.tensor(1.23456))
    finally:
        torch.set_printoptions(profile="default")


@trap(traces=4, hits=3)
def a_folder_that_is_set(compiled):
    home = torch.hub.get_dir()
    f = compiled(lambda x: x * len(torch.hub.get_dir()))
    try:
        for folder in ("/a", "/a", "/abc", "/abc", "/a"):
            torch.hub.set_dir(folder)
            yield f(ones(2))
    finally:
        torch.hub.set_dir(home)


@TABLE.parametrize()
def test_reads_are_watched(trap: Trap) -> None:
    hold(trap)
