"""``itertools``, ``deque``, ``bisect`` and functions of numbers over what native code walks by calling the program."""

from __future__ import annotations

import bisect
import itertools
import math
import operator
from collections import deque

from framefuse.capture.program.equivalents import ABSENT, walker
from framefuse.capture.program.natives import COMPARISONS, CONVERSIONS, KINDS, LESS, TRUTH, equivalent
from framefuse.ir.values import Value


@equivalent(itertools.chain, pure=True, shallow=True, keeps_numbers=True, iterates=True, hands_on=True)
def chain_(*iterables: Value) -> Value:
    for iterable in iterables:
        for value in iterable:  # noqa: UP028 - a chain is no way to send into what it walks
            yield value


@equivalent(itertools.accumulate, pure=True, calls=True, asks=("__add__", "__radd__"), hands_on=True)
def accumulate_(iterable: Value, func: Value = None, *, initial: Value = None) -> Value:
    iterator = walker(iterable)
    total = next(iterator, ABSENT) if initial is None else initial
    if total is ABSENT:
        return
    yield total
    for value in iterator:
        total = total + value if func is None else func(total, value)
        yield total


@equivalent(itertools.dropwhile, pure=True, calls=True, asks=TRUTH)
def dropwhile_(predicate: Value, iterable: Value, /) -> Value:
    iterator = iter(iterable)
    for value in iterator:
        if not predicate(value):
            yield value
            break
    for value in iterator:
        yield value


@equivalent(itertools.takewhile, pure=True, calls=True, asks=TRUTH)
def takewhile_(predicate: Value, iterable: Value, /) -> Value:
    for value in iterable:
        if not predicate(value):
            return
        yield value


@equivalent(itertools.filterfalse, pure=True, calls=True, asks=TRUTH)
def filterfalse_(predicate: Value, iterable: Value, /) -> Value:
    for value in iterable:
        if not (value if predicate is None else predicate(value)):
            yield value


@equivalent(itertools.starmap, pure=True, calls=True)
def starmap_(function: Value, iterable: Value, /) -> Value:
    for values in iterable:
        yield function(*values)


@equivalent(itertools.groupby, pure=True, calls=True, compares=COMPARISONS)
def groupby_(iterable: Value, key: Value = None) -> Value:
    iterator = iter(iterable)
    value = next(iterator, ABSENT)
    if value is ABSENT:
        return
    current = value if key is None else key(value)

    def group(wanted: Value) -> Value:
        nonlocal value, current
        yield value
        for value in iterator:
            current = value if key is None else key(value)
            if wanted != current:
                return
            yield value
        value = ABSENT

    while value is not ABSENT:
        wanted = current
        own = group(wanted)
        yield wanted, own
        if value is not ABSENT and wanted == current:
            for _ in own:
                pass


@equivalent(itertools.islice, pure=True, shallow=True, iterates=True, hands_on=True)
def islice_(iterable: Value, /, *bounds: Value) -> Value:
    itertools.islice((), *bounds)  # raises what eager raises
    return _slice_of(walker(iterable), slice(*bounds))


def _slice_of(iterator: Value, bounds: Value) -> Value:
    place, wanted = 0, bounds.start or 0
    while True:
        while place < wanted:
            if next(iterator, ABSENT) is ABSENT:
                return
            place += 1
        if bounds.stop is not None and place >= bounds.stop:
            return
        value = next(iterator, ABSENT)
        if value is ABSENT:
            return
        place += 1
        wanted += bounds.step or 1
        if bounds.stop is not None and wanted > bounds.stop:
            wanted = bounds.stop
        yield value


KINDS[_slice_of] = itertools.islice


@equivalent(itertools.cycle, pure=True, shallow=True, iterates=True, hands_on=True)
def cycle_(iterable: Value, /) -> Value:
    values = []
    for value in iterable:
        values.append(value)
        yield value
    while values:
        for value in values:
            yield value


@equivalent(itertools.pairwise, pure=True, shallow=True, iterates=True, hands_on=True)
def pairwise_(iterable: Value, /) -> Value:
    iterator = walker(iterable)
    first = next(iterator, ABSENT)
    for value in iterator:
        yield first, value
        first = value


@equivalent(itertools.zip_longest, pure=True, shallow=True, iterates=True, hands_on=True)
def zip_longest_(*iterables: Value, fillvalue: Value = None) -> Value:
    sources = [walker(iterable) for iterable in iterables]
    ended = [False for _ in sources]
    while True:
        values = []
        for number, source in enumerate(sources):
            value = ABSENT if ended[number] else next(source, ABSENT)
            if value is ABSENT:
                ended[number] = True
                value = fillvalue
            values.append(value)
        if all(ended):
            return
        yield tuple(values)


@equivalent(itertools.compress, pure=True, iterates=True, asks=TRUTH)
def compress_(data: Value, selectors: Value) -> Value:
    for value, selected in zip(data, selectors):  # noqa: B905 - the shorter one ends it
        if selected:
            yield value


@equivalent(itertools.tee, pure=True, shallow=True, iterates=True)
def tee_(iterable: Value, n: int = 2, /) -> Value:
    itertools.tee((), n)  # raises what eager raises
    iterator = iter(iterable)
    waiting: list[list[Value]] = [[] for _ in range(n)]
    return tuple([one_of(iterator, waiting, own) for own in waiting])


def one_of(iterator: Value, waiting: list[list[Value]], own: list[Value]) -> Value:
    while True:
        if not own:
            value = next(iterator, ABSENT)
            if value is ABSENT:
                return
            for values in waiting:
                values.append(value)
        yield own.pop(0)


KINDS[one_of] = type(itertools.tee(())[0])

# What takes all that it walks at once, and calls nothing afterwards, runs natively on lists.


@equivalent(itertools.product, pure=True, shallow=True, iterates=True)
def product_(*iterables: Value, repeat: int = 1) -> Value:
    return itertools.product(*[[*iterable] for iterable in iterables], repeat=repeat)


@equivalent(itertools.combinations, pure=True, shallow=True, iterates=True)
def combinations_(iterable: Value, r: int) -> Value:
    return itertools.combinations([*iterable], r)


@equivalent(itertools.combinations_with_replacement, pure=True, shallow=True, iterates=True)
def combinations_with_replacement_(iterable: Value, r: int) -> Value:
    return itertools.combinations_with_replacement([*iterable], r)


@equivalent(itertools.permutations, pure=True, shallow=True, iterates=True)
def permutations_(iterable: Value, r: Value = None) -> Value:
    return itertools.permutations([*iterable], r)


@equivalent(deque, pure=True, shallow=True, iterates=True, hands_on=True)
def deque_(iterable: Value = (), maxlen: Value = None) -> Value:
    made: deque[Value] = deque(maxlen=maxlen)
    for value in iterable:
        made.append(value)
    return made


@equivalent(math.prod, pure=True, keeps_numbers=True, takes="keys", asks=(*CONVERSIONS, "__mul__", "__rmul__"))
def prod_(iterable: Value, /, *, start: Value = 1) -> Value:
    for value in iterable:
        start = start * value
    return start


@equivalent(operator.indexOf, pure=True, iterates=True, compares=COMPARISONS)
def indexOf_(iterable: Value, wanted: Value, /) -> int:
    for place, value in enumerate(iterable):
        if wanted in (value,):  # the same object, or equal
            return place
    raise ValueError("sequence.index(x): x not in sequence")


@equivalent(operator.countOf, pure=True, iterates=True, compares=COMPARISONS)
def countOf_(iterable: Value, wanted: Value, /) -> int:
    count = 0
    for value in iterable:
        if wanted in (value,):  # the same object, or equal
            count += 1
    return count


@equivalent(bisect.bisect_left, pure=True, calls=True, iterates=True, compares=LESS)
def bisect_left_(a: Value, x: Value, lo: Value = 0, hi: Value = None, *, key: Value = None) -> Value:
    if lo < 0:
        raise ValueError("lo must be non-negative")
    high = len(a) if hi is None else hi
    while lo < high:
        middle = (lo + high) // 2
        if (a[middle] if key is None else key(a[middle])) < x:
            lo = middle + 1
        else:
            high = middle
    return lo


@equivalent(bisect.bisect_right, pure=True, calls=True, iterates=True, compares=LESS)
def bisect_right_(a: Value, x: Value, lo: Value = 0, hi: Value = None, *, key: Value = None) -> Value:
    if lo < 0:
        raise ValueError("lo must be non-negative")
    high = len(a) if hi is None else hi
    while lo < high:
        middle = (lo + high) // 2
        if x < (a[middle] if key is None else key(a[middle])):
            high = middle
        else:
            lo = middle + 1
    return lo
