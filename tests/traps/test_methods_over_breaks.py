"""Bound methods that live across a step which runs eagerly: behind it they are what they were, by whatever name."""

from __future__ import annotations

import functools
import types

import torch
from tests.traps.plainly import with_numbers
from tests.traps.subclasses import Derived, Dicts, Floats, Ints, Lists, Ordered, Pairs, Sets, Texts, brk
from tests.traps.trap import Table, Trap, hold

# ruff: noqa: C416  The programs say it in all the ways there are.

TABLE = Table()


@with_numbers(TABLE)
def list_count(x, n):
    q = Lists([1, 2, 1])
    m = super(Lists, q).count
    brk(x)
    return m(1)


@with_numbers(TABLE)
def list_len(x, n):
    q = Lists([1, 2, 1])
    m = super(Lists, q).__len__
    brk(x)
    return m(), q.__len__()


@with_numbers(TABLE)
def list_rev(x, n):
    q = Lists([1, 2, n])
    m = super(Lists, q).__reversed__()
    a = next(m)
    brk(x)
    return a, [v for v in m]


@with_numbers(TABLE)
def list_getitem(x, n):
    q = Lists([1, 2, n])
    m = super(Lists, q).__getitem__
    brk(x)
    return m(2), q[2]


@with_numbers(TABLE)
def list_append(x, n):
    q = Lists([1, 2, n])
    m = super(Lists, q).append
    brk(x)
    m(4)
    return list.__len__(q)


@with_numbers(TABLE)
def list_append2(x, n):
    q = Lists([1, 2, n])
    m = q.append
    brk(x)
    m(4)
    return list.__len__(q)


@with_numbers(TABLE)
def list_contains(x, n):
    q = Lists([1, 2, n])
    m = super(Lists, q).__contains__
    brk(x)
    return m(400), 400 in q


@with_numbers(TABLE)
def list_for_native(x, n):
    q = Lists([1.0, 2.0, 3.0])
    t = 0
    for v in list.__iter__(q):
        t = t + v * brk(x)
    return t


@with_numbers(TABLE)
def dict_get(x, n):
    q = Dicts(a=n)
    m = super(Dicts, q).get
    brk(x)
    return m("a"), q.get("a")


@with_numbers(TABLE)
def dict_items(x, n):
    q = Dicts(a=n, b=2)
    m = super(Dicts, q).items
    brk(x)
    return list(m())


@with_numbers(TABLE)
def dict_items2(x, n):
    q = Dicts(a=n, b=2)
    m = super(Dicts, q).items()
    brk(x)
    return list(m), len(m)


@with_numbers(TABLE)
def dict_items3(x, n):
    q = Dicts(a=n, b=2)
    t = []
    for k, v in super(Dicts, q).items():
        t.append((k, v, brk(x)))
    return t


@with_numbers(TABLE)
def dict_values3(x, n):
    q = Dicts(a=n, b=2)
    t = []
    for v in dict.values(q):
        t.append((v, brk(x)))
    return t


@with_numbers(TABLE)
def dict_keys3(x, n):
    q = Dicts(a=n, b=2)
    t = []
    for v in dict.__iter__(q):
        t.append((v, brk(x)))
    return t


@with_numbers(TABLE)
def dict_keys4(x, n):
    q = Dicts(a=n, b=2)
    it = dict.__iter__(q)
    a = next(it)
    brk(x)
    return a, list(it)


@with_numbers(TABLE)
def dict_plain_items(x, n):
    q = dict(a=n, b=2)
    m = q.items()
    brk(x)
    q["c"] = 3
    return list(m), len(m)


@with_numbers(TABLE)
def dict_plain_keys(x, n):
    q = dict(a=n, b=2)
    m = q.keys()
    brk(x)
    q["c"] = 3
    return list(m), "c" in m


@with_numbers(TABLE)
def dict_getitem(x, n):
    q = Dicts(a=n)
    m = super(Dicts, q).__getitem__
    brk(x)
    return m("a")


@with_numbers(TABLE)
def dict_pop(x, n):
    q = Dicts(a=n)
    m = super(Dicts, q).pop
    brk(x)
    return m("a"), dict.__len__(q)


@with_numbers(TABLE)
def dict_setitem(x, n):
    q = Dicts(a=n)
    m = super(Dicts, q).__setitem__
    brk(x)
    m("b", 2)
    return dict.__len__(q)


@with_numbers(TABLE)
def dict_fromkeys(x, n):
    m = super(Dicts, Dicts).fromkeys
    brk(x)
    return type(m("ab")).__name__


@with_numbers(TABLE)
def dict_fromkeys_local(x, n):
    class E(dict):
        pass

    m = E.fromkeys
    brk(x)
    return type(m("ab")) is E


@with_numbers(TABLE)
def set_len(x, n):
    q = Sets([1, 2])
    m = super(Sets, q).__len__
    brk(x)
    return m()


@with_numbers(TABLE)
def set_contains(x, n):
    q = Sets([1, 2])
    m = super(Sets, q).__contains__
    brk(x)
    return m(1)


@with_numbers(TABLE)
def set_add(x, n):
    q = Sets([1, 2])
    m = q.add
    brk(x)
    m(3)
    return set.__len__(q)


@with_numbers(TABLE)
def od_items(x, n):
    q = Ordered(a=n, b=1)
    m = super(Ordered, q).items
    brk(x)
    return list(m())


@with_numbers(TABLE)
def od_items_move(x, n):
    q = Ordered(a=n, b=1)
    q.move_to_end("a")
    m = super(Ordered, q).items
    brk(x)
    return list(m())


@with_numbers(TABLE)
def tuple_count(x, n):
    q = Pairs(n, 2)
    m = super(Pairs, q).count
    brk(x)
    return m(2), q.count(2), q.extra, type(q).__name__, tuple.__len__(q)


@with_numbers(TABLE)
def tuple_len(x, n):
    q = Pairs(n, 2)
    m = super(Pairs, q).__len__
    brk(x)
    return m(), len(q)


@with_numbers(TABLE)
def int_bit_length(x, n):
    q = Ints(7)
    m = super(Ints, q).bit_length
    brk(x)
    return m(), q.bit_length()


@with_numbers(TABLE)
def int_add(x, n):
    q = Ints(7)
    m = super(Ints, q).__add__
    brk(x)
    return m(1), q + 1


@with_numbers(TABLE)
def plain_int_method(x, n):
    m = n.bit_length
    brk(x)
    return m()


@with_numbers(TABLE)
def plain_int_add(x, n):
    m = n.__add__
    brk(x)
    return m(3)


@with_numbers(TABLE)
def float_is_integer(x, n):
    q = Floats(2.0)
    m = super(Floats, q).is_integer
    brk(x)
    return m(), q.is_integer()


@with_numbers(TABLE)
def str_upper(x, n):
    q = Texts("ab")
    m = super(Texts, q).upper
    brk(x)
    return m(), q.upper(), super(Texts, q).__len__()


@with_numbers(TABLE)
def str_join(x, n):
    m = f"-{n}-".join
    brk(x)
    return m(["a", "b"])


@with_numbers(TABLE)
def fmt(x, n):
    m = "{} {}".format
    brk(x)
    return m(n, 2)


@with_numbers(TABLE)
def py_method_super(x, n):
    q = Derived(n)
    m = super(Derived, q).m
    brk(x)
    return m(1)


@with_numbers(TABLE)
def py_method(x, n):
    q = Derived(n)
    m = q.m
    brk(x)
    return m(1)


@with_numbers(TABLE)
def py_super_obj(x, n):
    q = Derived(n)
    s = q.sup()
    brk(x)
    return s.m(1), s.c(2), s.s(3), s.p, s.tag


@with_numbers(TABLE)
def py_super_cls(x, n):
    s = Derived.csup()
    brk(x)
    return s.c(1), s.s(2), s.tag


@with_numbers(TABLE)
def py_classmethod_super(x, n):
    m = super(Derived, Derived).c
    brk(x)
    return m(1)


@with_numbers(TABLE)
def py_static_super(x, n):
    q = Derived(n)
    m = super(Derived, q).s
    brk(x)
    return m(1)


@with_numbers(TABLE)
def py_repr_wrapper(x, n):
    q = Derived(n)
    m = q.__repr__
    k = object.__eq__.__get__(q)
    brk(x)
    return m(), k(q), k(3)


@with_numbers(TABLE)
def py_call(x, n):
    q = Derived(n)
    m = q.__call__
    brk(x)
    return m(n)


@with_numbers(TABLE)
def py_init_wrapper(x, n):
    q = Lists([n])
    m = q.__init__
    brk(x)
    m([1, 2])
    return list.__len__(q)


@with_numbers(TABLE)
def py_hash(x, n):
    q = Derived(n)
    m = q.__hash__
    brk(x)
    return m() == object.__hash__(q)


@with_numbers(TABLE)
def py_setattr(x, n):
    q = Derived(n)
    m = q.__setattr__
    brk(x)
    m("k", 5)
    return q.k


@with_numbers(TABLE)
def py_getattribute(x, n):
    q = Derived(n)
    m = q.__getattribute__
    brk(x)
    return m("k")


@with_numbers(TABLE)
def partial_super(x, n):
    q = Lists([1, 2])
    p = functools.partial(super(Lists, q).count, 1)
    brk(x)
    return p()


@with_numbers(TABLE)
def partial_super_append(x, n):
    q = Lists([1, 2])
    p = functools.partial(super(Lists, q).append, n)
    brk(x)
    p()
    return list.__len__(q)


@with_numbers(TABLE)
def tensor_method(x, n):
    m = x.mul
    k = x.__add__
    brk(x)
    return m(2), k(1)


@with_numbers(TABLE)
def tensor_method2(x, n):
    y = x + n
    m = y.mul_
    brk(x)
    m(2)
    return y


@with_numbers(TABLE)
def tensor_super(x, n):
    m = super(torch.Tensor, x).sum
    brk(x)
    return m()


@with_numbers(TABLE)
def list_of_tensors(x, n):
    q = []
    a = q.append
    a(x)
    brk(x)
    a(x * 2)
    return q


@with_numbers(TABLE)
def list_plain(x, n):
    q = [n]
    e = q.extend
    p = q.pop
    brk(x)
    e([1, 2])
    return p(), q


@with_numbers(TABLE)
def list_next(x, n):
    q = iter([1, n])
    m = q.__next__
    brk(x)
    return m(), list(q)


@with_numbers(TABLE)
def list_it_exhausted(x, n):
    w = [1]
    q = iter(w)
    list(q)
    brk(x)
    w.append(2)
    return list(q)


@with_numbers(TABLE)
def list_it_grow(x, n):
    w = [1, n]
    q = iter(w)
    next(q)
    brk(x)
    w.append(2)
    return list(q)


@with_numbers(TABLE)
def str_it(x, n):
    q = iter("abc")
    next(q)
    brk(x)
    return list(q)


@with_numbers(TABLE)
def bound_in_dict(x, n):
    q = Lists([1, 2, 1])
    d = {"c": super(Lists, q).count, "l": super(Lists, q).__len__}
    brk(x)
    return d["c"](1), d["l"]()


@with_numbers(TABLE)
def bound_in_obj(x, n):
    q = Lists([1, 2, 1])
    o = types.SimpleNamespace(c=super(Lists, q).count)
    brk(x)
    return o.c(1)


@with_numbers(TABLE)
def bound_in_closure(x, n):
    q = Lists([1, 2, 1])
    c = super(Lists, q).count

    def f(v):
        return c(v)

    brk(x)
    return f(1)


@with_numbers(TABLE)
def bound_returned(x, n):
    q = Lists([1, 2, n])
    return super(Lists, q).count, q, brk(x)


@with_numbers(TABLE)
def tuple_state(x, n):
    q = Pairs(1, n)
    brk(x)
    return q.extra, q.extra + n


@TABLE.parametrize()
def test_a_method_is_the_one_that_was_taken(trap: Trap) -> None:
    hold(trap)
