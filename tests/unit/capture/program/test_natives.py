"""The rows of native callables: one for each, none that is never reached, none missing; and programs that hand native
code something to call.
"""

import builtins
import collections
import copy
import functools
import itertools
import math
import operator
import re
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.capture import run
from framefuse.capture.callables.mutations import MUTATORS
from framefuse.capture.interp.registry import SPECIALS, special
from framefuse.capture.program.natives import NATIVES, STANDS_FOR, Native, equivalent, known_as

# Builtins that do something, or read what is no argument of theirs: each call is a step, if it has no special.
WITHOUT_ROW = {
    "open", "input", "print", "compile", "__import__", "breakpoint", "memoryview", "aiter", "anext", "help", "exit",
    "quit", "copyright", "credits", "license", "_", "execfile", "runfile", "display", "get_ipython",
}  # fmt: skip


def test_a_second_row_of_a_callable_is_refused() -> None:
    assert run.ROWS  # what fills the table
    for register in (special(len), equivalent(any)):
        with pytest.raises(ValueError, match="has a row already"):
            register(lambda *given: None)
    assert SPECIALS[len] is not None and known_as(any).equivalent.__name__ == "any_"  # type: ignore[union-attr]


def test_every_builtin_has_a_row() -> None:
    """What has none runs as a step, and ends a graph: for a builtin that is a decision."""
    natives = {
        name: value
        for name, value in vars(builtins).items()
        if callable(value) and not (isinstance(value, type) and issubclass(value, BaseException))
    }
    missing = {name for name, value in natives.items() if value not in NATIVES and name not in WITHOUT_ROW}
    assert {name for name in missing if not name.startswith("__")} == set()
    assert {name for name in WITHOUT_ROW if natives.get(name) in NATIVES and name in natives} == set()


@pytest.mark.parametrize("module", [math, operator, itertools])
def test_every_function_of_these_modules_has_a_row_or_writes(module: Any) -> None:
    found = {name: value for name, value in vars(module).items() if callable(value) and not name.startswith("_")}
    assert {name for name, value in found.items() if value not in NATIVES} <= {"setitem", "delitem", "iconcat"}
    assert not any(known_as(value).pure for name, value in found.items() if re.fullmatch("i[a-z]+", name) and
                   name in ("iadd", "iand", "iconcat", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow",
                            "irshift", "isub", "itruediv", "ixor"))  # fmt: skip


def test_no_row_says_nothing() -> None:
    assert [target for target, row in NATIVES.items() if row == Native()] == []


def test_what_is_never_asked_stands_in_no_row() -> None:
    for target, row in NATIVES.items():
        kind = type(target)
        assert not (row.special and row.equivalent), target  # the special returns before the equivalent is looked for
        assert not (row.special and row.asks), target
        assert isinstance(target, type) or not (row.keeps or row.calls), target  # asked of classes alone
        assert kind is types.FunctionType or not row.holds, target  # of Python's functions alone
        assert kind is not types.FunctionType or not (row.keeps_numbers or row.reads_value), target
        assert row.pure or not (row.keeps or row.keeps_numbers), target  # of pure ones alone


def test_every_equivalent_stands_for_its_callable() -> None:
    for target, row in NATIVES.items():
        if row.equivalent is not None:
            assert STANDS_FOR[row.equivalent] is target
            assert row.equivalent.__name__.rstrip("_") == target.__name__  # type: ignore[attr-defined]


# ---- programs -------------------------------------------------------------------------------------------------------

SIGN = 1


def signed(value: Any) -> Any:
    return SIGN * value


class Signed:
    def __call__(self, value: Any) -> Any:
        return SIGN * value


class Ordered:
    def __init__(self, value: Any) -> None:
        self.value = SIGN * value

    def __lt__(self, other: Any) -> bool:
        return bool(self.value < other.value)


class Text:
    def __call__(self, match: Any) -> str:
        return "3" if SIGN == 1 else "1"


class Kept:
    def __call__(self, value: Any) -> bool:
        return SIGN == 1


class Made:
    def __call__(self) -> int:
        return SIGN


class Number(int):
    def signed(self) -> int:
        return SIGN * int(self)


KEPT = Signed()


def in_order(x: Any, values: Any, key: Any) -> Any:
    values = list(values)
    values.sort(key=key)
    return x * int(values[0])


HANDED: dict[str, Callable[[Any, Any], Any]] = {
    "an object": lambda x, v: in_order(x, v, KEPT),
    "its method": lambda x, v: in_order(x, v, KEPT.__call__),
    "a partial": lambda x, v: in_order(x, v, functools.partial(signed)),
    "a class": lambda x, v: in_order(x, v, Ordered),
    "a substitution": lambda x, v: x * int(re.sub("a", Text(), "a")),
    "a filter": lambda x, v: x * len(list(filter(Kept(), v))),
    "what takes": lambda x, v: x * len(list(itertools.takewhile(Kept(), v))),
    "what groups": lambda x, v: x * next(key for key, _ in itertools.groupby(v, Signed())),
    "a factory": lambda x, v: x * collections.defaultdict(Made())[1],
    "a function as factory": lambda x, v: x * collections.defaultdict(lambda: signed(1))[1],
}


@pytest.mark.parametrize("name", HANDED)
def test_what_native_code_calls_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function = HANDED[name]
    fast, x = framefuse.compile(function), torch.ones(2)
    for sign in (1, -1, 1):
        monkeypatch.setitem(globals(), "SIGN", sign)
        for _ in range(3):
            assert torch.equal(fast(x, [3, 1, 2]), function(x, [3, 1, 2]))
    assert compiled_function(fast).dispatch.hits >= 4  # type: ignore[union-attr]


# No step can stand for these, as what it would be given lives in the call alone: they run eagerly.
EAGER: dict[str, Callable[[Any, Any], Any]] = {
    "a star": lambda x, v: x * len([*INDEXED]),
    "a comparison": lambda x, v: in_order(x, v, functools.cmp_to_key(lambda a, b: SIGN * (a - b))),
    "a method by name": lambda x, v: in_order(x, map(Number, v), operator.methodcaller("signed")),
}


@pytest.mark.first_call
@pytest.mark.parametrize("name", EAGER)
def test_what_native_code_calls_of_objects_of_the_call_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    f = EAGER[name]
    fast, x = framefuse.compile(f), torch.ones(2)
    for sign in (1, -1, 1):
        monkeypatch.setitem(globals(), "SIGN", sign)
        for _ in range(3):
            assert torch.equal(fast(x, [3, 1, 2]), f(x, [3, 1, 2]))


def keyed(x: Any, d: Any, k: int) -> Any:
    return x * len(d.__getitem__(k))


READING: dict[str, Callable[[Any, Any, int], Any]] = {
    "a method": keyed,
    "of the class": lambda x, d, k: x * len(dict.__getitem__(d, k)) if k in d else x * len(d[k]),
    "by a map": lambda x, d, k: x * len(next(map(d.__getitem__, [k]))),
    "of a missing key": lambda x, d, k: x * len(d.__missing__(k + 7)),
}


@pytest.mark.parametrize("name", READING)
def test_entries_that_are_read_by_name_are_guarded_and_defaults_put_in(name: str) -> None:
    function, x = READING[name], torch.ones(2)
    fast = framefuse.compile(function)
    ours, eager = (collections.defaultdict(list, {0: [1]}) for _ in range(2))
    for call in range(8):
        if call == 3:
            ours.clear(), eager.clear()
        if call == 5:
            ours[0], eager[0] = [5, 6], [5, 6]
        assert torch.equal(fast(x, ours, call % 2), function(x, eager, call % 2))
        assert ours == eager
        if call % 2:
            ours.pop(1, None), eager.pop(1, None)
    assert compiled_function(fast).dispatch.hits >= 2  # type: ignore[union-attr]


CONTAINERS: list[Any] = [
    [3, 1, 2], {1: 2, 3: 4}, {1, 2}, collections.deque([3, 1, 2]), bytearray(b"abc"),
    collections.OrderedDict({1: 2, 3: 4}), collections.defaultdict(list, {1: [2]}),
]  # fmt: skip
GIVEN: list[Any] = [(), (1,), (0,), (1, 5), ([7, 8],), ({5: 6},), ({1},), (b"zz",), (9,)]
BY_CLASS = frozenset(("__class__", "__setattr__", "__delattr__", "__reduce_ex__", "__new__"))


@pytest.mark.first_call
@pytest.mark.parametrize("container", CONTAINERS, ids=lambda value: type(value).__name__)
def test_every_method_that_changes_a_container_is_known_to(container: Any) -> None:
    """Asked of Python: each method is called with several arguments on a copy."""
    found = set()
    for name in set(dir(container)) - BY_CLASS:
        for args in GIVEN:
            changed = copy.copy(container)
            try:
                getattr(changed, name)(*args)
            except Exception:
                pass
            if repr(changed) != repr(container):
                found.add(name)
    puts_in = {"__getitem__"} if type(container) is collections.defaultdict else set()  # where the key is missing
    assert found - MUTATORS - puts_in == set()


MOVING: dict[str, Callable[[Any, Any], Any]] = {
    "starmap": lambda x, n: x * sum(itertools.starmap(math.pow, [(n, 2)])),
    "accumulate": lambda x, n: x * list(itertools.accumulate([n, 2], operator.mul))[-1],
    "sums": lambda x, n: x * list(itertools.accumulate([n, 2]))[-1],
    "map": lambda x, n: x * sum(map(math.sqrt, [n * n])),
}


@pytest.mark.parametrize("name", MOVING)
def test_numbers_that_iterators_hand_to_native_functions_stay_run_time_numbers(name: str) -> None:
    function = MOVING[name]
    fast, x = framefuse.compile(function), torch.ones(2)
    for n in (3, 4, 5, 6, 7):
        assert torch.allclose(fast(x, n), function(x, n))
    state = compiled_function(fast)
    assert state is not None and len(state.products) <= 2 and state.dispatch.hits >= 3


class Asked:
    """Each special method tells what ``SIGN`` is."""

    def __abs__(self) -> Any:
        return SIGN

    __pos__ = __invert__ = __abs__

    def __repr__(self) -> str:
        return "x" * (SIGN + 2)

    def __bool__(self) -> bool:
        return SIGN == 1

    def __add__(self, other: Any) -> Any:
        return SIGN

    __radd__ = __mul__ = __rmul__ = __add__


class Index:
    def __index__(self) -> int:
        return SIGN + 1


class Real:
    def __float__(self) -> float:
        return float(SIGN)


class Indexed:
    def __getitem__(self, place: int) -> int:
        if place >= SIGN + 2:
            raise IndexError
        return place


ASKED, INDEX, REAL, INDEXED = Asked(), Index(), Real(), Indexed()


def length(values: Any) -> int:
    return len(list(values))


ASKING: dict[str, Callable[[Any], Any]] = {
    "abs": lambda x: x * operator.abs(ASKED),
    "pos": lambda x: x * operator.pos(ASKED),
    "inv": lambda x: x * operator.inv(ASKED),
    "truth": lambda x: x * operator.truth(ASKED),
    "ascii": lambda x: x * len(ascii(ASKED)),
    "bytes": lambda x: x * len(bytes(INDEX)),
    "combinations": lambda x: x * length(itertools.combinations([1, 2, 3], INDEX)),
    "islice": lambda x: x * length(itertools.islice([1, 2, 3], INDEX)),
    "enumerate": lambda x: x * next(enumerate([1], INDEX))[0],
    "tee": lambda x: x * len(itertools.tee([1], INDEX)),
    "fsum": lambda x: x * math.fsum([REAL]),
    "prod": lambda x: x * math.prod([1, ASKED]),
    "accumulate": lambda x: x * list(itertools.accumulate([1, ASKED]))[-1],
    "filterfalse": lambda x: x * length(itertools.filterfalse(None, [ASKED])),
    "takewhile": lambda x: x * length(itertools.takewhile(bool, [ASKED])),
    "compress": lambda x: x * length(itertools.compress([1], [ASKED])),
    "list": lambda x: x * len(list(INDEXED)),
    "tuple": lambda x: x * len(tuple(INDEXED)),
    "zip": lambda x: x * length(zip(INDEXED, [1, 2, 3], strict=False)),
    "zip_longest": lambda x: x * length(itertools.zip_longest(INDEXED)),
    "chain": lambda x: x * length(itertools.chain(INDEXED)),
    "map": lambda x: x * length(map(str, INDEXED)),
    "deque": lambda x: x * len(collections.deque(INDEXED)),
    "sorted": lambda x: x * len(sorted(INDEXED)),
    "max": lambda x: x * max(INDEXED),
}


@pytest.mark.parametrize("name", ASKING)
def test_what_native_code_asks_of_objects_is_seen(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, x = ASKING[name], torch.ones(2)
    fast = framefuse.compile(function)
    for sign in (1, 0, 1):
        monkeypatch.setitem(globals(), "SIGN", sign)
        for _ in range(3):
            assert torch.equal(fast(x), function(x))
    assert compiled_function(fast).dispatch.hits >= 4  # type: ignore[union-attr]
