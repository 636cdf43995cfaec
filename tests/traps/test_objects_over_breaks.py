"""Objects made in a call that live across a step which runs eagerly: behind it they are what they were."""

from __future__ import annotations

import collections
import dataclasses
import enum
import functools
import operator
import types
import weakref

from tests.traps.plainly import with_numbers
from tests.traps.subclasses import Base, Derived, Lists, brk
from tests.traps.trap import Table, Trap, hold

# ruff: noqa: UP031  The programs say it in all the ways there are.

TABLE = Table()


@with_numbers(TABLE)
def partial(x, n):
    p = functools.partial(lambda a, b, c=0: (a, b, c), n, c=3)
    p.name = "nm"
    q = p
    brk(x)
    return p(2), p.name, p is q, p.func.__name__, p.args, p.keywords


@with_numbers(TABLE)
def partialmethod(x, n):
    class A:
        def f(self, a, b):
            return (a, b)

        g = functools.partialmethod(f, 1)

    q = A()
    m = q.g
    brk(x)
    return m(n)


@with_numbers(TABLE)
def methodcaller(x, n):
    m = operator.methodcaller("count", 1)
    brk(x)
    return m([1, 1, n]), m(Lists([1]))


@with_numbers(TABLE)
def methodcaller_with_keywords(x, n):
    m = operator.methodcaller("clamp", min=n, max=2)
    brk(x)
    return m(x) + operator.methodcaller("sum", dim=0)(x)


@with_numbers(TABLE)
def itemgetter(x, n):
    m = operator.itemgetter(1, 0)
    brk(x)
    return m([1, n])


@with_numbers(TABLE)
def attrgetter(x, n):
    m = operator.attrgetter("k")
    brk(x)
    return m(Derived(n))


@with_numbers(TABLE)
def slot_wrapper(x, n):
    m = list.__len__
    k = int.__add__
    brk(x)
    return m(Lists([1])), k(2, 3)


@with_numbers(TABLE)
def method_descr(x, n):
    m = list.count
    k = str.upper
    brk(x)
    return m(Lists([1]), 1), k("a")


@with_numbers(TABLE)
def deque_m(x, n):
    q = collections.deque([n], maxlen=3)
    a = q.appendleft
    brk(x)
    a(1)
    return list(q), q.maxlen


@with_numbers(TABLE)
def counter_m(x, n):
    q = collections.Counter("aab")
    m = q.most_common
    u = q.update
    brk(x)
    u("bbb")
    return m(1)


@with_numbers(TABLE)
def namedtup(x, n):
    P = collections.namedtuple("P", "a b")
    p = P(n, x)
    r = p._replace
    brk(x)
    q = r(b=2)
    return q.a, q.b, isinstance(q, P), p._asdict()["a"]


@with_numbers(TABLE)
def method_ident(x, n):
    q = Derived(n)
    t = q.m
    u = t
    brk(x)
    return t is u, t == q.m


@with_numbers(TABLE)
def slice_ident(x, n):
    s = slice(1, n)
    u = s
    brk(x)
    return s is u, [1, 2, 3, 4, 5, 6, 7, 8][s]


@with_numbers(TABLE)
def closure(x, n):
    k = n

    def inc():
        nonlocal k
        k += 1
        return k

    inc()
    brk(x)
    inc()
    return k


@with_numbers(TABLE)
def lambda_default(x, n):
    f = lambda a=n, *, b=n + 1: (a, b)
    brk(x)
    return f(), type(f()[0]) is int


@with_numbers(TABLE)
def fn_attr(x, n):
    def f():
        return f.k

    f.k = n
    brk(x)
    return f()


@with_numbers(TABLE)
def property_obj(x, n):
    q = Derived(n)
    p = Base.p
    brk(x)
    return p.__get__(q), p.fget(q)


@with_numbers(TABLE)
def getter_fn(x, n):
    g = Base.p.__get__
    brk(x)
    return g(Derived(n))


@with_numbers(TABLE, hits=0)
def weak(x, n):
    q = Derived(n)
    r = weakref.ref(q)
    brk(x)
    return r() is q


@with_numbers(TABLE)
def weak_method(x, n):
    q = Derived(n)
    r = weakref.WeakMethod(q.m)
    brk(x)
    return r()(1)


@with_numbers(TABLE, hits=0)
def exc(x, n):
    try:
        raise ValueError(n, "a")
    except ValueError as e:
        brk(x)
        return e.args, type(e.args[0]) is int


@with_numbers(TABLE, hits=0)
def exc_method(x, n):
    e = ValueError(n)
    w = e.with_traceback
    brk(x)
    return w(None) is e, e.args


@with_numbers(TABLE, hits=0)
def ctx(x, n):
    class C:
        def __enter__(self):
            return self

        def __exit__(self, *a):
            self.done = n
            return True

    c = C()
    with c:
        brk(x)
        raise ValueError
    return c.done


@with_numbers(TABLE)
def dataclass_repl(x, n):
    @dataclasses.dataclass
    class P:
        a: int
        b: float = 2.0

    p = P(n)
    brk(x)
    q = dataclasses.replace(p, b=3.0)
    return q.a, q.b, p == P(n), repr(type(p.a))


@with_numbers(TABLE, hits=0)
def memoryview_(x, n):
    b = bytearray(b"abc")
    m = b.upper
    e = b.extend
    brk(x)
    e(b"d")
    return bytes(b), m()


@with_numbers(TABLE)
def mappingproxy(x, n):
    d = {"a": n}
    m = types.MappingProxyType(d)
    brk(x)
    d["b"] = 1
    return dict(m)


@with_numbers(TABLE)
def chainmap(x, n):
    m = collections.ChainMap({"a": n}, {"b": 2})
    g = m.get
    brk(x)
    return g("a"), g("b"), m.new_child()["a"]


@with_numbers(TABLE)
def userdict(x, n):
    m = collections.UserDict(a=n)
    g = m.get
    brk(x)
    return g("a"), m


@with_numbers(TABLE, hits=0)
def cmp_to_key(x, n):
    k = functools.cmp_to_key(lambda a, b: b - a)
    brk(x)
    return sorted([1, n, 3], key=k)


@with_numbers(TABLE)
def lru(x, n):
    @functools.lru_cache
    def f(a):
        return a * 2

    f(n)
    brk(x)
    return f(n), f.cache_info().hits


@with_numbers(TABLE, hits=0)
def singledisp(x, n):
    @functools.singledispatch
    def f(a):
        return "obj"

    @f.register
    def _(a: int):
        return "int"

    brk(x)
    return f(n), f("a")


@with_numbers(TABLE)
def type_made(x, n):
    C = type("C", (Lists,), {"k": n})
    q = C([1, 1])
    m = super(Lists, q).count
    brk(x)
    return m(1), C.k, q.k


@with_numbers(TABLE)
def enum_m(x, n):
    class E(enum.IntEnum):
        A = 1

    m = E.A.__add__
    brk(x)
    return m(n), E.A.name


@with_numbers(TABLE)
def partial_kw_number(x, n):
    p = functools.partial(lambda a, c=0: (a, c), c=n)
    p.k = n
    brk(x)
    return p(1), p.k, p.keywords


@with_numbers(TABLE)
def obj_str(x, n):
    class A:
        def __init__(self, k):
            self.k = k

        def __repr__(self):
            return f"A{self.k}"

        def __eq__(self, o):
            return self.k == o.k

    a = A(n)
    return a.__str__(), str(a), a != A(3), a.__ne__(A(3)), object.__str__(a), format(a), "%s" % a, x * n


@with_numbers(TABLE)
def fn_call_dunder(x, n):
    k = [n]

    def f(a):
        return a + k[0]

    class B:
        def __init__(self):
            self.k = n

        def m(self, a):
            return a + self.k

    b = B()
    return f.__call__(1), b.m.__call__(2), functools.partial(f, n).__call__(), types.FunctionType.__call__(f, 2), x * n


class Cfg:
    def __init__(self):
        self.k = 0

    @property
    def p(self):
        return self.k * 10

    @p.setter
    def p(self, v):
        self.k = v

    def __repr__(self):
        return f"Cfg{self.k}"

    def __eq__(self, o):
        return self.k == o


CFG = Cfg()


@with_numbers(TABLE)
def prop_get_known(x, n):
    return Cfg.p.__get__(CFG), Cfg.p.fget(CFG), property.__get__(Cfg.p, CFG, Cfg), x * 2


@with_numbers(TABLE)
def prop_get_carried(x, n):
    c = Cfg()
    c.k = n
    brk(x)
    return Cfg.p.__get__(c), c.__str__(), c != 3, c.__ne__(3), c.__eq__(3)


@with_numbers(TABLE)
def prop_set(x, n):
    c = Cfg()
    Cfg.p.__set__(c, n)
    return c.k, x * 2


class KnownL(list):
    def __len__(self):
        CALLS.append(1)
        return 3

    def __iter__(self):
        return iter("abc")

    def __getitem__(self, i):
        return "g"

    def __contains__(self, v):
        return "c"


CALLS = []
KL = KnownL([1, 2, 3, 4])


class KnownD(dict):
    def __len__(self):
        CALLS.append(1)
        return 3

    def __iter__(self):
        return iter("abc")

    def keys(self):
        return ["a"]

    def values(self):
        return [9]

    def items(self):
        return [("a", 7)]

    def __getitem__(self, i):
        return "g"

    def __contains__(self, v):
        return True

    def get(self, k, d=None):
        return "got"


KD = KnownD(u=1, v=2)


@TABLE.parametrize()
def test_an_object_is_what_it_was(trap: Trap) -> None:
    hold(trap)
