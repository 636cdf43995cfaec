"""What callables mean in a recording: rows that the files which define them fill in, and that the call protocol reads.

``run.py`` imports those files. A callable without a row is called as what it is: Python runs in frames, native code by
its policy.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import types
from collections.abc import Callable, Hashable, Mapping
from contextvars import ContextVar
from typing import NamedTuple, TypeAlias, TypeVar, Unpack

import torch

from framefuse.capture.facts.atoms import ATOMS
from framefuse.capture.facts.numbers import TRACKED
from framefuse.capture.interp.machine import Handler, Machine, Special
from framefuse.capture.program.decoded import HANDLERS
from framefuse.capture.program.frame import Frame, InterpretedGenerator, Pending
from framefuse.capture.program.lookups import goes_by_index, is_plain_sequence, python_method, runs_program
from framefuse.capture.program.natives import NATIVES, STANDS_FOR, Columns, Native, known_as, row
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Function, Keywords, Value

S = TypeVar("S", bound=Special)
H = TypeVar("H", bound=Handler)

class Arity(NamedTuple):
    """How many positional arguments a callable takes, and what it takes by name too."""

    least: float
    most: float
    signature: inspect.Signature


# What is done in place of the call, by the callable, or by name and class where a method is bound.
SPECIALS: dict[Hashable, Special] = {}
ARITIES: dict[Hashable, Arity | None] = {}
# What builtins take by position that do not say it themselves.
_ONE, _ANOTHER = (inspect.Parameter(name, inspect.Parameter.POSITIONAL_ONLY) for name in ("one", "another"))
UNTOLD: dict[Hashable, tuple[inspect.Parameter, ...]] = {
    iter: (_ONE, _ANOTHER.replace(default=None)),
    vars: (_ONE.replace(default=None),),
    bool: (_ONE.replace(default=False),),
}
# Functions of libraries that are imported late, by module and name: whether a call of these can be one of the Python.
NAMED_EQUIVALENTS: dict[tuple[str, str], tuple[Callable[[Arguments, Keywords], bool], Function]] = {}
class Form(NamedTuple):
    """A function of torch in terms of simpler ones, for the calls ``when`` says so of their operands. A function that
    is the form of itself is walked.
    """

    function: Function
    when: Callable[[Arguments, Keywords], bool]


# What is in force while a program is recorded that runs where torch is not.
FORMS: ContextVar[Mapping[Hashable, Form]] = ContextVar("forms", default={})  # noqa: B039 - nobody writes it

# Enters the frames of a call at once; False where the function must be interpreted.
Shortcut: TypeAlias = Callable[[Machine, Arguments, Keywords, Pending | None], bool]
SHORTCUTS: dict[Hashable, Shortcut] = {}
# What a call of a function of torch's transforms does, which stands before its arguments.
TRANSFORMS: list[Special] = []
# What gets the frames that are about to run.
ENTERING: list[Callable[[Machine, Frame], None]] = []
# Makes a class as the native ``__new__`` of its metaclass does; MISSING where that shall do it.
ClassMaker: TypeAlias = Callable[[Machine, Function, Arguments, Keywords], Value]
CLASS_MAKERS: dict[Hashable, ClassMaker] = {}


def form_of(function: Value, args: Arguments, kwargs: Keywords) -> Function | None:
    """The form that a function of torch has now for these operands."""
    try:
        form = FORMS.get().get(function)
    except TypeError:  # what is called has no hash
        return None
    return form.function if form is not None and form.when(args, kwargs) else None


def handles(*names: str) -> Callable[[H], H]:
    """Registers a function as the handler of these opcodes."""

    def register(handler: H) -> H:
        HANDLERS.update(dict.fromkeys(names, handler))
        return handler

    return register


def special(*targets: Hashable, **columns: Unpack[Columns]) -> Callable[[S], S]:
    """Registers a function as what calls of ``targets`` do, and what else is known of them."""

    def register(function: S) -> S:
        for target in targets:
            row(target, Native(special=True, **columns))
            SPECIALS[target] = function
        return function

    return register


def _arity(target: Hashable) -> Arity | None:
    """None for what is no callable but a name and a class, and for what does not say."""
    try:
        signature = inspect.Signature(UNTOLD[target]) if target in UNTOLD else inspect.signature(target)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return None
    places = [p for p in signature.parameters.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    more = any(p.kind is p.VAR_POSITIONAL for p in signature.parameters.values())
    needed = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in signature.parameters.values())
    least = math.inf if needed else sum(p.default is p.empty for p in places)
    return Arity(least, math.inf if more else len(places), signature)


def takes(target: Hashable, args: Arguments, kwargs: Keywords) -> bool:
    """Whether a callable takes these arguments; where it does not, what stands in for it is no help: it raises."""
    try:
        arity = ARITIES[target]
    except KeyError:
        arity = ARITIES[target] = _arity(target)
    if arity is None or (not kwargs and arity.least <= len(args) <= arity.most):
        return True
    try:
        arity.signature.bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def marked(target: Function, special: Special) -> None:
    """Registers what calls of a function do that the user marked: instead of an earlier mark, or of the row's own."""
    NATIVES[target] = known_as(target)._replace(special=True, equivalent=None)
    SPECIALS[target] = special


PLAIN_ITERABLES = frozenset(
    (list, tuple, dict, set, frozenset, range, str, torch.Size, type({}.items()), type({}.keys()), type({}.values()))
)


ITERABLE = ("iterable", "data", "selectors")  # what the arguments are called that an iterator of C asks for theirs


def equivalent_of(
    target: Function, args: Arguments, tracked: bool, moves: Callable[[Value], bool]
) -> Function | None:
    """The Python that the interpreter runs in place of this call of native code; None where that may run: it calls
    nothing of the program's, gives no run-time number (there are some where they are ``tracked``) to native code,
    walks no list or tuple in which a number ``moves``, and compares none.
    """
    row = known_as(target)
    if row.equivalent is None:
        return None
    calls = row.calls and (any(map(runs_program, args)) or (tracked and bool(args)) or any(map(_holds_more, args)))
    orders = bool(row.compares) and any(type(part) in TRACKED for part in args)
    hands = row.hands_on and any(
        moves(part) or (tracked and not row.keeps_numbers and any(type(inner) in TRACKED for inner in part))
        for part in args
        if is_plain_sequence(type(part))
    )
    return row.equivalent if calls or orders or hands or needs_python(args, *row.asks) else None


def begins(function: Function, args: Arguments, kwargs: Keywords) -> bool:
    """Whether the iterator that a generator ``function`` stands for can be made. One of C takes its arguments, and asks
    them for their iterators, when it is made; a generator when it first runs.
    """
    if not function.__code__.co_flags & inspect.CO_GENERATOR:
        return True
    if not takes(function, args, kwargs):
        return False
    given = inspect.signature(function).bind(*args, **kwargs).arguments
    several = given.get("iterables", ()) if STANDS_FOR.get(function) is not itertools.chain else ()  # it asks late
    return all(map(_is_iterable, (*several, *(given[name] for name in ITERABLE if name in given))))


def _is_iterable(value: Value) -> bool:
    if is_a(value, torch.Tensor) and type(value).__iter__ is torch.Tensor.__iter__:
        return value.ndim > 0
    kind = type(value)
    return getattr(kind, "__iter__", None) is not None or hasattr(kind, "__getitem__")


def _holds_more(value: Value) -> bool:
    """Whether a native function that is called with the elements of ``value`` may look into one."""
    kind = type(value)
    if kind in ATOMS or not hasattr(kind, "__iter__") or is_a(value, torch.Tensor):
        return False
    if kind not in PLAIN_ITERABLES:
        return True
    return kind is not range and any(type(part) not in ATOMS and not is_a(part, torch.Tensor) for part in value)


def needs_python(args: Arguments, *names: str) -> bool:
    """Whether native code would call back into Python: an interpreted generator, a Python iterable, a Python function,
    or a special method with one of these ``names`` of what it is given or of an element.
    """
    for value in args:
        kind = type(value)
        if kind in PLAIN_ITERABLES or kind in ATOMS:
            continue
        if kind is InterpretedGenerator or kind in (types.FunctionType, types.MethodType, functools.partial):
            return True
        if is_a(value, torch.Tensor):
            continue
        if python_method(kind, "__iter__") or python_method(kind, "__next__") or goes_by_index(kind):
            return True
    return any(_has_method(part, names) for value in args for part in _parts(value)) if names else False


def _parts(value: Value) -> list[Value]:
    return [value, *value] if type(value) in PLAIN_ITERABLES and type(value) not in (str, range) else [value]


def _has_method(value: Value, names: tuple[str, ...]) -> bool:
    kind = type(value)
    return kind not in ATOMS and any(python_method(kind, name) is not None for name in names)
