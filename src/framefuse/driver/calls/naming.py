"""Names objects that a program reaches by its modules, so that another process finds its own ones by these names.

Nothing of the program is imported here and no attribute is computed: what a name leads to lies in the dicts of modules
and classes.
"""

from __future__ import annotations

import enum
import functools
import importlib
import sys
import types
from collections.abc import Iterable, Iterator

import torch

from framefuse import _native
from framefuse.driver.programs.functions import function, named
from framefuse.driver.programs.records import Unstorable
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value

Name = tuple[str, ...]  # how it is found, then what that asks for

# Where the function lies that a decorator or a descriptor holds, with the classes that have it there.
WITHIN: dict[str, tuple[type, ...]] = {
    "__func__": (staticmethod, classmethod),
    "fget": (property,),
    "fset": (property,),
    "func": (functools.cached_property,),
    "__wrapped__": (types.FunctionType, functools._lru_cache_wrapper),
}
HOLDERS: tuple[tuple[str, ...], ...] = ((), ("__func__",), ("fget",), ("fset",), ("func",))
STEPS = tuple((*first, *["__wrapped__"] * deep) for deep in range(4) for first in HOLDERS)


def name_of(value: Value) -> Name | None:
    """A name by which another process finds its own ``value``; None where there is none."""
    if is_a(value, types.ModuleType):
        name = vars(value).get("__name__")
        return ("module", name) if is_a(name, str) and sys.modules.get(name) is value else None
    if is_a(value, enum.Enum):
        kind = name_of(type(value))
        return ("member", *kind[1:], value.name) if kind is not None and _is_member(type(value), value) else None
    if type(value) is types.MethodWrapperType and value.__name__ == "__get__":  # of an attribute, as Tensor.T
        attribute = name_of(value.__self__) if type(value.__self__) is types.GetSetDescriptorType else None
        return None if attribute is None else ("getter", *attribute)
    for name in _candidates(value):
        try:
            if found(name) is value:
                return name
        except (LookupError, AttributeError, TypeError):
            continue
    try:
        return ("function", *named(value))
    except Unstorable:
        return None


def found(name: Name) -> Value:
    """What a name leads to in this process; raises LookupError where that is nothing."""
    how, *parts = name
    if how == "module":
        return _module(parts[0])
    if how == "function":
        return function(parts[0], parts[1])
    if how == "getter":  # another object each time it is asked for
        getter: Value = found(tuple(parts)).__get__
        return getter
    if how == "member":
        *kind, member = parts
        return _at(kind)._member_map_[member]
    if how == "globals":
        return vars(_module(parts[0]))
    if how == "owner":
        return _at(parts).__self__
    return _at(parts)


def _module(name: str) -> types.ModuleType:
    """A module that is there; of framefuse's own, which a process imports when it needs them, any."""
    if name.startswith("framefuse.") and name not in sys.modules:
        return importlib.import_module(name)
    return sys.modules[name]


def _at(parts: list[str]) -> Value:
    """What lies at a path below a module, or within it by further steps."""
    module, path, *steps = parts
    held: Value = _module(module)
    for name in path.split("."):
        if is_a(held, types.ModuleType):
            held = vars(held)[name]
        elif is_a(held, type):
            held = _native.type_lookup(held, name)
        else:
            raise LookupError(name)
    return within(held, steps)


def within(held: Value, steps: Iterable[str]) -> Value:
    """What lies in a decorated function or a descriptor."""
    for step in steps:
        if type(held) not in WITHIN[step]:
            raise LookupError(step)
        held = vars(held)[step] if step in ("func", "__wrapped__") else getattr(held, step)
    return held


def parts_of(member: Value) -> Iterator[tuple[Value, tuple[str, ...]]]:
    """What lies on a class under a name, and the function that it holds, with the steps to each."""
    yield member, ()
    for step, kinds in WITHIN.items():
        if type(member) in kinds and step != "__wrapped__":
            yield within(member, (step,)), (step,)


def _candidates(value: Value) -> list[Name]:
    """The names that ``value`` may have by what it says of itself, or by the module that defines its class."""
    kind = type(value)
    if value is sys.modules:
        return [("at", "sys", "modules")]
    if value is torch.default_generator:
        return [("at", "torch", "default_generator")]
    if is_a(value, (type, types.FunctionType, functools._lru_cache_wrapper)):
        module, path = value.__module__, value.__qualname__
        if not is_a(module, str) or "<" in path:
            return []
        steps = HOLDERS[:1] if is_a(value, type) else STEPS
        names: list[Name] = [("at", module, path, *each) for each in steps]
        if is_a(value, type) and module == "builtins":  # those that Python names in types alone
            names += [("at", "types", name) for name, held in vars(types).items() if held is value]
        return names
    home = sys.modules.get(kind.__module__)
    if home is None or kind.__module__ == "builtins":
        return []
    return [("at", kind.__module__, name) for name, held in vars(home).items() if held is value]


def _is_member(kind: type[enum.Enum], value: enum.Enum) -> bool:
    return kind._member_map_.get(value.name) is value
