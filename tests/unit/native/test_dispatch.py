"""A compiled function behaves as its function does, binds as CPython does, and finds the entry whose guards hold."""

from __future__ import annotations

import copy
import functools
import gc
import inspect
import pickle
import typing
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.native.plans import Writer

from framefuse import _native
from framefuse.ir.plan import GuardProgram
from framefuse.native import abi


@pytest.fixture(scope="module", autouse=True)
def initialised() -> None:
    abi.initialise()


def never(args: Any, kwargs: Any) -> Any:
    raise AssertionError("missed")


def entry(value: Any, *checks: tuple[Any, ...], arguments: int = 1) -> _native.Compiled:
    """An entry that returns ``value`` where the checks on registers (the bound arguments) hold."""
    loads = tuple(("arg", index, index) for index in range(arguments))
    program = GuardProgram(None, (*loads, *checks), arguments, 4, ("",) * (arguments + len(checks)))
    return _native.Compiled(_native.GuardSet(program), _native.PlanProgram(Writer().plan(value)))


def plain(a: int, b: int = 2) -> int:
    """Adds."""
    return a + b


class Owner:
    def method(self, x: int, *rest: int, key: int = 5, **more: int) -> Any:
        return self, x, rest, key, more


def test_a_hit_a_miss_and_a_decline() -> None:
    missed: list[Any] = []
    dispatch = _native.Dispatch(plain, lambda args, kwargs: missed.append((args, kwargs)) or "missed")
    assert dispatch(1) == "missed" and missed == [((1,), {})]
    dispatch.add(entry(("const", "hit"), ("int_eq", 0, 1), arguments=2))
    assert dispatch(1) == "hit" and dispatch(2, b=3) == "missed"
    assert missed[-1] == ((2,), {"b": 3})
    w = Writer()
    w.call(int, (("const", "x"),))
    program = GuardProgram(None, (("arg", 0, 0), ("int_eq", 0, 7)), 1, 0, ("", ""))
    dispatch.add(_native.Compiled(_native.GuardSet(program), _native.PlanProgram(w.plan(("const", 1)))))
    assert dispatch(7) == 9
    assert (dispatch.calls, dispatch.hits, dispatch.misses, dispatch.declines) == (4, 1, 2, 1)


def test_who_asked_is_told_once_of_an_entry_that_often_declines() -> None:
    told: list[_native.Compiled] = []

    def drop(vain: _native.Compiled) -> None:
        told.append(vain)
        dispatch.remove(vain)

    dispatch = _native.Dispatch(plain, never)
    writer = Writer()
    writer.call(int, (("const", "x"),))
    guards = _native.GuardSet(GuardProgram(None, (("arg", 0, 0),), 1, 0, ("",)))
    dispatch.add(_native.Compiled(guards, _native.PlanProgram(writer.plan(("const", 1))), None, drop))
    assert [dispatch(7) for _ in range(3)] == [9, 9, 9]
    assert len(told) == 1 and dispatch.entries == ()
    with pytest.raises(AssertionError, match="missed"):
        dispatch(7)


def test_entries_move_to_the_front() -> None:
    dispatch = _native.Dispatch(plain, never)
    entries = [entry(("const", n), ("int_eq", 0, n), arguments=2) for n in range(3)]
    for each in entries:
        dispatch.add(each)
    assert dispatch.entries == tuple(reversed(entries))
    assert dispatch(0) == 0 and dispatch.entries == (entries[0], entries[2], entries[1])
    assert [dispatch(n) for n in (0, 1, 2, 1, 0)] == [0, 1, 2, 1, 0]
    assert [each.hits for each in entries] == [3, 2, 1]
    dispatch.clear()
    assert dispatch.entries == ()


def test_switches() -> None:
    dispatch = _native.Dispatch(plain, never)
    dispatch.add(entry(("const", "hit"), arguments=2))
    assert dispatch(1) == "hit"
    dispatch.enabled = False
    assert dispatch(1) == 3
    dispatch.enabled, dispatch.bypass = True, True
    assert dispatch(1) == 3
    dispatch.bypass = False
    assert _native.bypass(True) is False
    assert dispatch(1) == 3
    assert _native.bypass(False) is True
    assert dispatch(1) == "hit"


NAMES = ("a", "b", "c", "d")


@st.composite
def functions(draw: Any) -> Any:
    """A function of any signature that returns its locals in order."""
    count = draw(st.integers(0, 3))
    only = draw(st.integers(0, count))
    defaults = draw(st.integers(0, count))
    keyword = draw(st.integers(0, 2))
    parts = [name + (f"={i + 10}" if i >= count - defaults else "") for i, name in enumerate(NAMES[:count])]
    if only:
        parts.insert(only, "/")
    if draw(st.booleans()):
        parts.append("*args")
    elif keyword:
        parts.append("*")
    parts += [f"k{i}" + draw(st.sampled_from(["", f"={i + 20}"])) for i in range(keyword)]
    if draw(st.booleans()):
        parts.append("**kwargs")
    space: dict[str, Any] = {}
    exec(f"def f({', '.join(parts)}):\n return tuple(locals().items())", space)
    return space["f"]


@settings(max_examples=500, deadline=None)
@given(
    functions(), st.lists(st.integers(), max_size=5),
    st.dictionaries(st.sampled_from(["a", "b", "k0", "k1", "z"]), st.integers()),
    st.booleans(),
)  # fmt: skip
def test_binding_is_cpythons(f: Any, args: list[int], kwargs: dict[str, int], owned: bool) -> None:
    owner = object() if owned else None
    dispatch = _native.Dispatch(f, None, owner=owner)
    everything = ([owner] if owned else []) + args
    try:
        expected = f(*everything, **kwargs)
    except TypeError as error:
        assert dispatch.bind(*args, **kwargs) is None
        with pytest.raises(TypeError) as caught:
            dispatch(*args, **kwargs)
        assert str(caught.value) == str(error)
    else:
        assert _native.bound_names(f.__code__) == tuple(name for name, _ in expected)
        assert dispatch.bind(*args, **kwargs) == tuple(value for _, value in expected)
        assert dispatch(*args, **kwargs) == expected
        dispatch.add(entry(("const", "hit"), arguments=len(expected)))
        assert dispatch(*args, **kwargs) == "hit"


def test_an_owner_comes_first() -> None:
    owner = Owner()
    seen: list[Any] = []
    dispatch = _native.Dispatch(
        Owner.method, lambda args, kwargs: seen.append((args, kwargs)) or Owner.method(*args, **kwargs), owner=owner
    )
    assert dispatch(1, 2, key=3, z=4) == (owner, 1, (2,), 3, {"z": 4}) == seen[0][0][0].method(1, 2, key=3, z=4)
    assert seen == [((owner, 1, 2), {"key": 3, "z": 4})]
    dispatch.enabled = False
    assert dispatch(1) == (owner, 1, (), 5, {})
    assert dispatch(*range(20))[2] == tuple(range(1, 20))


def test_changed_defaults_and_code() -> None:
    def f(a: int = 1) -> int:
        return a

    dispatch = _native.Dispatch(f, None)
    assert dispatch.bind() == (1,)
    f.__defaults__ = (9,)
    assert dispatch.bind() == (9,) and dispatch() == 9
    f.__code__ = (lambda a, b=0: a + b).__code__
    f.__defaults__ = (2,)
    assert dispatch.bind(1) == (1, 2) and dispatch(1) == 3


def test_callables_that_are_no_python_functions() -> None:
    for function, args in (
        (len, ([1],)),
        (functools.partial(plain, 1), ()),
        (Owner().method, (1,)),
        (torch.sin, (torch.ones(1),)),
    ):
        dispatch = _native.Dispatch(function, never)
        assert dispatch(*args) == function(*args) and dispatch.bind(*args) is None
    with pytest.raises(TypeError):
        _native.Dispatch(3, None)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _native.Dispatch(plain, 3)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        _native.Dispatch(plain, None).add(3)  # type: ignore[arg-type]


def test_an_entry_whose_plan_reads_more_than_its_guards_set_is_refused() -> None:
    guards = _native.GuardSet(GuardProgram(None, (), 1, 0, ()))
    with pytest.raises(ValueError):
        _native.Compiled(guards, _native.PlanProgram(Writer().plan(("register", 1))))
    with pytest.raises(ValueError):
        _native.Compiled(guards, _native.PlanProgram(Writer(bound=1).plan(("const", 1))))


def test_it_looks_like_its_function() -> None:
    plain.mark = "here"  # type: ignore[attr-defined]
    dispatch = _native.Dispatch(plain, never)
    assert (dispatch.__name__, dispatch.__qualname__, dispatch.__doc__, dispatch.__module__) == (
        "plain",
        "plain",
        "Adds.",
        __name__,
    )
    assert dispatch.__wrapped__ is plain and dispatch.function is plain and dispatch.mark == "here"
    assert inspect.signature(dispatch) == inspect.signature(plain) and inspect.unwrap(dispatch) is plain
    assert inspect.getsource(dispatch) == inspect.getsource(plain) and typing.get_type_hints(dispatch)["return"] is int
    assert dispatch.__defaults__ == (2,) and callable(dispatch) and "plain" in repr(dispatch)
    assert dispatch == dispatch and dispatch != plain and len({dispatch, dispatch}) == 1
    with pytest.raises(AttributeError):
        dispatch.nothing
    dispatch.own = 1  # type: ignore[attr-defined]
    assert dispatch.own == 1 and vars(dispatch) == {"own": 1}
    dispatch.__name__ = "other"
    assert dispatch.__name__ == "other" and plain.__name__ == "plain"


def test_decorators_take_it() -> None:
    dispatch = _native.Dispatch(plain, None)

    def other() -> None:
        """Another."""

    functools.update_wrapper(dispatch, other)
    assert dispatch.__name__ == "other" and dispatch.__wrapped__ is other and dispatch(1) == 3
    assert functools.partial(dispatch, 1)() == 3
    assert copy.copy(dispatch) is dispatch and copy.deepcopy([dispatch])[0] is dispatch
    with pytest.raises(TypeError, match="cannot pickle the compiled function"):
        pickle.dumps(dispatch)


def test_it_binds_as_a_method() -> None:
    class Holder:
        method = _native.Dispatch(lambda self, x: (self, x), None)
        static = staticmethod(_native.Dispatch(plain, None))
        of_class = classmethod(_native.Dispatch(lambda cls: cls, None))
        attribute = property(_native.Dispatch(lambda self: 3, None))

    holder = Holder()
    assert holder.method(1) == (holder, 1) == Holder.method(holder, 1)
    assert holder.static(1) == 3 and holder.of_class() is Holder and holder.attribute == 3
    holder.own = _native.Dispatch(plain, None)  # type: ignore[attr-defined]
    assert holder.own(1) == 3  # type: ignore[attr-defined]
    assert holder.method.__self__ is holder


def test_cycles_are_collected() -> None:
    def f() -> None:
        pass

    dispatch = _native.Dispatch(f, functools.partial(plain, f))
    f.dispatch = dispatch  # type: ignore[attr-defined]
    dispatch.add(entry(("const", dispatch), arguments=0))
    refs = [weakref.ref(f), weakref.ref(dispatch)]
    del f, dispatch
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_entries_cleared_while_one_runs() -> None:
    dispatch = _native.Dispatch(plain, None)
    w = Writer()
    w.call(dispatch.clear, ())
    program = GuardProgram(None, (), 0, 0, ())
    dispatch.add(_native.Compiled(_native.GuardSet(program), _native.PlanProgram(w.plan(("const", "done")))))
    assert dispatch(1) == "done" and dispatch(1) == 3


def test_endless_recursion_is_an_error_of_python() -> None:
    def f(x: int) -> int:
        return dispatch(x)

    dispatch = _native.Dispatch(f, None)
    with pytest.raises(RecursionError):
        dispatch(1)
    again = _native.Dispatch(f, lambda args, kwargs: f(*args))
    f.__globals__["dispatch_again"] = again
    with pytest.raises(RecursionError):
        again(1)
    del f.__globals__["dispatch_again"]


def test_nothing_leaks() -> None:
    import sys

    dispatch = _native.Dispatch(Owner.method, lambda args, kwargs: None, owner=Owner())
    argument, extra = object(), object()
    before = sys.getrefcount(argument), sys.getrefcount(extra), sys.getrefcount(dispatch.owner)
    for hit in (False, True):
        if hit:
            dispatch.add(entry(("register", 1), arguments=5))
        for _ in range(1000):
            dispatch(argument, extra, key=extra, other=extra)
            dispatch(argument)
            with pytest.raises(TypeError) if not _ else _nothing():
                dispatch() if not _ else None
    assert (sys.getrefcount(argument), sys.getrefcount(extra), sys.getrefcount(dispatch.owner)) == before


class _nothing:
    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        pass
