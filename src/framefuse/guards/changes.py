"""Turns compiled assumptions and the arguments of a call that they refused into the places whose numbers move."""

from __future__ import annotations

import contextvars
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

import torch

from framefuse import _native
from framefuse.guards.instructions import is_dense, same_atom
from framefuse.guards.source_nodes import MISSING
from framefuse.ir.classes import is_by_content
from framefuse.ir.facts import Assumptions, Fact, Input, Source, TensorSpec, all_numbers, before_ones, extent, looked_at
from framefuse.ir.numbers import Expr
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value

NUMBERS = {"int": int, "float": float}
TEXTS = ("str", "count")
EXTENTS = ("length", "keys")
FREE = ("integer", "real", "answer")
ROWS, GROWING = (list, deque), (list, deque, dict, set)
# So many lengths of a list, deque, dict or set that long-lived objects or arguments have, each with a trace of its own:
# from then on no trace is made for one more. Of numbers, which are soon walked by eager, and of anything else, whose
# traces are worth more.
LENGTHS, LENGTHS_OF_NUMBERS = 8, 4  # chosen


def moving(known: Iterable[Assumptions], arguments: Sequence[Value]) -> frozenset[Source]:
    """The sources of ints, floats and strings that were held to a value and have another one now, or are free already.

    The next recording makes them symbols: a number that changed once will change again, and so will its neighbours in
    a list. A container that had ever another length is among them by its :func:`extent`, a number whose ever other
    value decided something by :func:`looked_at`. Of a string it holds what the
    program asks. A container or record among them, that a long-lived object has, was another one: what it holds is
    what counts. A tensor among them has a stride that was held because elements lay near (capture/recording), and has
    another one now, or lay densely and does not now, or was a column (sizes of 1 at the end) and is none now.
    """
    sources: set[Source] = set()
    values: dict[Source, Value] = {}
    lengths: dict[Source, set[Value]] = {}
    held_to: dict[tuple[Source, Expr], set[Value]] = {}
    for assumptions in known:
        held = {fact.source for fact in assumptions.facts if fact.kind == "is" and not fact.source.is_argument}
        for fact in assumptions.facts:
            if fact.kind in FREE:
                sources.add(fact.source)
            elif fact.kind == "type" and not fact.source.is_argument:
                if is_by_content(fact.value) and fact.source not in held:
                    sources.add(fact.source)
            elif fact.kind == "is" and not fact.source.is_argument:
                if _is_another(fact, arguments, values):
                    sources.add(fact.source)
            elif fact.kind in NUMBERS and fact.source not in sources:
                now = value_at(fact.source, arguments, values)
                if type(now) is NUMBERS[fact.kind] and not same_atom(now, fact.value):
                    sources.add(fact.source)
            elif fact.kind in TEXTS:
                now = value_at(fact.source, arguments, values)
                if type(now) is str and now != fact.value:
                    sources.add(fact.source)
            elif fact.kind in EXTENTS:
                lengths.setdefault(fact.source, set()).add(fact.value)
        for source, form, value in _pinned(assumptions):
            held_to.setdefault((source, form), set()).add(value)
        sources.update(entry.source for entry in assumptions.inputs if _lies_otherwise(entry, arguments, values))
    sources.update(map(all_numbers, _moving_rows(sources, arguments, values)))
    sources.update(looked_at(source) for (source, _), met in held_to.items() if len(met) >= LENGTHS_OF_NUMBERS)
    sources.update(extent(source) for source, met in lengths.items() if _grows(source, met, arguments, values))
    return frozenset(sources)


def _pinned(assumptions: Assumptions) -> Iterator[tuple[Source, Expr, int]]:
    """The ints that a trace takes as they are and whose values decided something all the same, with what was made of
    them and its value.
    """
    equal = [fact for fact in assumptions.relations if fact.op == "=="]
    if not equal:
        return
    places = {fact.value: fact.source for fact in assumptions.facts if fact.kind == "integer"}
    for relation in equal:
        left, value = relation.left, relation.right.constant
        symbols = left.symbols
        source = places.get(next(iter(symbols))) if len(symbols) == 1 else None
        if source is not None and value is not None:
            yield source, left, value


def _moving_rows(sources: set[Source], arguments: Sequence[Value], values: dict[Source, Value]) -> set[Source]:
    """The lists and deques of which a float was seen to move, or two ints: so may the others, which need no trace each
    to show it.
    """
    met: dict[Source, int] = {}
    for source in sources:
        if source.kind == "item" and source.base is not None and type(source.key) is int:
            if type(value_at(source.base, arguments, values)) in ROWS:
                weight = 2 if type(value_at(source, arguments, values)) is float else 1
                met[source.base] = met.get(source.base, 0) + weight
    return {row for row, weight in met.items() if weight > 1}


def _grows(source: Source, met: set[Value], arguments: Sequence[Value], values: dict[Source, Value]) -> bool:
    """Whether a container had so many lengths, or sets of keys, that one more trace for the next is in vain."""
    if len(met) < LENGTHS_OF_NUMBERS:
        return False
    now = value_at(source, arguments, values)
    if not is_a(now, GROWING):
        return False
    parts = dict.values(now) if is_a(now, dict) else now if type(now) in GROWING else ()
    return len(met) >= LENGTHS or all(type(part) in (int, float) for part in parts)


def _is_another(fact: Fact, arguments: Sequence[Value], values: dict[Source, Value]) -> bool:
    """Whether a container or record that was held to its identity is another one now."""
    if not is_by_content(type(fact.value)):
        return False
    now = value_at(fact.source, arguments, values)
    return type(now) is type(fact.value) and now is not fact.value


def _lies_otherwise(entry: Input, arguments: Sequence[Value], values: dict[Source, Value]) -> bool:
    """Whether a tensor that was dense is not now, or has another stride where one of more than 1 was held."""
    spec = entry.spec
    with torch._C.DisableTorchFunctionSubclass():  # a class of the program's would see the questions
        return _is_laid_otherwise(spec, value_at(entry.source, arguments, values))


def _is_laid_otherwise(spec: TensorSpec, now: Value) -> bool:
    if is_a(now, torch.Tensor) and now.is_nested:  # has no sizes
        return False
    if _was_column(spec, now):
        return True
    if spec.order is None and not any(isinstance(stride, int) and stride > 1 for stride in spec.strides or ()):
        return False
    if not is_a(now, torch.Tensor) or type(now) is not spec.type:
        return False
    if now.layout is not torch.strided or now.dim() != len(spec.sizes):
        return False
    if spec.order is not None:
        return not is_dense(tuple(now.shape), now.stride(), spec.order)
    pairs = zip(spec.strides or (), now.stride(), strict=True)
    return any(isinstance(stride, int) and 1 < stride != other for stride, other in pairs)


def _was_column(spec: TensorSpec, now: Value) -> bool:
    """Whether a size of 1 that was held at the end of others is another one now."""
    first = before_ones(spec.sizes)
    if first == len(spec.sizes) or not is_a(now, torch.Tensor) or now.dim() != len(spec.sizes):
        return False
    return any(size != 1 for size in now.shape[first:])


def value_at(source: Source, arguments: Sequence[Value], values: dict[Source, Value]) -> Value:
    """What lies at ``source`` now, MISSING when there is nothing."""
    if source not in values:
        try:
            values[source] = _read(source, arguments, values)
        except Exception:  # the path leads nowhere any more
            values[source] = MISSING
    return values[source]


def _read(source: Source, arguments: Sequence[Value], values: dict[Source, Value]) -> Value:
    kind, key = source.kind, source.key
    if source.base is None:
        return arguments[key] if kind == "arg" else key
    base = value_at(source.base, arguments, values)
    if base is MISSING:
        return MISSING
    if kind in ("dict", "attr"):
        content = _native.instance_dict(base)
        return MISSING if content is None else content if kind == "dict" else dict.get(content, key, MISSING)
    if kind == "item" and is_a(base, dict):
        return dict.get(base, key, MISSING)  # looking it up would make an entry of a defaultdict
    if kind == "entry":
        return dict.get(base, value_at(key, arguments, values), MISSING)
    if kind == "item":
        plain: Value = next(each for each in (list, tuple, deque) if is_a(base, each))
        return plain.__getitem__(base, key)
    if kind == "global":
        held = base.__globals__.get(key, MISSING)
        return base.__builtins__.get(key, MISSING) if held is MISSING else held
    if kind == "cell":
        return base.__closure__[key].cell_contents
    if kind == "type_attr":
        return _native.type_lookup(base, key)
    if kind == "context" and is_a(base, contextvars.ContextVar):
        return base.get(MISSING)
    if kind == "getattr":  # a property may be a call with effects: it is no place whose number moves
        return MISSING if isinstance(getattr(type(base), key, None), property) else getattr(base, key)
    if kind == "type":
        return type(base)
    if kind in ("func", "self"):
        return base.__func__ if kind == "func" else base.__self__
    return MISSING
