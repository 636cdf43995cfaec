"""Puts plain numbers and real generators in the place of the recording's own, in all that the program has made."""

from __future__ import annotations

import functools
import gc
import itertools
import operator
import types
import weakref
from collections import deque
from collections.abc import Callable

import torch

from framefuse.capture.facts.atoms import ATOMS
from framefuse.capture.facts.code_like import CODE_LIKE
from framefuse.capture.facts.numbers import TRACKED, bare
from framefuse.capture.program.bound import BOUND_KINDS, bind, is_bound, taken_apart
from framefuse.capture.program.frame import FrameView, InterpretedGenerator, native_generator
from framefuse.capture.program.iterators import OF_SEQUENCE, VIEW_OBJECTS, VIEWS, RangeIterator, reduced
from framefuse.capture.program.markers import Marker
from framefuse.capture.program.services import Memo
from framefuse.ir.classes import written_in_c
from framefuse.ir.containers import base_of, elements, entries
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value

ITSELF = (None, None)  # in place of such a pair: an object that stands for itself, and is kept alive elsewhere
ENDLESS = -1  # elements that an iterator has left
HELD = 0  # no id: what keeps those alive


def settle(value: Value, memo: Memo | None = None) -> Value:
    """``value`` with plain numbers for tracked ones, and real generators and iterators for those of the interpreter.

    What can change does so in place; tuples and the like are made anew. ``memo`` names objects that hold no number.
    """
    memo = {} if memo is None else memo
    kind = type(value)
    if kind in TRACKED:
        return bare(value)
    if kind in ATOMS or kind in weakref.ProxyTypes:  # a proxy may be dead
        return value
    if issubclass(kind, torch.Tensor):
        if object.__getattribute__(value, "__dict__"):  # what the program hung onto it
            settle(object.__getattribute__(value, "__dict__"), memo)
        return value
    known = memo.get(id(value))
    if known is not None and known is not ITSELF:
        return known[1]
    if known is ITSELF and kind is not slice:  # one with run-time bounds may stand for a slice that existed before
        return value
    taker = TAKERS.get(kind)
    if taker is None and issubclass(kind, CODE_LIKE):
        return value
    memo[id(value)] = (value, value)
    if taker is not None:
        settled = taker(value, memo)
    elif issubclass(kind, (tuple, frozenset)):
        settled = _made_anew(value, memo)
    else:
        _in_place(value, kind, memo)
        return value
    memo[id(value)] = (value, settled)
    return settled


def _made_anew(value: Value, memo: Memo) -> Value:
    old = elements(value)
    parts = [settle(part, memo) for part in old]
    if all(new is part for new, part in zip(parts, old, strict=True)):
        return value
    kind: Value = type(value)
    if kind in (tuple, frozenset) or not is_a(value, tuple):
        return kind(parts)
    return tuple_like(kind, parts, getattr(value, "__dict__", None))


def tuple_like(kind: Value, parts: list[Value], state: dict[str, Value] | None = None) -> Value:
    """An instance of a subclass of tuple; those of C, as torch's return types, take a sequence."""
    instance = kind(parts) if written_in_c(kind) else tuple.__new__(kind, parts)
    if state:
        instance.__dict__.update(state)
    return instance


def _in_place(value: Value, kind: type, memo: Memo) -> None:
    """Settles what lies in a container or an object."""
    if issubclass(kind, dict):
        _settle_dict(value, memo)
    elif issubclass(kind, (list, deque)):
        for place, part in enumerate(elements(value)):
            new = settle(part, memo)
            if new is not part:
                base_of(value).__setitem__(value, place, new)
    elif issubclass(kind, set):
        old = elements(value)
        if any(type(part) in TRACKED or is_a(part, (tuple, frozenset)) for part in old):
            set.clear(value)
            set.update(value, [settle(part, memo) for part in old])
    elif issubclass(kind, BaseException):
        value.args = settle(value.args, memo)
        for other in (value.__cause__, value.__context__):
            settle(other, memo)
    if not written_in_c(kind):
        for name, part in slots_of(value).items():
            new = settle(part, memo)
            if new is not part:
                object.__setattr__(value, name, new)
    state = getattr(value, "__dict__", None)
    own = not written_in_c(kind) or issubclass(kind, (BaseException, types.SimpleNamespace))
    if type(state) is dict and own and not issubclass(kind, torch.nn.Module):
        settle(state, memo)


def _settle_dict(value: Value, memo: Memo) -> None:
    base, pairs = base_of(value), entries(value)
    if any(type(key) in TRACKED or is_a(key, (tuple, frozenset)) for key, _ in pairs):
        keys = [settle(key, memo) for key, _ in pairs]
        if any(new is not key for new, (key, _) in zip(keys, pairs, strict=True)):
            base.clear(value)
            for key, (_, part) in zip(keys, pairs, strict=True):
                base.__setitem__(value, key, part)
            pairs = entries(value)
    for key, part in pairs:
        new = settle(part, memo)
        if new is not part:
            base.__setitem__(value, key, new)


# ---- kinds of their own ----------------------------------------------------------------------------------------------


def _span(value: Value, memo: Memo) -> Value:
    """A slice."""
    parts = [value.start, value.stop, value.step]
    bounds = [settle(part, memo) for part in parts]
    return value if all(new is old for new, old in zip(bounds, parts, strict=True)) else slice(*bounds)


def _generator(value: InterpretedGenerator, memo: Memo) -> Value:
    """One that has not started becomes a real one."""
    if value.state == "new":
        value.arguments = [settle(part, memo) for part in value.arguments]
        return native_generator(value)
    if value.state == "suspended":
        for interpreted in (False, True):
            settle_values(value.frame.locals, memo, interpreted)
            settle_values(value.frame.stack, memo, interpreted)
    return value


def settle_values(values: list[Value], memo: Memo, interpreted: bool = False) -> None:
    """The locals or the stack of a frame, where the interpreter's own objects go on; for ``interpreted`` those for
    which others stand now.
    """
    for place, value in enumerate(values):
        if type(value) is types.CellType:
            for held in cell_contents(value):
                new = _in_frame(held, memo, interpreted)
                if new is not held:
                    value.cell_contents = new
        else:
            values[place] = _in_frame(value, memo, interpreted)


def _in_frame(value: Value, memo: Memo, interpreted: bool) -> Value:
    if (type(value) in INTERPRETED) is not interpreted or (interpreted and id(value) not in memo):
        return value
    return settle(value, memo)


def _range_iterator(value: RangeIterator, memo: Memo) -> Value:
    return iter(range(*map(bare, (value.at, value.stop, value.step))))


def _sequence_iterator(value: Value, memo: Memo) -> Value:
    make, (sequence,), position = reduced(value)
    settled = settle(sequence, memo)
    if settled is sequence:
        return value
    iterator = make(settled)
    iterator.__setstate__(position)
    return iterator


def _view_iterator(value: Value, memo: Memo) -> Value:
    """An iterator over a dict or set, or a view of a dict."""
    for holder in gc.get_referents(value):
        if is_a(holder, (dict, set)):
            settle(holder, memo)
    return value


def _driver(value: Value, memo: Memo) -> Value:
    """An iterator over others; where another stands for one of these, one that goes on as it does."""
    if type(value) is itertools.chain:  # what is left, and what it is at, if anything; from 3.12 on its class as well
        held = [part for part in gc.get_referents(value) if part is not itertools.chain]
        left, *entered = parts = [settle(part, memo) for part in held] or [iter(())]
        same = all(map(operator.is_, parts, held))
        return value if same else itertools.chain.from_iterable(itertools.chain(entered, left))
    make, given, *state = value.__reduce__()
    parts = [settle(part, memo) for part in given]
    if all(map(operator.is_, parts, given)):
        return value
    rebuilt = make(*parts)
    if state:
        rebuilt.__setstate__(state[0])
    return rebuilt


def _repeated(value: Value, memo: Memo) -> Value:
    held = next((part for part in gc.get_referents(value) if part is not itertools.repeat), None)
    settled, left = settle(held, memo), operator.length_hint(value, ENDLESS)
    if settled is held:
        return value
    return itertools.repeat(settled) if left == ENDLESS else itertools.repeat(settled, left)


def _method(value: Value, memo: Memo) -> Value:
    function, owner = settle(value.__func__, memo), settle(value.__self__, memo)
    if function is value.__func__ and owner is value.__self__:
        return value
    if type(value.__self__) in INTERPRETED:
        return getattr(owner, function.__name__)
    return types.MethodType(function, owner)


def _bound(value: Value, memo: Memo) -> Value:
    """A bound method of C."""
    if not is_bound(value):
        return value
    owner = settle(value.__self__, memo)
    unbound = taken_apart(value) if owner is not value.__self__ else None
    return value if unbound is None else bind(unbound[0], owner)


def _partial(value: Value, memo: Memo) -> Value:
    parts = settle(value.func, memo), settle(value.args, memo), settle(value.keywords, memo)
    value.__setstate__((*parts, settle(vars(value), memo) or None))
    return value


def _function(value: types.FunctionType, memo: Memo) -> Value:
    """Closure, defaults and attributes."""
    for cell in value.__closure__ or ():
        for part in cell_contents(cell):
            new = settle(part, memo)
            if new is not part:
                cell.cell_contents = new
    defaults = value.__defaults__
    if defaults is not None:
        new = settle(defaults, memo)
        if new is not defaults:
            value.__defaults__ = new
    for held in (value.__kwdefaults__, vars(value)):
        if held:
            settle(held, memo)
    return value


# What stays the interpreter's own while its frames run.
INTERPRETED = (InterpretedGenerator, FrameView, RangeIterator, Marker)
TAKERS: dict[type, Callable[[Value, Memo], Value]] = {
    slice: _span,
    InterpretedGenerator: _generator,
    FrameView: lambda value, memo: value.real(),
    RangeIterator: _range_iterator,
    types.FunctionType: _function,
    types.MethodType: _method,
    functools.partial: _partial,
    itertools.repeat: _repeated,
    **dict.fromkeys(BOUND_KINDS, _bound),
    **dict.fromkeys(OF_SEQUENCE, _sequence_iterator),
    **dict.fromkeys((*VIEWS, *VIEW_OBJECTS), _view_iterator),
    **dict.fromkeys((enumerate, zip, map, filter, itertools.chain), _driver),
}


def settle_class(cls: type, memo: Memo) -> None:
    """The numbers in a class that was made during the call."""
    for name, part in list(vars(cls).items()):
        new = settle(part, memo)
        if new is not part:
            type.__setattr__(cls, name, new)


# ---- parts -----------------------------------------------------------------------------------------------------------


def cell_contents(cell: types.CellType) -> tuple[Value, ...]:
    """What a cell holds, as a tuple of one or none."""
    try:
        return (cell.cell_contents,)
    except ValueError:
        return ()


def slots_of(value: Value) -> dict[str, Value]:
    """The attributes that lie in slots, by the names under which the class has them."""
    slots: dict[str, Value] = {}
    for base in type(value).__mro__:
        if "__slots__" not in vars(base):
            continue
        for name, member in vars(base).items():
            if type(member) is types.MemberDescriptorType:
                try:
                    slots[name] = member.__get__(value)
                except AttributeError:
                    continue
    return slots
