"""Turns scratch objects into knowledge of which changes CPython shows: by version tags, or by reports to watchers."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from framefuse import _native


class _Plain:
    def __init__(self) -> None:
        self.first = 1
        self.second = 2


def _store(instance: _Plain, value: object) -> None:
    instance.first = value  # type: ignore[assignment]  # a site that CPython specialises


def probe() -> frozenset[str]:
    """Of ``dict_tags``, ``type_tags`` and ``dict_watchers`` those that are sound here."""
    good = set()
    if _instances_move() and _plain_dicts_move():
        good.add("dict_tags")
    if _types_move():
        good.add("type_tags")
    if _reports_come():
        good.add("dict_watchers")
    return frozenset(good)


def _reports_come() -> bool:
    """Whether a guard set over a watched dict reads its facts again after every kind of change, and only then."""
    if not _native.watch_open(True):
        return False
    try:
        return _reports_of_instances_come() and _reports_of_plain_dicts_come()
    finally:
        _native.watch_open(False)


def _watching(mapping: dict[Any, Any]) -> Callable[[], bool]:
    """Says whether a change of ``mapping`` was noticed since it was last asked."""
    program = SimpleNamespace(
        state=None, instructions=(("object", 0, mapping), ("watch", mapping, 0)), registers=1, numbers=0
    )
    guards = _native.GuardSet(program)  # type: ignore[arg-type]  # all of a GuardProgram that C code reads
    guards.check(())

    def noticed() -> bool:
        before = guards.reruns
        guards.check(())
        return guards.reruns != before

    return noticed


def _reports_of_instances_come() -> bool:
    instance = _Plain()
    for value in range(200):
        _store(instance, value)
    mapping = _native.instance_dict(instance)
    if mapping is None:
        return False
    noticed = _watching(mapping)
    if noticed():
        return False
    for _ in range(4):  # few enough that the dict is still watched at the end
        _store(instance, object())
        if not noticed():
            return False
    return not noticed()


def _reports_of_plain_dicts_come() -> bool:
    mapping: dict[Any, Any] = {"a": 1}
    for change in _changes(mapping):
        noticed = _watching(mapping)
        if noticed():
            return False
        change()
        if not noticed():
            return False
    return True


def _changes(mapping: dict[Any, Any]) -> tuple[Callable[[], Any], ...]:
    return (
        lambda: mapping.update(a=2), lambda: mapping.setdefault("b", 3), lambda: mapping.pop("b"),
        lambda: mapping.update(c=4),
        lambda: mapping.popitem(), mapping.clear, lambda: mapping.__setitem__("d", 1), lambda: mapping.__delitem__("d"),
    )  # fmt: skip


def _instances_move() -> bool:
    """A specialised attribute store has to move the tag of the dict that the instance shares its values with."""
    instance = _Plain()
    for value in range(200):
        _store(instance, object() if value % 2 else value)
    mapping = _native.instance_dict(instance)
    if mapping is None:
        return False
    for value in range(200):
        before = _native.dict_tag(mapping)
        _store(instance, object() if value % 2 else value)
        if _native.dict_tag(mapping) == before:
            return False
    return True


def _plain_dicts_move() -> bool:
    mapping: dict[Any, Any] = {"a": 1}
    for change in _changes(mapping):
        before = _native.dict_tag(mapping)
        change()
        if _native.dict_tag(mapping) == before:
            return False
    return True


def _types_move() -> bool:
    base = type("base", (), {"x": 1})
    derived = type("derived", (base,), {})
    for change in (lambda: setattr(base, "x", 2), lambda: setattr(derived, "y", 3), lambda: delattr(base, "x")):
        before = _native.type_tag(derived)
        change()
        if before == 0 or _native.type_tag(derived) == before:
            return False
    return True
