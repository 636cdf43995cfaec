"""A type is as it was when the same things lie on its classes, whatever was assigned in between."""

from __future__ import annotations

from typing import Any

import pytest

from framefuse import _native
from framefuse.guards.check import Hit, check
from framefuse.guards.members import Members
from framefuse.ir.plan import GuardProgram
from framefuse.native import abi

abi.initialise()


def classes() -> tuple[Any, Any]:
    class Base:
        rate = 0.5
        other = 1

        def h(self) -> int:
            return 1

    class Child(Base):
        pass

    return Base, Child


def change_rate(base: Any, child: Any) -> None:
    base.rate = 0.75


def change_other(base: Any, child: Any) -> None:
    base.other = 2


def replace_method(base: Any, child: Any) -> None:
    base.h = lambda self: 2


def shadow_rate(base: Any, child: Any) -> None:
    child.rate = 0.5


def delete_rate(base: Any, child: Any) -> None:
    del base.rate


def rate_becomes_a_property(base: Any, child: Any) -> None:
    base.rate = property(lambda self: 0.5)


def replace_bases(base: Any, child: Any) -> None:
    child.__bases__ = (classes()[0],)


def assign_the_same(base: Any, child: Any) -> None:
    method = base.h
    base.h = None
    base.h = method
    base.fresh = 1
    del base.fresh


@pytest.mark.parametrize(
    ("change", "held", "free"),
    [
        (change_rate, False, True), (change_other, False, False), (replace_method, False, False),
        (shadow_rate, False, False), (delete_rate, False, False), (rate_becomes_a_property, False, False),
        (replace_bases, False, False), (assign_the_same, True, True),
    ],
)  # fmt: skip
def test_changes(change: Any, held: bool, free: bool) -> None:
    for numbers, expected in ((False, held), (True, free)):
        base, child = classes()
        places = frozenset([(base, "rate")] if numbers else [])
        members = Members(child, places, {})
        program = GuardProgram(
            None, (("object", 0, child), ("version", 0, (_native.type_tag(child), members))), 1, 0, ("", "")
        )
        native = _native.GuardSet(program)
        assert members(child) and isinstance(native.check(()), tuple) and isinstance(check(program, ()), Hit)
        change(base, child)
        for _ in range(2):
            assert members(child) is expected
            assert isinstance(native.check(()), tuple) is expected
            assert isinstance(check(program, ()), Hit) is expected


def test_base_classes_are_read_once() -> None:
    base, child = classes()
    known: dict[type, dict[str, Any]] = {}
    first, second = Members(child, frozenset(), known), Members(base, frozenset(), known)
    assert first.seen[1][1] is second.seen[0][1]
    assert {each for each, _ in first.seen} == {base, child}
