"""Turns the recipe of a trace's result and effects into the plan's template and the Python callable that rebuilds
objects.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import operator
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from typing import TypeAlias

from framefuse.ir.classes import builtin_base, written_in_c
from framefuse.ir.facts import Source
from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.graph import Arg
from framefuse.ir.numbers import Expr, Real
from framefuse.ir.plan import Template
from framefuse.ir.trace import Build, Effect, Ref, formatted
from framefuse.ir.values import Value

Recipe: TypeAlias = Value  # a Build, Ref, Expr, Real or Source, or a constant of the program
RunTime: TypeAlias = Ref | Arg | Expr | Real | Source  # what only a run has
Leaf: TypeAlias = Callable[[RunTime], Template]
Leaves: TypeAlias = Sequence[Value]
Built: TypeAlias = dict[int, Value]  # by number of a recipe
PLAIN = ("tuple", "list", "dict", "set", "frozenset", "slice", "const", "source")


def result_template(result: Recipe, effects: Sequence[Effect], leaf: Leaf, plain: bool = True) -> Template:
    """The template that gives the call's result and, in one Python callable, replays effects and shares objects;
    without that callable where ``plain`` and none is needed.
    """
    if plain and not effects and is_plain(result):
        return plain_template(result, leaf)
    leaves: list[Value] = []
    program = Rebuild(_number(result, leaves), tuple(_number_effect(effect, leaves) for effect in effects))
    return ("build", program, *(leaf(part) for part in leaves))


def argument_template(value: Value, leaf: Leaf) -> Template:
    """The template of a call's argument: nested containers over Arg, Ref, Expr, Real, Source and constants."""
    if isinstance(value, (Arg, Ref, Expr, Real, Source)):
        return leaf(value)
    if type(value) in (tuple, list):
        parts = [argument_template(item, leaf) for item in value]
        if all(part[0] == "const" for part in parts):
            return ("const", type(value)([part[1] for part in parts]))  # sizes that are known are numbers
        return (type(value).__name__, *parts)
    if type(value) is dict:
        return ("dict", *((("const", key), argument_template(item, leaf)) for key, item in value.items()))
    if type(value) is slice:
        return ("slice", *(argument_template(item, leaf) for item in (value.start, value.stop, value.step)))
    return ("const", value)


def is_plain(recipe: Recipe) -> bool:
    """True when the recipe needs no Python code: tuples, named or not, lists, dicts, sets and slices of leaves, no
    object named twice.
    """
    if not isinstance(recipe, Build):
        return True
    if recipe.kind == "object":
        return is_plain_object(recipe)
    if recipe.kind == "namedtuple":
        return recipe.base is None and all(map(is_plain, recipe.parts))
    if recipe.kind not in PLAIN:
        return False
    pairs = recipe.parts if recipe.kind == "dict" else tuple((None, part) for part in recipe.parts)
    return all(is_plain(part) and (recipe.kind != "dict" or not isinstance(key, Build)) for key, part in pairs)


def is_plain_object(recipe: Build) -> bool:
    """Whether C code alone makes it: an instance with attributes, and entries where its class is a kind of dict."""
    builtin, base = builtin_base(recipe.value), recipe.base
    if builtin is not object and not (builtin in (dict, OrderedDict) and isinstance(base, Build)):
        return False
    entries = base.parts if isinstance(base, Build) else ()
    if base is not None and (builtin is object or base.kind != "dict" or not is_plain(base)):
        return False
    return all(is_plain(part) for _, part in (*entries, *recipe.parts))


def plain_template(recipe: Recipe, leaf: Leaf) -> Template:
    """The template of a plain recipe."""
    if isinstance(recipe, (Ref, Expr, Real, Source)):
        return leaf(recipe)
    if not isinstance(recipe, Build):
        return ("const", recipe)
    if recipe.kind == "const":
        return ("const", recipe.value)
    if recipe.kind == "source":
        return leaf(recipe.value)
    if recipe.kind == "dict":
        pairs = ((plain_template(key, leaf), plain_template(part, leaf)) for key, part in recipe.parts)
        return ("dict", *pairs)
    if recipe.kind == "object":
        entries = recipe.base.parts if recipe.base is not None else ()
        pairs_of = [
            tuple((plain_template(key, leaf), plain_template(part, leaf)) for key, part in pairs)
            for pairs in (entries, recipe.parts)
        ]
        return ("object", recipe.value, builtin_base(recipe.value), *pairs_of)
    classes = (recipe.value, builtin_base(recipe.value)) if recipe.kind == "namedtuple" else ()
    return (recipe.kind, *classes, *(plain_template(part, leaf) for part in recipe.parts))


# ---- rebuilding in Python --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a run-time value in the flat list that a rebuild receives."""

    index: int


def _number(recipe: Recipe, leaves: list[Value]) -> Recipe:
    """The recipe with each run-time leaf replaced by its index in ``leaves``, which grows."""
    if isinstance(recipe, (Ref, Expr, Real, Source)):
        leaves.append(recipe)
        return Place(len(leaves) - 1)
    if not isinstance(recipe, Build):
        return recipe
    if recipe.kind == "const":
        return recipe
    if recipe.kind == "source":
        leaves.append(recipe.value)
        return Place(len(leaves) - 1)
    if recipe.kind in ("dict", "object"):
        parts = tuple((_number(key, leaves), _number(part, leaves)) for key, part in recipe.parts)
    else:
        parts = tuple(_number(part, leaves) for part in recipe.parts)
    base = _number(recipe.base, leaves) if recipe.base is not None else None
    return Build(recipe.kind, recipe.value, parts, base, recipe.number)


def _number_effect(effect: Effect, leaves: list[Value]) -> Effect:
    target, key, value = (_number(part, leaves) for part in (effect.target, effect.key, effect.value))
    return Effect(effect.kind, target, key, value, effect.line)


class Rebuild:
    """Called with the run-time leaves: makes the objects of the recipe, applies the effects in order, gives the
    result.
    """

    __slots__ = ("effects", "result")

    def __init__(self, result: Recipe, effects: tuple[Effect, ...]) -> None:
        self.result = result
        self.effects = effects

    def __call__(self, *leaves: Value) -> Value:
        built: Built = {}
        for effect in self.effects:
            _apply(effect, leaves, built)
        return _make(self.result, leaves, built)


def _make(recipe: Recipe, leaves: Leaves, built: Built) -> Value:
    if type(recipe) is Place:
        return leaves[recipe.index]
    if type(recipe) is not Build:
        return recipe
    if recipe.kind == "same":
        return built[recipe.value]
    if recipe.number >= 0 and recipe.number in built:
        return built[recipe.number]
    return MAKERS[recipe.kind](recipe, leaves, built)


def _keep(recipe: Build, value: Value, built: Built) -> Value:
    if recipe.number >= 0:
        built[recipe.number] = value
    return value


def _parts(recipe: Build, leaves: Leaves, built: Built) -> list[Value]:
    return [_make(part, leaves, built) for part in recipe.parts]


def _make_list(recipe: Build, leaves: Leaves, built: Built) -> Value:
    value: list[Value] = _keep(recipe, [], built)  # registered before its parts: it may hold itself
    value.extend(_parts(recipe, leaves, built))
    return value


def _make_dict(recipe: Build, leaves: Leaves, built: Built) -> Value:
    value: dict[Value, Value] = _keep(recipe, {}, built)
    for key, part in recipe.parts:
        own = _make(key, leaves, built)  # before the value, which may know it
        value[own] = _make(part, leaves, built)
    return value


def _make_set(recipe: Build, leaves: Leaves, built: Built) -> Value:
    value: set[Value] = _keep(recipe, set(), built)
    value.update(_parts(recipe, leaves, built))
    return value


def _make_object(recipe: Build, leaves: Leaves, built: Built) -> Value:
    return _fill(recipe, recipe.value, recipe.parts, leaves, built)


def _make_instance(recipe: Build, leaves: Leaves, built: Built) -> Value:
    """An instance of a class that is made anew."""
    return _fill(recipe, _make(recipe.parts[0], leaves, built), recipe.parts[1].parts, leaves, built)


def _fill(recipe: Build, cls: type, state: Value, leaves: Leaves, built: Built) -> Value:
    """An instance of ``cls`` with the content of ``recipe.base`` and the attributes of ``state``."""
    builtin = builtin_base(cls)
    value = _keep(recipe, builtin.__new__(cls), built)
    if issubclass(cls, deque):
        builtin.__init__(value, (), dict(state).get("maxlen"))
    if recipe.base is not None:
        base = _make(recipe.base, leaves, built)
        if isinstance(base, dict):
            for key, part in base.items():
                builtin.__setitem__(value, key, part)
        else:
            (builtin.update if isinstance(base, set) else builtin.extend)(value, base)
    setter = BaseException.__setattr__ if issubclass(cls, BaseException) else object.__setattr__
    for name, part in state:
        if name != "maxlen" or not isinstance(value, deque):
            setter(value, name, _make(part, leaves, built))
    return value


def _make_named_tuple(recipe: Build, leaves: Leaves, built: Built) -> Value:
    """A named tuple or an instance of a subclass of tuple; torch's return types take a sequence."""
    cls, parts = recipe.value, _parts(recipe, leaves, built)
    value = _keep(recipe, cls(parts) if written_in_c(cls) else tuple.__new__(cls, parts), built)
    if recipe.base is not None:
        value.__dict__.update(_make(recipe.base, leaves, built))
    return value


def _make_class(recipe: Build, leaves: Leaves, built: Built) -> Value:
    """A class: made with its bases, then filled, as its methods may know it."""
    name, space = recipe.value
    meta, bases = (_make(part, leaves, built) for part in recipe.parts[:2])
    maker = abc.ABCMeta.__new__ if issubclass(meta, abc.ABCMeta) else type.__new__
    value = _keep(recipe, maker(meta, name, bases, dict(space)), built)
    for key, part in recipe.parts[2].parts:
        type.__setattr__(value, key, _make(part, leaves, built))
    return value


def _make_kind_of_tuple(recipe: Build, leaves: Leaves, built: Built) -> Value:
    cls, *parts = _parts(recipe, leaves, built)
    value = _keep(recipe, tuple.__new__(cls, parts), built)
    if recipe.base is not None:
        value.__dict__.update(_make(recipe.base, leaves, built))
    return value


def _make_cell(recipe: Recipe, leaves: Leaves, built: Built) -> Value:
    """A cell of a closure: a new and empty one, or one that is there."""
    if type(recipe) is Build and recipe.kind == "cell" and recipe.number not in built:
        return _keep(recipe, types.CellType(), built)
    return _make(recipe, leaves, built)


def _fill_cell(recipe: Recipe, leaves: Leaves, built: Built) -> None:
    if type(recipe) is Build and recipe.kind == "cell":
        for part in _parts(recipe, leaves, built):
            built[recipe.number].cell_contents = part


def _make_function(recipe: Build, leaves: Leaves, built: Built) -> Value:
    code, variables, name, qualified, module, text = recipe.value
    closure = recipe.parts[2]
    cells = None if closure is None else tuple([_make_cell(part, leaves, built) for part in closure.parts])
    value = _keep(recipe, types.FunctionType(code, variables, name, None, cells), built)
    for part in closure.parts if closure is not None else ():
        _fill_cell(part, leaves, built)  # after the function: a cell may hold it
    value.__qualname__, value.__module__, value.__doc__ = qualified, module, text
    value.__defaults__, value.__kwdefaults__ = (_make(part, leaves, built) for part in recipe.parts[:2])
    value.__annotations__ = _make(recipe.parts[3], leaves, built)
    value.__dict__.update(_make(recipe.parts[4], leaves, built))
    return value


def _make_called(recipe: Build, leaves: Leaves, built: Built) -> Value:
    function, args, kwargs = _parts(recipe, leaves, built)
    return _keep(recipe, function(*args, **kwargs), built)


def _make_partial(recipe: Build, leaves: Leaves, built: Built) -> Value:
    function, args, kwargs, state = _parts(recipe, leaves, built)
    value = _keep(recipe, functools.partial(function, *args, **kwargs), built)
    value.__dict__.update(state)
    return value


def _make_variable(recipe: Build, leaves: Leaves, built: Built) -> Value:
    """A cell for itself, with its content."""
    cell = _make_cell(recipe, leaves, built)
    _fill_cell(recipe, leaves, built)
    return cell


def _make_text(recipe: Build, leaves: Leaves, built: Built) -> Value:
    """What an f-string makes of one value."""
    conversion, spec = recipe.value
    return formatted(_make(recipe.parts[0], leaves, built), conversion, spec)


MAKERS: dict[str, Callable[[Build, Leaves, Built], Value]] = {
    "const": lambda r, leaves, built: r.value,
    "tuple": lambda r, leaves, built: _keep(r, tuple(_parts(r, leaves, built)), built),
    "frozenset": lambda r, leaves, built: _keep(r, frozenset(_parts(r, leaves, built)), built),
    "slice": lambda r, leaves, built: slice(*_parts(r, leaves, built)),
    "range": lambda r, leaves, built: _keep(r, range(*_parts(r, leaves, built)), built),
    "method": lambda r, leaves, built: _keep(r, types.MethodType(*_parts(r, leaves, built)), built),
    "namedtuple": _make_named_tuple,
    "function": _make_function,
    "partial": _make_partial,
    "called": _make_called,
    "list": _make_list,
    "dict": _make_dict,
    "set": _make_set,
    "object": _make_object,
    "instance": _make_instance,
    "class": _make_class,
    "kind of tuple": _make_kind_of_tuple,
    "call": lambda r, leaves, built: _keep(r, r.value(*_parts(r, leaves, built)), built),
    "cell": _make_variable,
    "format": _make_text,
    "join": lambda r, leaves, built: "".join(_parts(r, leaves, built)),
    "repeat": lambda r, leaves, built: operator.mul(*_parts(r, leaves, built)),
}


def _apply(effect: Effect, leaves: Leaves, built: Built) -> None:
    target = _make(effect.target, leaves, built)
    key = _make(effect.key, leaves, built)
    value = _make(effect.value, leaves, built)
    APPLY[effect.kind](target, key, value)


def _set_cell(cell: types.CellType, key: Value, value: Value) -> None:
    cell.cell_contents = value


def _empty_cell(cell: types.CellType, key: Value, value: Value) -> None:
    with contextlib.suppress(ValueError):
        del cell.cell_contents


def _set_content(target: Value, key: Value, value: Value) -> None:
    """The whole content of a container that stays the same object."""
    base = builtin_base(type(target))
    base.clear(target)
    if isinstance(value, dict):
        for name, part in value.items():
            base.__setitem__(target, name, part)
    else:
        base.extend(target, value)


APPLY: dict[str, Callable[[Value, Value, Value], Value]] = {
    "attr": lambda target, key, value: object.__setattr__(target, key, value),
    "setattr": setattr,
    "delattr": lambda target, key, value: object.__delattr__(target, key),
    "item": lambda target, key, value: builtin_base(type(target)).__setitem__(target, key, value),
    "delitem": lambda target, key, value: builtin_base(type(target)).__delitem__(target, key),
    "global": lambda target, key, value: target.__setitem__(key, value),
    "call": lambda target, key, value: getattr(builtin_base(type(target)), key)(target, *value),
    "token": lambda target, key, value: None,  # a context variable: making the token set it
    "run": lambda target, key, value: target(*value),
    "content": _set_content,
    "invoke": lambda target, key, value: target(*value),
    "cell": _set_cell,
    "delcell": _empty_cell,
}
