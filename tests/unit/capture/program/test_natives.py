"""The rows of native callables: one for each, none that is never reached, none missing; and programs that hand native
code something to call.
"""

import ast
import builtins
import collections
import copy
import functools
import inspect
import itertools
import math
import operator
import re
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.capture import run
from framefuse.capture.callables import unseen
from framefuse.capture.callables.mutations import MUTATORS
from framefuse.capture.callables.unseen import HASHING
from framefuse.capture.interp.registry import SPECIALS, special
from framefuse.capture.program.methods import METHODS, NOTHING, Method, row_of
from framefuse.capture.program.natives import (
    COMPARISONS,
    MADE_FROM,
    NATIVES,
    STANDS_FOR,
    TRUTH,
    Native,
    equivalent,
    known_as,
)

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


def test_equivalents_take_what_they_stand_for() -> None:
    """By the same names where it takes arguments by name, and by place alone where it does that."""
    for target, native in NATIVES.items():
        try:
            told = inspect.signature(target)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            continue
        if native.equivalent is None:
            continue
        taken = inspect.signature(native.equivalent)
        for own, other in zip(told.parameters.values(), taken.parameters.values(), strict=True):
            assert own.kind is other.kind, (target, own, other)
            assert own.kind is own.POSITIONAL_ONLY or own.name == other.name, (target, own, other)


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
    assert {name for name, value in found.items() if value not in NATIVES} <= {"setitem", "delitem", "iconcat"}, (
        "new in CPython: its row goes to capture/known.py"
    )
    assert not any(known_as(value).pure for name, value in found.items() if re.fullmatch("i[a-z]+", name) and
                   name in ("iadd", "iand", "iconcat", "ifloordiv", "ilshift", "imatmul", "imod", "imul", "ior", "ipow",
                            "irshift", "isub", "itruediv", "ixor"))  # fmt: skip


def test_no_row_says_nothing() -> None:
    assert [target for target, row in NATIVES.items() if row == Native()] == []


def test_what_is_never_asked_stands_in_no_row() -> None:
    for target, row in NATIVES.items():
        kind = type(target)
        assert not (row.special and row.equivalent), target  # the special returns before the equivalent is looked for
        assert isinstance(target, type) or not row.keeps, target  # asked of classes alone
        assert isinstance(target, type) or kind is types.FunctionType or row.equivalent or not row.calls, target
        assert kind is types.FunctionType or not row.holds, target  # of Python's functions alone
        assert kind is not types.FunctionType or not (row.keeps_numbers or row.reads_value), target
        assert row.pure or not (row.keeps or row.keeps_numbers), target  # of pure ones alone
        assert row.pure or not (row.asks or row.compares or row.iterates or row.shows), target
        assert kind is not types.FunctionType or not (row.asks or row.compares or row.iterates or row.shows), target
        assert row.equivalent is None or row.walks != "alone", target  # each equivalent walks what stands alone


def test_every_equivalent_stands_for_its_callable() -> None:
    for target, row in NATIVES.items():
        if row.equivalent is not None:
            assert STANDS_FOR[row.equivalent] is target
            assert row.equivalent.__name__.rstrip("_") == target.__name__  # type: ignore[attr-defined]


# ---- rows against what native code does ----------------------------------------------------------------------------

GIVEN_BACK: dict[str, Any] = {
    "__index__": 1, "__int__": 1, "__float__": 1.0, "__complex__": 1j, "__len__": 2, "__bool__": True, "__hash__": 5,
    "__length_hint__": 2, "__str__": "a", "__repr__": "a", "__format__": "a", "__bytes__": b"a", "__eq__": False,
    "__lt__": False, "__round__": 1, "__trunc__": 1, "__floor__": 1, "__ceil__": 1,
}  # fmt: skip
ITERATION = frozenset(("__iter__", "__next__", "__index__", "__length_hint__", "__len__"))
TEXT = frozenset(("__str__", "__repr__", "__format__"))
LOOKED_FOR = frozenset(("__hash__", "__eq__"))


class Probe:
    """Notes which of its special methods are called."""

    asked: ClassVar[set[str]] = set()


def _noting(name: str) -> Callable[..., Any]:
    def method(self: Probe, *given: Any) -> Any:
        Probe.asked.add(name)
        if name == "__iter__":
            return iter([1, 2])
        if name == "__next__":
            raise StopIteration
        return GIVEN_BACK.get(name, NotImplemented)

    return method


for _name in (
    *MADE_FROM, *TRUTH, *COMPARISONS, "__next__", "__call__", "__getitem__", "__contains__", "__abs__", "__pos__",
    "__invert__", "__neg__", "__add__", "__radd__", "__sub__", "__rsub__", "__mul__", "__rmul__", "__mod__",
    "__rmod__", "__and__", "__rand__", "__or__", "__ror__", "__xor__", "__rxor__", "__reversed__", "__missing__",
):  # fmt: skip
    setattr(Probe, _name, _noting(_name))
P = Probe()
SHAPES: list[tuple[Any, ...]] = [
    (P,), (P, P), (P, P, P), (1, P), (P, 1), ("a", P), (P, "a"), (0.5, P), ([P],), ([P, P],), ([P], [P]), ([1.0], [P]),
    ([1, 2], P), ([1, 2], P, P), ([(P, 1)],), ({1: 2}, P), ({P},), ({P: 1},), (slice(P, None),), (slice(P, None), [1]),
]  # fmt: skip
OWNERS: list[Any] = [
    [3, 1, 2], (3, 1, 2), "abc", b"abc", bytearray(b"abc"), {1: 2}, {1, 2}, frozenset((1, 2)), range(4), slice(1, 2),
    collections.deque([1, 2]), collections.OrderedDict({1: 2}), collections.defaultdict(list, {1: [2]}), 5, 2.5, 1j,
]  # fmt: skip
# Of all objects: the interpreter does these itself, or they read the class alone.
OF_ALL = frozenset(dir(object)) - {"__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__", "__format__",
                                   "__repr__", "__str__", "__init__", "__new__"} | {
    "__class_getitem__", "__getnewargs__", "__getnewargs_ex__", "default_factory"
}  # fmt: skip


def asked_of_arguments(function: Callable[..., Any], row: Native | Method) -> set[str]:
    """The special methods that a native callable asks of what it is given, and its row does not name."""
    left = set()
    for args in SHAPES:
        Probe.asked = set()
        try:
            result = function(*args)
            if type(result).__module__ == "itertools":
                list(itertools.islice(result, 4))
        except Exception:
            result = None
        asked = Probe.asked - set(row.asks) - set(row.compares)
        asked -= ITERATION if row.iterates else set()
        asked -= TEXT if row.shows or row.compares else set()  # what is not found is shown in the text of the error
        asked -= {"__index__"} if isinstance(row, Method) and row.indexes else set()
        if isinstance(getattr(function, "__self__", None), HASHING) or isinstance(result, HASHING):
            asked -= LOOKED_FOR  # capture/callables/unseen.py sees to what dicts and sets hash
        left |= asked
    return left


def runs_as_it_is(target: Any, row: Native) -> bool:
    """Whether native code itself runs with the arguments of the call."""
    made = isinstance(target, type) and any(
        type(getattr(target, name)) is types.FunctionType for name in ("__new__", "__init__")
    )
    of_torch = (getattr(target, "__module__", None) or "").partition(".")[0] == "torch"
    return row.pure and not (row.special or row.equivalent or made or of_torch)


def test_rows_of_callables_name_all_that_these_ask_of_their_arguments() -> None:
    natives = {target: row for target, row in NATIVES.items() if type(target) is not types.FunctionType}
    holes = {target: asked_of_arguments(target, row) for target, row in natives.items() if runs_as_it_is(target, row)}
    assert len(holes) > 50 and {target: asked for target, asked in holes.items() if asked} == {}


@pytest.mark.parametrize("owner", OWNERS, ids=lambda value: type(value).__name__)
def test_rows_of_methods_name_all_that_these_ask_of_their_arguments(owner: Any) -> None:
    holes = {}
    for name in sorted(set(dir(owner)) - OF_ALL):
        method = getattr(copy.copy(owner), name)
        if callable(method):
            holes[name] = asked_of_arguments(method, METHODS.get(name, NOTHING))
    assert len(holes) > 4 and {name: asked for name, asked in holes.items() if asked} == {}


def test_every_row_of_a_method_is_one_of_some_type_and_says_something() -> None:
    owners = [*OWNERS, itertools.chain(), re.compile("a")]
    later = set() if sys.version_info >= (3, 12) else {"__buffer__"}
    assert METHODS.keys() - {name for owner in owners for name in dir(owner)} == later
    assert [name for name, row in METHODS.items() if row == Method()] == []
    for name, row in METHODS.items():
        assert row.keeps is None or name in MUTATORS or row.gives, name  # asked where something may be kept
        for kind in row.indexes:
            assert name in dir(kind) or len(row.indexes) > 1, name


def test_facts_about_callables_stand_in_their_rows_alone() -> None:
    """No file beside the tables lists names of methods or builtins."""
    assert {target for target in (list.append, [].append, dict.get) if type(row_of(target)) is not Method} == set()
    assert row_of(len) is NATIVES[len] and row_of(dict) is NATIVES[dict] and row_of(math.sin) is NATIVES[math.sin]
    folder = Path(unseen.__file__).parent
    for file in (folder / "unseen.py", folder / "policy.py", folder / "native_calls.py", folder / "dict_views.py"):
        lists = [
            node
            for node in ast.walk(ast.parse(file.read_text()))
            if isinstance(node, (ast.Tuple, ast.Set, ast.List))
            and sum(isinstance(part, ast.Constant) and part.value in METHODS for part in node.elts) > 6
        ]
        assert lists == [], file


# ---- programs ------------------------------------------------------------------------------------------------------

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

    def __add__(self, other: Any) -> Any:
        return SIGN


class Indexed:
    def __getitem__(self, place: int) -> int:
        if place >= SIGN + 2:
            raise IndexError
        return place


class Letters:
    def __getitem__(self, place: int) -> str:
        return "xy" if SIGN == 1 else "x"


ASKED, INDEX, REAL, INDEXED, LETTERS = Asked(), Index(), Real(), Indexed(), Letters()


# What is told of arguments by their content: native code reads it where nobody sees.
CONTENT: dict[str, Callable[[Any, Any], Any]] = {
    "ascii": lambda x, v: x * len(ascii([v])),
    "intersection": lambda x, v: x * len({1, 2, 3}.intersection_update(v) or v),
    "difference": lambda x, v: _changed(x, "difference_update", v),
    "symmetric difference": lambda x, v: _changed(x, "symmetric_difference_update", v),
    "and": lambda x, v: _changed(x, "__iand__", set(v)),
    "or": lambda x, v: _changed(x, "__ior__", set(v)),
}


def _changed(x: Any, name: str, other: Any) -> Any:
    values = {1, 2, 3}
    getattr(values, name)(other)
    return x * len(values)


@pytest.mark.parametrize("name", CONTENT)
def test_content_that_native_code_reads_is_guarded(name: str) -> None:
    function, x = CONTENT[name], torch.ones(2)
    fast = framefuse.compile(function)
    for _ in range(3):
        for values in ({1}, {1, 2}, {1, 5, 10}):
            assert torch.equal(fast(x, values), function(x, values))
    assert compiled_function(fast).dispatch.hits >= 3  # type: ignore[union-attr]


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
    "ljust": lambda x: x * len("a".ljust(INDEX)),
    "split": lambda x: x * len("a b c d".split(" ", INDEX)),
    "to bytes": lambda x: x * len((1).to_bytes(INDEX, "big")),
    "translate": lambda x: x * len("012".translate(LETTERS)),
    "count": lambda x: x * list(itertools.islice(itertools.count(REAL), 2))[1],
    "repeat": lambda x: x * length(itertools.repeat(1, INDEX)),
    "in place": lambda x: x * len([1].__iadd__(INDEXED)),
    "first index": lambda x: x * operator.indexOf(INDEXED, 1),
    "dist": lambda x: x * math.dist([REAL], [3.0]),
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
