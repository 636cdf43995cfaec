"""Functions that stand for special methods which are none: static methods, callable objects, descriptors, caches."""

from __future__ import annotations

import functools
import types

from framefuse.ir.values import Value


def of_class(holder: Value, name: str) -> Value:
    """What lies under ``name`` on the class of ``holder``, bound as Python binds a special method; the machine does it.
    """
    raise NotImplementedError


@functools.cache
def by_name(name: str) -> types.FunctionType:
    """Calls the special method of this name, whatever it is."""

    def method(holder: Value, /, *args: Value, **kwargs: Value) -> Value:
        return of_class(holder, name)(*args, **kwargs)

    assert isinstance(method, types.FunctionType)
    return method
