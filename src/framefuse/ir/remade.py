"""Makes an object of the standard library again from what ``__reduce_ex__`` told of it."""

from __future__ import annotations

from collections.abc import Callable

from framefuse.ir.values import Value


def remade(make: Callable[..., Value], args: tuple[Value, ...], state: Value) -> Value:
    """A new object in the same state."""
    value = make(*args)
    if state is not None:
        value.__setstate__(state)
    return value


def copied(value: Value) -> Value:
    """A hash function that is fed anew from where this one stands."""
    return value.copy()
