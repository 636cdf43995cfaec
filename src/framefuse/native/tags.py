"""Turns scratch objects into knowledge of which version tags of CPython move with every change."""

from __future__ import annotations

from typing import Any

from framefuse import _native


class _Plain:
    def __init__(self) -> None:
        self.first = 1
        self.second = 2


def _store(instance: _Plain, value: object) -> None:
    instance.first = value  # type: ignore[assignment]  # a site that CPython specialises


def probe() -> frozenset[str]:
    """Of ``dict_tags`` and ``type_tags`` those that are sound here."""
    good = set()
    if _instances_move() and _plain_dicts_move():
        good.add("dict_tags")
    if _types_move():
        good.add("type_tags")
    return frozenset(good)


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
    changes = (
        lambda: mapping.update(a=2), lambda: mapping.setdefault("b", 3), lambda: mapping.pop("b"),
        lambda: mapping.update(c=4),
        lambda: mapping.popitem(), mapping.clear, lambda: mapping.__setitem__("d", 1), lambda: mapping.__delitem__("d"),
    )  # fmt: skip
    for change in changes:
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
