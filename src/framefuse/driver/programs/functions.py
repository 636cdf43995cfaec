"""Gives functions of torch and of framefuse a name by which another process finds the same ones, and knows them."""

from __future__ import annotations

import importlib
import operator
import os
from collections.abc import Iterator
from pathlib import Path
from types import (
    BuiltinFunctionType,
    FunctionType,
    GetSetDescriptorType,
    MethodDescriptorType,
    MethodWrapperType,
    ModuleType,
    WrapperDescriptorType,
)

import torch

from framefuse.driver.programs.records import Unstorable
from framefuse.ir.values import Value

OWNERS = frozenset(("framefuse", "torch", "operator", "math", "builtins"))
# Functions of C code: nothing of them changes while their library is the same.
NATIVE = (
    BuiltinFunctionType, MethodDescriptorType, GetSetDescriptorType, WrapperDescriptorType, MethodWrapperType,
)  # fmt: skip
_HOMES = tuple(os.path.join(folder.parent, "") for folder in (Path(torch.__file__).parent, Path(__file__).parents[2]))
_FOLDERS = tuple(os.path.join(home, name, "") for home, name in zip(_HOMES, ("torch", "framefuse"), strict=True))


def named(value: Value) -> tuple[str, str]:
    """The module and the name in it of a function that every process has; raises Unstorable for others."""
    for module, name in _names(value):
        if isinstance(module, str) and isinstance(name, str) and module.partition(".")[0] in OWNERS:
            try:
                if function(module, name) is value:
                    return module, name
            except (ImportError, AttributeError):
                continue
    raise Unstorable(f"a function without a name: {value!r:.80}")


def known(value: Value) -> tuple[Value, ...]:
    """The same with what tells the function from another that a process may have set in its place."""
    return *named(value), *described(value)


def function(module: str, name: str, *told: Value) -> Value:
    """The function that was :func:`named`; raises Unstorable where it is :func:`known` and another one stands there."""
    if module.partition(".")[0] not in OWNERS:
        raise Unstorable(f"a function of {module}")
    found = operator.attrgetter(name)(importlib.import_module(module))
    if told and described(found) != told:
        raise Unstorable(f"another function than torch's or framefuse's own: {module}.{name}")
    return found


def _names(value: Value) -> Iterator[tuple[Value, Value]]:
    short = getattr(value, "__name__", None)
    yield getattr(value, "__module__", None), getattr(value, "__qualname__", None)
    yield "torch", short
    for holder in (getattr(value, "__self__", None), getattr(value, "__objclass__", None)):
        if isinstance(holder, type):
            yield holder.__module__, f"{holder.__qualname__}.{short}"
    yield "torch", f"Tensor.{short}"


def own_place(file: str) -> str | None:
    """Where a file of torch or framefuse lies in it, wherever that is installed; None for others."""
    for home, folder in zip(_HOMES, _FOLDERS, strict=True):
        if file.startswith(folder):
            return file[len(home) :]
    return None


def described(value: Value) -> tuple[Value, ...]:
    """What tells a function that a trace calls from all others: C code by its name, Python's by its place in torch or
    framefuse. Others may do another thing under the same name; for them it raises Unstorable.
    """
    if isinstance(value, NATIVE):
        owner = getattr(value, "__self__", None)
        if isinstance(value, MethodWrapperType) and isinstance(owner, GetSetDescriptorType):  # reads an attribute
            return (value.__name__, *described(owner))
        if owner is not None and not isinstance(owner, (type, ModuleType)):
            raise Unstorable(f"a method of an object: {value!r:.80}")
        holders = (owner, getattr(value, "__objclass__", None))
        classes = [f"{each.__module__}.{each.__qualname__}" for each in holders if isinstance(each, type)]
        return ("native", type(value).__name__, str(getattr(value, "__module__", "")), value.__name__, *classes)
    place = own_place(value.__code__.co_filename) if isinstance(value, FunctionType) else None
    if place is not None:
        return ("python", value.__module__, value.__qualname__, place, value.__code__.co_firstlineno)
    raise Unstorable(f"a function of the program: {value!r:.80}")
