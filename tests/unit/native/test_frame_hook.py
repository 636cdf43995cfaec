"""A function with an open door runs the plan whose guards hold, whoever calls it; the rest runs as before."""

from __future__ import annotations

import functools
import sys
from typing import Any

import pytest
from tests.unit.native.plans import Writer

from framefuse import _native
from framefuse.ir.plan import GuardProgram
from framefuse.native import abi


@pytest.fixture(scope="module", autouse=True)
def initialised() -> None:
    abi.initialise()


def entry(writer: Writer, value: Any, *checks: tuple[Any, ...], arguments: int) -> _native.Compiled:
    """An entry that returns ``value`` where the checks on registers (the bound arguments) hold."""
    loads = tuple(("arg", index, index) for index in range(arguments))
    program = GuardProgram(None, (*loads, *checks), arguments, 4, ("",) * (arguments + len(checks)))
    return _native.Compiled(_native.GuardSet(program), _native.PlanProgram(writer.plan(value)))


def plain(a: int, b: int = 2) -> int:
    """Adds."""
    return a + b


def various(a: Any, *rest: Any, key: Any = 5, **more: Any) -> Any:
    return "eager"


def test_hits_misses_and_declines() -> None:
    missed: list[Any] = []
    dispatch = _native.Dispatch(plain, lambda args, kwargs: missed.append((args, kwargs)) or "missed")
    dispatch.add(entry(Writer(), ("const", "hit"), ("int_eq", 0, 1), arguments=2))
    declining = Writer()
    declining.call(int, (("const", "x"),))
    dispatch.add(entry(declining, ("const", 0), ("int_eq", 0, 7), arguments=2))
    _native.open_door(dispatch)
    for _ in range(50):
        assert plain(1) == plain(a=1) == dispatch(1) == "hit"
        assert list(map(plain, [1, 1])) == ["hit", "hit"]
        assert plain(7, 1) == 8 and dispatch(7, 1) == 8  # eager after the plan gave up
        assert functools.reduce(plain, [1, 2]) == "hit"
    assert (dispatch.calls, dispatch.hits, dispatch.declines, dispatch.misses) == (400, 300, 100, 0)
    assert plain(3) == "missed" and missed == [((3, 2) if sys.version_info < (3, 12) else (3,), {})]
    _native.close_door(dispatch)
    assert plain(1) == 3 and dispatch(1) == "hit"


def test_registers_are_the_bound_locals() -> None:
    dispatch = _native.Dispatch(various, None)
    parts = ("tuple", *(("register", index) for index in range(4)))
    dispatch.add(entry(Writer(), parts, arguments=4))
    _native.open_door(dispatch)
    for _ in range(50):
        assert various(1, 2, 3, key=4, z=6) == (1, 4, (2, 3), {"z": 6})
        assert various(*[1]) == (1, 5, (), {})
    with pytest.raises(TypeError, match="missing 1 required"):
        various()
    _native.close_door(dispatch)
    assert various(1) == "eager" and dispatch.hits == 100


def test_methods() -> None:
    class Holder:
        def method(self, x: int) -> Any:
            return "eager"

        def __getitem__(self, key: int) -> Any:
            return "eager"

    holder = Holder()
    for name, call in (("method", lambda: holder.method(1)), ("__getitem__", lambda: holder[1])):
        assert call() == "eager"
        dispatch = _native.Dispatch(vars(Holder)[name], None)
        dispatch.add(entry(Writer(), ("tuple", ("register", 0), ("register", 1)), arguments=2))
        _native.open_door(dispatch)
        assert [call() for _ in range(50)] == [(holder, 1)] * 50
        del dispatch
        assert [call() for _ in range(50)] == ["eager"] * 50
