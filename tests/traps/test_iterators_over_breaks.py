"""Iterators, generators and views that live across a step which runs eagerly go on where they stood."""

from __future__ import annotations

import collections
import itertools
import operator
import types
from typing import Any

import numpy as np
from tests.traps.plainly import with_numbers
from tests.traps.subclasses import Derived, Lists, Ordered, Pairs, Sets, Texts, brk
from tests.traps.trap import Table, Trap, hold

# ruff: noqa: C416, C417  The programs say it in all the ways there are.

TABLE = Table()


@with_numbers(TABLE)
def list_iter(x, n):
    q = Lists([1, 2, n])
    m = super(Lists, q).__iter__
    brk(x)
    return list(m())


@with_numbers(TABLE)
def list_iter2(x, n):
    q = Lists([1, 2, n])
    m = super(Lists, q).__iter__()
    a = next(m)
    brk(x)
    return a, [v for v in m]


@with_numbers(TABLE)
def list_loop_in_super_iter(x, n):
    q = Lists([1.0, 2.0, 3.0])
    t = 0
    for v in super(Lists, q).__iter__():
        t = t + v * brk(x)
    return t


@with_numbers(TABLE)
def set_iter(x, n):
    q = Sets([1, 2])
    m = super(Sets, q).__iter__()
    a = next(m)
    brk(x)
    return a, [*m]


@with_numbers(TABLE, hits=0)
def od_for(x, n):
    q = Ordered(a=n, b=1)
    t = []
    for k in super(Ordered, q).__iter__():
        t.append((k, brk(x)))
    return t


@with_numbers(TABLE)
def tuple_iter(x, n):
    q = Pairs(n, 2)
    m = super(Pairs, q).__iter__()
    brk(x)
    return list(m), list(q)


@with_numbers(TABLE)
def gen_next(x, n):
    q = Derived(n).g()
    m = q.__next__
    a = m()
    brk(x)
    return a, m()


@with_numbers(TABLE)
def gen_send(x, n):
    def g():
        r = yield n
        while True:
            r = yield (r, n)

    q = g()
    m = q.send
    next(q)
    brk(x)
    return m(1), m(n)


@with_numbers(TABLE)
def gen_throw(x, n):
    def g():
        try:
            yield 1
        except ValueError as e:
            yield ("caught", str(e))

    q = g()
    next(q)
    m = q.throw
    brk(x)
    return m(ValueError("v"))


@with_numbers(TABLE)
def gen_close(x, n):
    log = []

    def g():
        try:
            yield 1
        finally:
            log.append("closed")

    q = g()
    next(q)
    m = q.close
    brk(x)
    m()
    return log


@with_numbers(TABLE)
def defaultdict_m(x, n):
    q = collections.defaultdict(list)
    m = q.__missing__
    brk(x)
    m("a").append(1)
    return dict(q)


@with_numbers(TABLE)
def enumerate_it(x, n):
    q = enumerate(Lists([1, 2]), n)
    a = next(q)
    brk(x)
    return a, list(q)


@with_numbers(TABLE)
def enumerate_native(x, n):
    q = enumerate([1, 2, 3], n)
    a = next(q)
    brk(x)
    return a, list(q)


@with_numbers(TABLE)
def zip_native(x, n):
    q = zip([1, 2, 3], (n, 2, 4))
    a = next(q)
    brk(x)
    return a, list(q)


@with_numbers(TABLE)
def zip_strict(x, n):
    q = zip([1, 2, 3], (n, 2), strict=True)
    a = next(q)
    brk(x)
    try:
        return a, list(q)
    except ValueError as e:
        return str(e)


@with_numbers(TABLE)
def map_native(x, n):
    q = map(str, [1, 2, n])
    a = next(q)
    brk(x)
    return a, list(q)


@with_numbers(TABLE)
def map_lambda(x, n):
    q = map(lambda v: v + n, [1, 2, n])
    a = next(q)
    brk(x)
    return a, list(q)


@with_numbers(TABLE)
def map_bound(x, n):
    q = Lists([1, 2])
    m = map(super(Lists, q).count, [1, 2, 3])
    a = next(m)
    brk(x)
    return a, list(m)


@with_numbers(TABLE)
def filter_bound(x, n):
    q = Lists([1, 2])
    m = filter(super(Lists, q).__contains__, [1, 2, 3])
    a = next(m)
    brk(x)
    return a, list(m)


@with_numbers(TABLE, hits=0)
def chain_it(x, n):
    q = itertools.chain([1, n], (3,))
    a = next(q)
    brk(x)
    return a, list(q)


@with_numbers(TABLE)
def count_it(x, n):
    q = itertools.count(n, 2)
    a = next(q)
    brk(x)
    return a, next(q), next(q)


@with_numbers(TABLE)
def repeat_it(x, n):
    q = itertools.repeat(n, 3)
    a = next(q)
    brk(x)
    return a, list(q)


@with_numbers(TABLE, hits=0)
def cycle_it(x, n):
    q = itertools.cycle([1, n])
    a = next(q)
    brk(x)
    return a, next(q), next(q)


@with_numbers(TABLE, hits=0)
def islice_it(x, n):
    q = itertools.islice([1, 2, n, 4], 1, None)
    a = next(q)
    brk(x)
    return a, list(q)


@with_numbers(TABLE)
def range_next(x, n):
    q = iter(range(n))
    m = q.__next__
    brk(x)
    return m(), list(q)


@with_numbers(TABLE)
def range_hint(x, n):
    q = iter(range(5))
    next(q)
    m = q.__length_hint__
    brk(x)
    return m(), operator.length_hint(q)


@with_numbers(TABLE)
def range_attrs(x, n):
    r = range(n, n + 5, 2)
    brk(x)
    return len(r), r.start, r.count(n), n in r, list(r), r[1], list(reversed(r))


@with_numbers(TABLE)
def rev_it(x, n):
    w = [1, n, 3]
    q = reversed(w)
    next(q)
    brk(x)
    return list(q), type(q).__name__


@with_numbers(TABLE)
def rev_it_done(x, n):
    w = [1]
    q = reversed(w)
    list(q)
    brk(x)
    return list(q), type(q).__name__


@with_numbers(TABLE)
def st_it(x, n):
    q = str.__iter__(Texts("abc"))
    next(q)
    brk(x)
    return list(q)


@with_numbers(TABLE, hits=0)
def rev_dict(x, n):
    q = reversed({"a": n, "b": 2})
    next(q)
    brk(x)
    return list(q)


@with_numbers(TABLE, hits=0)
def od_it(x, n):
    q = iter(collections.OrderedDict(a=n, b=2).items())
    next(q)
    brk(x)
    return list(q)


@with_numbers(TABLE, hits=0)
def od_for_plain(x, n):
    t = []
    for k, v in collections.OrderedDict(a=n, b=2).items():
        t.append((k, v, brk(x)))
    return t


@with_numbers(TABLE)
def counter_for(x, n):
    t = []
    for k, v in collections.Counter("aab").items():
        t.append((k, v, brk(x)))
    return t


@with_numbers(TABLE, hits=0)
def deque_for(x, n):
    t = []
    for v in collections.deque([n, 2]):
        t.append((v, brk(x)))
    return t


@with_numbers(TABLE, hits=0)
def shared_iter(x, n):
    it = iter([1, 2, n])
    d = [it]
    brk(x)
    next(it)
    return list(d[0])


@with_numbers(TABLE, hits=0)
def shared_gen(x, n):
    def g():
        yield 1
        yield 2
        yield n

    it = g()
    d = [it]
    brk(x)
    next(it)
    return list(d[0])


@with_numbers(TABLE, hits=0)
def shared_gen_kill(x, n):
    def g():
        yield 1
        yield 2
        yield n

    it = g()
    d = [it]
    dir(x)
    exec("pass")
    next(it)
    return list(d[0])


@with_numbers(TABLE, hits=0)
def gen_to_native(x, n):
    def g():
        yield 1.0
        yield 2.0
        yield float(n)

    it = g()
    a = np.fromiter(it, float, count=1)
    return float(a[0]), next(it), brk(x)


@with_numbers(TABLE)
def gen_to_native_dead(x, n):
    def g():
        yield 1.0
        yield 2.0
        yield float(n)

    a = np.fromiter(g(), float)
    return float(a.sum()), brk(x)


@with_numbers(TABLE, hits=0)
def iter_to_native(x, n):
    it = iter([1.0, 2.0, float(n)])
    a = np.fromiter(it, float, count=1)
    return float(a[0]), next(it), brk(x)


@with_numbers(TABLE, hits=0)
def range_to_native(x, n):
    it = iter(range(n))
    a = np.fromiter(it, float, count=1)
    return float(a[0]), next(it), brk(x)


@with_numbers(TABLE, hits=0)
def range_in_list(x, n):
    it = iter(range(n))
    d = [it]
    brk(x)
    next(it)
    return list(d[0])


@with_numbers(TABLE, hits=0)
def gen_in_obj(x, n):
    o = types.SimpleNamespace()
    o.g = (i for i in range(n))
    next(o.g)
    brk(x)
    return list(o.g)


@with_numbers(TABLE, hits=0)
def gen_in_obj2(x, n):
    class A:
        pass

    o = A()
    o.g = (i for i in range(n))
    next(o.g)
    brk(x)
    return list(o.g)


def turns(n: int) -> Any:
    yield from range(n)


@with_numbers(TABLE)
def chain_of_generators(x, n):
    both = itertools.chain(turns(n), turns(2))
    next(both)
    brk(x)
    return list(both), x * n


@with_numbers(TABLE)
def chain_of_generators_of_which_none_has_begun(x, n):
    both = itertools.chain(turns(n), turns(2))
    brk(x)
    return [a + b for a, b in zip(both, range(9), strict=False)], x * n


@with_numbers(TABLE, hits=0)
def chain_kept_by_an_object(x, n):
    held = types.SimpleNamespace(both=itertools.chain(turns(n), (n + 1, n + 2)), rest=enumerate((n + 1, n + 2)))
    brk(x)
    return list(held.both), list(held.rest)


@TABLE.parametrize()
def test_an_iterator_goes_on_where_it_stood(trap: Trap) -> None:
    hold(trap)
