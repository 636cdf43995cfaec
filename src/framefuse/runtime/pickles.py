"""Says how a compiled function is pickled: by its name, as functions are, or by what it was compiled from."""

from __future__ import annotations

import sys
import types
from inspect import getattr_static
from operator import attrgetter

from framefuse.ir.values import Arguments, Function, Value

Reduced = str | tuple[Function, Arguments]


def reduced(dispatch: object, function: Function, owner: Value, recompile: Function | None) -> Reduced:
    """What ``__reduce__`` gives: a name in the function's module, under which ``dispatch`` itself is found, or a call
    that compiles again.
    """
    name = _name(dispatch, function)
    if name is not None:
        return name
    if recompile is None:
        raise TypeError(f"cannot pickle {dispatch!r}: pickle its __wrapped__ and compile again after loading")
    return recompile, (_original(function, owner),)


def _name(dispatch: object, function: Function) -> str | None:
    module = sys.modules.get(getattr(function, "__module__", ""))
    name = getattr(function, "__qualname__", "")
    try:
        if attrgetter(name)(module) is dispatch:
            return str(name)
    except AttributeError:  # of a local function
        pass
    return next((each for each, value in vars(module).items() if value is dispatch), None) if module else None


def _original(function: Function, owner: Value) -> Value:
    """What the user gave to be compiled."""
    if owner is None:
        return function
    return owner if getattr_static(type(owner), "__call__", None) is function else types.MethodType(function, owner)
