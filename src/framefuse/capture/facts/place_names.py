"""Names the places of objects, each by one name in whichever way it is reached."""

from __future__ import annotations

from framefuse.ir.values import Value

Place = tuple[int, str, Value]


def place_of(holder: Value, part: str, key: Value) -> Place:
    """One name for a place that can be reached in two ways: an attribute is an entry of the instance dict."""
    if part == "attr":
        try:
            return (id(object.__getattribute__(holder, "__dict__")), "item", (str, key))
        except AttributeError:
            pass
    return (id(holder), part, (type(key), key))
