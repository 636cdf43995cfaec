"""Builtins that drive an iterator or call a function, written in Python so that the interpreter runs what they call."""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
import types

import torch

from framefuse.capture.program.natives import CONVERSIONS, KINDS, MADE_FROM, STANDS_FOR, TRUTH, equivalent
from framefuse.ir.values import Value

NO_ELEMENT = "arg is an empty sequence" if sys.version_info < (3, 12) else "iterable argument is empty"
_GIVEN = "iter(object, sentinel): object" if sys.version_info[:2] == (3, 12) else "iter(v, w): v"
NO_CALLABLE = f"{_GIVEN} must be callable"
ABSENT = object()


def measured(iterable: Value) -> Value:
    """What is asked for its length first; the machine takes ``iterable`` as it is where nobody hears of that."""
    return measured_elements(iterable)


def measured_elements(iterable: Value) -> Value:
    iterator = iter(iterable)
    length_hint(iterable)
    while (value := next(iterator, ABSENT)) is not ABSENT:
        yield value


@equivalent(operator.length_hint, pure=True, asks=(*CONVERSIONS, "__len__", "__length_hint__"))
def length_hint(value: Value, default: int = 0, /) -> int:
    kind = type(value)
    if hasattr(kind, "__len__"):
        try:
            return len(value)
        except TypeError:
            pass
    if not hasattr(kind, "__length_hint__"):
        return default
    try:
        length = kind.__length_hint__(value)
    except TypeError:
        return default
    if length is NotImplemented:
        return default
    if not isinstance(length, int):
        raise TypeError(f"__length_hint__ must be an integer, not {type(length).__name__}")
    if length < 0:
        raise ValueError("__length_hint__() should return >= 0")
    return length


@equivalent(list, pure=True, keeps=True, takes="keys")
def list_(iterable: Value = (), /) -> list[Value]:
    return [value for value in measured(iterable)]  # noqa: C416


@equivalent(tuple, pure=True, keeps=True, takes="keys")
def tuple_(iterable: Value = (), /) -> tuple[Value, ...]:
    return (*[value for value in measured(iterable)],)  # noqa: C416


def new_tuple(kind: type[tuple[Value, ...]], iterable: Value) -> tuple[Value, ...]:
    return tuple.__new__(kind, (*[value for value in measured(iterable)],))  # noqa: C416


@equivalent(set, pure=True, keeps=True, takes="keys", orderless=True)
def set_(iterable: Value = (), /) -> set[Value]:
    return {value for value in iterable}  # noqa: C416


@equivalent(frozenset, pure=True, keeps=True, takes="keys", orderless=True)
def frozenset_(iterable: Value = (), /) -> frozenset[Value]:
    return frozenset([value for value in iterable])  # noqa: C416


@equivalent(dict, pure=True, keeps=True, takes="all")
def dict_(iterable: Value = (), /, **named: Value) -> dict[Value, Value]:
    if hasattr(iterable, "keys"):
        return {**{key: iterable[key] for key in iterable.keys()}, **named}
    return {**{key: value for key, value in iterable}, **named}  # noqa: C416


def sum_(iterable: Value, start: Value = 0) -> Value:
    for value in iterable:
        start = start + value
    return start


def contains_(container: Value, wanted: Value) -> bool:
    for value in container:
        if wanted in (value,):  # the same, or equal
            return True
    return False


@equivalent(any, pure=True, asks=TRUTH, orderless=True)
def any_(iterable: Value, /) -> bool:
    for value in iterable:
        if value:
            return True
    return False


@equivalent(all, pure=True, asks=TRUTH, orderless=True)
def all_(iterable: Value, /) -> bool:
    for value in iterable:
        if not value:
            return False
    return True


def equal_parts(left: Value, right: Value) -> bool:
    """Whether two tuples or lists are equal. An object is not asked about itself; lists of two lengths ask none."""
    if isinstance(left, list) and len(left) != len(right):
        return False
    for number in range(min(len(left), len(right))):
        a, b = left[number], right[number]
        if isinstance(a, (int, float, complex, str)):
            if not (a == b or (a != a and a is b)):
                return False
        elif not (a is b or a == b):
            return False
    return len(left) == len(right)


@equivalent(enumerate, pure=True, keeps=True, keeps_numbers=True, iterates=True, hands_on=True)
def enumerate_(iterable: Value, start: int = 0) -> Value:
    for value in iterable:
        yield start, value
        start += 1


# What it calls, if native, asks its elements.
@equivalent(
    map, pure=True, keeps=True, calls=True, walks="last", asks=(*MADE_FROM, "__bool__", "__abs__", "__hash__"),
    hands_on=True,
)  # fmt: skip
def map_(function: Value, iterable: Value, /, *iterables: Value) -> Value:
    if not iterables:
        for value in iterable:
            yield function(value)
    else:
        for values in zip(iterable, *iterables):  # noqa: B905
            yield function(*values)


@equivalent(filter, pure=True, keeps=True, calls=True, walks="last", asks=TRUTH, hands_on=True)
def filter_(function: Value, iterable: Value, /) -> Value:
    for value in iterable:
        if value if function is None else function(value):
            yield value


def walker(iterable: Value) -> Value:
    """``iter(iterable)``; a list is walked by a loop, which reads run-time numbers as it comes to them."""
    return _each(iterable) if type(iterable) is list else iter(iterable)


def _each(values: Value) -> Value:
    for value in values:  # noqa: UP028 - the interpreter's own loop
        yield value


@equivalent(zip, pure=True, keeps=True, keeps_numbers=True, walks="last", hands_on=True)
def zip_(*iterables: Value, strict: bool = False) -> Value:
    sources = tuple([walker(iterable) for iterable in iterables])  # a break takes tuples apart, and what lies in them
    while sources:
        values = []
        for number, source in enumerate(sources):
            value = next(source, ABSENT)
            if value is ABSENT:
                if strict and (number or any([next(rest, ABSENT) is not ABSENT for rest in sources[1:]])):  # noqa: C419
                    raise ValueError(
                        f"zip() argument {number + 1} is shorter than argument{'s 1-' if number > 1 else ' '}{number}"
                    )
                return
            values.append(value)
        yield tuple(values)


def sorted_(iterable: Value, *, key: Value = None, reverse: bool = False) -> list[Value]:
    values = [value for value in measured(iterable)]  # noqa: C416
    if key is None:
        values.sort(reverse=reverse)
        return values
    return [values[number] for number in order_of([key(value) for value in values], reverse)]


def order_of(keys: list[Value], reverse: bool) -> list[int]:
    """The places of the keys in the order of a stable sort; the machine takes one of the ways below."""
    return order_by_pairs(keys, reverse)


def order_by_pairs(keys: list[Value], reverse: bool) -> list[int]:
    """As :func:`order_of`, of keys that C compares."""
    pairs = [(key, number if not reverse else -number) for number, key in enumerate(keys)]
    pairs.sort(reverse=reverse)
    return [abs(number) for _, number in pairs]


def order_by_less(keys: list[Value], reverse: bool) -> list[int]:
    """As :func:`order_of`, of keys that compare by Python: asks of them what CPython asks of a short list, ``<`` alone
    and in its order.
    """
    order = [*range(len(keys))]
    if reverse:
        order.reverse()
    sorted_to = first_run(order, keys)
    for place in range(sorted_to, len(order)):
        pivot, low, high = order[place], 0, place
        while low < high:
            middle = (low + high) >> 1
            if keys[pivot] < keys[order[middle]]:
                high = middle
            else:
                low = middle + 1
        order.insert(low, order.pop(place))
    if reverse:
        order.reverse()
    return order


def _first_run(order: list[int], keys: list[Value]) -> int:
    """How many places are in order from the start; those of keys that fall are turned around. Up to CPython 3.12."""
    length = min(len(order), 2)
    if length == 2:
        falls = bool(keys[order[1]] < keys[order[0]])
        while length < len(order) and bool(keys[order[length]] < keys[order[length - 1]]) is falls:
            length += 1
        if falls:
            order[:length] = order[:length][::-1]
    return length


def _first_run_with_equals(order: list[int], keys: list[Value]) -> int:
    """As above, from CPython 3.13 on: among keys that fall there may be equal ones, and what rises behind them is part
    of the run.
    """
    length, whole = 1, len(order)
    while length < whole and not keys[order[length]] < keys[order[length - 1]]:
        length += 1
    if length >= whole or (length > 1 and keys[order[0]] < keys[order[length - 1]]):
        return min(length, whole)
    order[:length] = order[:length][::-1]  # equal ones keep their order when all are turned
    length, equal = length + 1, 0
    while length < whole:
        if keys[order[length]] < keys[order[length - 1]]:
            order[length - 1 - equal : length] = order[length - 1 - equal : length][::-1]
            equal = 0
        elif keys[order[length - 1]] < keys[order[length]]:
            break
        else:
            equal += 1
        length += 1
    order[length - 1 - equal : length] = order[length - 1 - equal : length][::-1]
    order[:length] = order[:length][::-1]
    while length < whole and not keys[order[length]] < keys[order[length - 1]]:
        length += 1
    return length


first_run = _first_run if sys.version_info < (3, 13) else _first_run_with_equals


def max_(*values: Value, key: Value = None, default: Value = ABSENT) -> Value:
    return _best("max", values, key, default)


def min_(*values: Value, key: Value = None, default: Value = ABSENT) -> Value:
    return _best("min", values, key, default)


def _best(name: str, values: Value, key: Value, default: Value) -> Value:
    iterator = iter(values[0] if len(values) == 1 else values)
    best = next(iterator, ABSENT)
    if best is ABSENT:
        if default is ABSENT:
            raise ValueError(f"{name}() {NO_ELEMENT}")
        return default
    score = best if key is None else key(best)
    for value in iterator:
        other = value if key is None else key(value)
        if (other > score) if name == "max" else (other < score):
            best, score = value, other
    return best


class Compared:
    """What a function that ``functools.cmp_to_key`` gives makes of a value."""

    __slots__ = ("compare", "obj")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, compare: Value, obj: Value) -> None:
        self.compare, self.obj = compare, obj

    def __lt__(self, other: Value) -> bool:
        return bool(self.compare(self.obj, other.obj) < 0)

    def __gt__(self, other: Value) -> bool:
        return bool(self.compare(self.obj, other.obj) > 0)

    def __eq__(self, other: Value) -> bool:
        return bool(self.compare(self.obj, other.obj) == 0)

    def __le__(self, other: Value) -> bool:
        return bool(self.compare(self.obj, other.obj) <= 0)

    def __ge__(self, other: Value) -> bool:
        return bool(self.compare(self.obj, other.obj) >= 0)


@equivalent(functools.cmp_to_key)
def cmp_to_key_(mycmp: Value) -> Value:
    return functools.partial(Compared, mycmp)


def buffer_(data: Value = None, *, persistent: Value = True) -> Value:
    if data is None:
        data = torch.empty(0)
    made = data.detach().requires_grad_(data.requires_grad)
    made.persistent = persistent
    made._is_buffer = True
    return made


def mark_static_address_(t: Value, guard: Value = False) -> None:
    if not isinstance(t, torch.Tensor):
        raise TypeError(f"mark_static_address expects a tensor but received {type(t)}")
    marked: Value = t
    marked._dynamo_static_input_type = "guarded" if guard else "unguarded"


def count_elements(counts: Value, iterable: Value) -> None:
    for value in iterable:
        counts[value] = counts.get(value, 0) + 1


def reduce_(function: Value, iterable: Value, initial: Value = ABSENT) -> Value:
    iterator: Value = ABSENT
    with contextlib.suppress(TypeError):
        iterator = walker(iterable)
    if iterator is ABSENT:
        raise TypeError("reduce() arg 2 must support iteration")
    if initial is ABSENT:
        initial = next(iterator, ABSENT)
        if initial is ABSENT:
            raise TypeError("reduce() of empty iterable with no initial value")
    for value in iterator:
        initial = function(initial, value)
    return initial


def keys_of(holder: dict[Value, Value]) -> Value:
    for key in holder:  # noqa: UP028
        yield key


def values_of(holder: dict[Value, Value]) -> Value:
    for key in holder:
        yield holder[key]


def items_of(holder: dict[Value, Value]) -> Value:
    for key in holder:
        yield key, holder[key]


def _called(function: Value, *args: Value) -> Value:
    return function(*args)


def until_(function: Value, sentinel: Value) -> Value:
    """``iter(function, sentinel)``."""
    if not callable(function):
        raise TypeError(NO_CALLABLE)
    return _results_until(function, sentinel)


def _results_until(function: Value, sentinel: Value) -> Value:
    while True:
        try:
            value = function()
        except StopIteration:
            return
        if value in (sentinel,):  # the same object, or equal
            return
        yield value


def item_getter_(holder: Value, *keys: Value) -> Value:
    """What ``operator.itemgetter(*keys)`` gives for ``holder``."""
    return holder[keys[0]] if len(keys) == 1 else tuple([holder[key] for key in keys])


def forwards(sequence: Value) -> Value:
    """``iter`` of what is read by its ``__getitem__``."""
    place = 0
    while True:
        try:
            value = sequence[place]
        except (IndexError, StopIteration):
            return
        place += 1
        yield value


def walked(iterable: Value) -> list[Value]:
    """The elements that native code comes upon."""
    return [value for value in iterable]  # noqa: C416


def taken(iterator: Value, most: float) -> list[Value]:
    """The elements that an iterator has left, or the first of more than ``most``: native code looks one too far."""
    values: list[Value] = []
    while len(values) <= most and (value := next(iterator, ABSENT)) is not ABSENT:
        values.append(value)
    return values


def drawn(iterable: Value, most: float) -> list[Value]:
    """The elements that an instruction takes of what it is given, or the first of more than ``most``."""
    return taken(iter(iterable), most)


def reversed_(sequence: Value) -> Value:
    """``reversed`` of what is read by its ``__getitem__``, whose length is asked at once."""
    return _backwards(sequence, len(sequence))


def list_reversed_(values: Value) -> Value:
    """``reversed`` of a list."""
    return _list_backwards(values, len(values))


def _list_backwards(values: Value, count: int) -> Value:
    while 0 < count <= len(values):
        count -= 1
        yield values[count]


def _backwards(sequence: Value, count: int) -> Value:
    while count:
        count -= 1
        try:
            value = sequence[count]
        except (IndexError, StopIteration):
            return
        yield value


def overridden(function: Value, holders: list[Value], kinds: Value, args: Value, kwargs: Value) -> Value:
    """A call of torch on objects whose classes have a ``__torch_function__``: each is asked until one answers;
    NotImplemented where none does.
    """
    for holder in holders:
        method = holder.__torch_function__
        value = method(function, kinds, args) if kwargs is None else method(function, kinds, args, kwargs)
        if value is not NotImplemented:
            return value
    return NotImplemented


OVERRIDDEN: Value = overridden
FORWARDS: Value = forwards
LISTED: Value = list_
WALKED: Value = walked  # the elements of what is iterated by its __getitem__
TAKEN: Value = taken
DRAWN: Value = drawn
CALLED: Value = _called  # of what can be called in any way: what the factory of a defaultdict makes


def dispatched(registry: Value, kind: type) -> Value:
    """The function of a ``functools.singledispatch`` for a class that derives from all of them that it belongs to."""
    for base in kind.__mro__:
        if base in registry:
            return registry[base]
    return None


def run_body(function: Value, space: Value) -> Value:
    """Runs the body of a class statement; the interpreter does it."""
    raise NotImplementedError


def build_class(function: Value, name: str, /, *given: Value, metaclass: Value = ABSENT, **kwargs: Value) -> Value:
    bases = given
    if [base for base in given if not isinstance(base, type)]:
        bases = types.resolve_bases(given)
    if metaclass is ABSENT:
        metaclass = type(bases[0]) if bases else type
    if isinstance(metaclass, type):
        for base in bases:
            kind = type(base)
            if issubclass(metaclass, kind):
                continue
            if not issubclass(kind, metaclass):
                raise TypeError(
                    "metaclass conflict: the metaclass of a derived class must be a (non-strict) subclass of the "
                    "metaclasses of all its bases"
                )
            metaclass = kind
    prepare = None if metaclass is type else getattr(metaclass, "__prepare__", None)
    space = {} if prepare is None else prepare(name, bases, **kwargs)
    if not isinstance(space, dict) and not hasattr(type(space), "__getitem__"):
        title = metaclass.__name__ if isinstance(metaclass, type) else "<metaclass>"
        raise TypeError(f"{title}.__prepare__() must return a mapping, not {type(space).__name__}")
    cell = run_body(function, space)
    if bases is not given and "__orig_bases__" not in space:
        space["__orig_bases__"] = given
    cls = metaclass(name, bases, space, **kwargs)
    if cell is not None and isinstance(cls, type):
        _check_cell(cell, cls, name)
    return cls


def _check_cell(cell: Value, cls: Value, name: str) -> None:
    held: tuple[Value, ...] = ()
    try:
        held = (cell.cell_contents,)
    except ValueError:
        pass
    if not held:
        raise RuntimeError(
            f"__class__ not set defining {name!r} as {cls!r}. Was __classcell__ propagated to type.__new__?"
        )
    if held[0] is not cls:
        raise TypeError(f"__class__ set to {held[0]!r} defining {name!r} as {cls!r}")


VIEWS_OF_DICTS: dict[str, Value] = {"keys": keys_of, "values": values_of, "items": items_of}  # where entries move
STANDS_FOR.update({function: getattr(dict, name) for name, function in VIEWS_OF_DICTS.items()})
STANDS_FOR.update({_each: iter, _list_backwards: lambda values, count: reversed(values)})
KINDS.update({_results_until: type(iter(int, 1)), _each: type(iter([])), _list_backwards: type(reversed([]))})
# How iterators that have an equivalent are advanced by name.
STEPS = tuple(kind.__next__ for kind in STANDS_FOR.values() if hasattr(kind, "__next__"))
