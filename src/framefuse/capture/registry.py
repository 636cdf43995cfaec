"""What callables mean in a recording: rows that the files which define them fill in, and that the call protocol reads.

``run.py`` imports those files. A callable without a row is called as what it is: Python runs in frames, native code by
its policy.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable, Mapping
from typing import TypeAlias, TypeVar

import torch

from framefuse.capture.atoms import ATOMS
from framefuse.capture.code import HANDLERS
from framefuse.capture.frame import Frame, InterpretedGenerator, Pending
from framefuse.capture.lookups import python_method
from framefuse.capture.machine import Handler, Machine, Special
from framefuse.capture.values import Arguments, Function, Keywords, Value

S = TypeVar("S", bound=Special)
H = TypeVar("H", bound=Handler)

# What is done in place of the call, by the callable, or by name and class where a method is bound.
SPECIALS: dict[Hashable, Special] = {}
# Functions and classes of C, and the Python that the interpreter runs where they would call the program's.
TWINS: dict[Hashable, Function] = {}
TWIN_TYPES: dict[type, Function] = {}
# The special methods that these ask of the elements they are given.
ASKED: dict[Hashable, tuple[str, ...]] = {}
# Functions of libraries that are imported late, by module and name: whether a call of these can be one of the Python.
NAMED_TWINS: dict[tuple[str, str], tuple[Callable[[Arguments, Keywords], bool], Function]] = {}

# Enters the frames of a call at once; False where the function must be interpreted.
Shortcut: TypeAlias = Callable[[Machine, Arguments, Keywords, Pending | None], bool]
SHORTCUTS: dict[Hashable, Shortcut] = {}
# What is told of frames that are about to run.
ENTERING: list[Callable[[Machine, Frame], None]] = []
# Makes a class as the native ``__new__`` of its metaclass does; MISSING where that shall do it.
ClassMaker: TypeAlias = Callable[[Machine, Function, Arguments, Keywords], Value]
CLASS_MAKERS: dict[Hashable, ClassMaker] = {}


def handles(*names: str) -> Callable[[H], H]:
    """Registers a function as the handler of these opcodes."""

    def register(handler: H) -> H:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


def special(*targets: Hashable) -> Callable[[S], S]:
    """Registers a function as what calls of ``targets`` do."""

    def register(function: S) -> S:
        SPECIALS.update(dict.fromkeys(targets, function))
        return function

    return register


def specials(rows: Mapping[Hashable, Special]) -> None:
    """Registers rows of one family."""
    SPECIALS.update(rows)


PLAIN_ITERABLES = frozenset(
    (list, tuple, dict, set, frozenset, range, str, torch.Size, type({}.items()), type({}.keys()), type({}.values()))
)
PYTHON_CALLABLES = (types.FunctionType, types.MethodType, functools.partial)


def needs_twin(args: Arguments, *names: str) -> bool:
    """Whether native code would call back into Python: an interpreted generator, a Python iterable, a Python function,
    or a special method with one of these ``names`` of what it is given or of an element.
    """
    for value in args:
        kind = type(value)
        if kind in PLAIN_ITERABLES or kind in ATOMS:
            continue
        if kind is InterpretedGenerator or kind in PYTHON_CALLABLES:
            return True
        if not isinstance(value, torch.Tensor) and (python_method(kind, "__iter__") or python_method(kind, "__next__")):
            return True
    return any(_has_method(part, names) for value in args for part in _parts(value)) if names else False


def _parts(value: Value) -> list[Value]:
    return [value, *value] if type(value) in PLAIN_ITERABLES and type(value) not in (str, range) else [value]


def _has_method(value: Value, names: tuple[str, ...]) -> bool:
    kind = type(value)
    return kind not in ATOMS and any(python_method(kind, name) is not None for name in names)
