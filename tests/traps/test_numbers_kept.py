"""Numbers that change, kept by objects, functions, errors and native code: plain ints and floats of that call."""

from __future__ import annotations

import bisect
import collections
import contextvars
import dataclasses
import datetime
import decimal
import enum
import fractions
import functools
import heapq
import inspect
import io
import itertools
import logging
import operator
import re
import statistics
import string
import sys
import textwrap
import threading
import types
import weakref

import torch
from tests.traps.plainly import with_numbers
from tests.traps.trap import Table, Trap, hold

# ruff: noqa: B034, F541, UP031  The programs say it in all the ways there are.

TABLE = Table()


@with_numbers(TABLE)
def decimal_n(x, n):
    return (
        decimal.Decimal(n) / 3,
        fractions.Fraction(n, 4),
        fractions.Fraction(1, 2) * n,
        decimal.Decimal(2) ** n,
        x * n,
    )


@with_numbers(TABLE)
def bisect_n(x, n):
    q = [1, 3.5, 5]
    bisect.insort(q, n)
    return bisect.bisect([1, 3.5, 5], n), q, x * n


@with_numbers(TABLE)
def heap_n(x, n):
    q = [5, 4.5]
    heapq.heapify(q)
    heapq.heappush(q, n)
    return heapq.heappop(q), q, heapq.nsmallest(2, [n, 4.5, 1]), x * n


@with_numbers(TABLE)
def stat_n(x, n):
    return (
        statistics.mean([n, 2]),
        statistics.median([n, 4.5, 1]),
        sum([n, 1.5]),
        sum([1.5, n]),
        sum((n, n)),
        any([n - 3]),
        all([n - 3]),
        x * n,
    )


@with_numbers(TABLE)
def zip_n(x, n):
    return (
        list(zip(range(n), "abcdefg")),
        dict(zip("ab", (n, 2))),
        list(map(lambda a, b: a + b, [n], [1.5])),
        list(map(str, [n])),
        list(filter(None, [n - 3, 1])),
        list(map(int, [n, n * 1.5])),
        list(map(float, [n])),
        list(map(abs, [n - 4])),
        list(map(round, [n * 1.2])),
        x * n,
    )


@with_numbers(TABLE)
def reduce_n(x, n):
    return (
        functools.reduce(lambda a, b: a * b, [1, n, 1.5]),
        functools.reduce(operator.mul, [n, 2, 1.5]),
        functools.reduce(operator.add, [1.5, n]),
        list(itertools.accumulate([n, 1, 1.5])),
        list(itertools.product(range(2), repeat=n))[-1],
        list(itertools.starmap(pow, [(2, n)])),
        x * n,
    )


@with_numbers(TABLE)
def op_n(x, n):
    return (
        operator.add(1.5, n),
        operator.lt(1.5, n),
        operator.index(n),
        operator.mul("a", n),
        operator.getitem([1, 2, 3, 4, 5, 6, 7, 8, 9], n),
        operator.contains([4.0], n),
        operator.eq(4.0, n),
        operator.itemgetter(n)([1] * 9 + [2]),
        operator.countOf([4.0], n),
        operator.indexOf([3.0, 4.0, 5.0, 6.0, 7.0, 8.0], n),
        operator.truediv(1, n),
        operator.neg(n),
        operator.concat([n], [1]),
        operator.not_(n - 3),
        operator.truth(n - 3),
        x * n,
    )


@with_numbers(TABLE)
def defaults_n(x, n):
    def f(a=n, *, b=n * 0.5):
        return a, b

    f.attr = n
    return f, x * n


@with_numbers(TABLE, hits=0)
def exc_n(x, n):
    try:
        raise ValueError(n, [n], {"k": n})
    except ValueError as e:
        return e, x * n


@with_numbers(TABLE, hits=0)
def raise_n(x, n):
    raise KeyError(n, [n * 0.5], x)


class Err(Exception):
    def __init__(self, code):
        super().__init__(f"code")
        self.code = code


@with_numbers(TABLE, hits=0)
def raise_attr(x, n):
    raise Err(n)


@with_numbers(TABLE, hits=0)
def raise_from(x, n):
    try:
        raise ValueError(n)
    except ValueError as e:
        raise RuntimeError("outer", n) from e


@with_numbers(TABLE, hits=0)
def stop_value(x, n):
    def g():
        yield 1
        return n

    it = g()
    next(it)
    try:
        next(it)
    except StopIteration as e:
        return e.value, e, x * n


@with_numbers(TABLE, hits=0)
def assert_n(x, n):
    assert n > 100, (n, "msg")
    return x


@dataclasses.dataclass
class DC:
    a: int
    b: float = 0.5
    c: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class DF:
    a: int


class SL:
    __slots__ = ("a", "b")


class NT(collections.namedtuple("NT", "a b")):
    pass


class EN(enum.IntEnum):
    A = 3
    B = 4
    C = 5
    D = 6
    E = 7
    F = 8


@with_numbers(TABLE)
def objects_n(x, n):
    s = SL()
    s.a = n
    s.b = [n]
    o = types.SimpleNamespace(a=n)
    d = DC(n, n * 0.5)
    d.c.append(n)
    return (
        d,
        DF(n),
        s,
        o,
        NT(n, 2),
        hash(DF(n)),
        DF(n) == DF(4),
        dataclasses.asdict(d),
        dataclasses.astuple(d),
        repr(d),
        EN(n),
        EN(n).name,
        x * n,
    )


@with_numbers(TABLE, hits=0)
def containers_n(x, n):
    return (
        collections.deque([n], maxlen=n),
        collections.Counter([n, n]),
        collections.Counter(a=n),
        collections.defaultdict(int, {n: n}),
        collections.OrderedDict([(n, n)]),
        collections.ChainMap({"a": n}),
        range(n),
        slice(n),
        {n},
        frozenset([n]),
        bytes([n]),
        memoryview(bytes([n])).tolist(),
        types.MappingProxyType({"a": n}),
        iter([n]),
        enumerate([n], n),
        zip([n]),
        map(str, [n]),
        reversed([n]),
        (i for i in [n]),
        {"a": n}.items(),
        {"a": n}.values(),
        [n].append,
        functools.partial(max, n),
        x * n,
    )


@with_numbers(TABLE)
def closure_n(x, n):
    k = [n]
    m = n * 2

    def f():
        return k, m

    class K:
        a = n

        def g(self):
            return m

    return f, K, K(), lambda: n, x * n


@with_numbers(TABLE, hits=0)
def global_n(x, n):
    global GLOB
    GLOB = n
    r = GLOB, type(GLOB) is int
    sys.framefuse_test = n
    return r, sys.framefuse_test, x * n


GLOB = 0


@with_numbers(TABLE, hits=0)
def logging_n(x, n):
    h = Rec()
    lg = logging.getLogger("lg")
    lg.addHandler(h)
    lg.propagate = False
    try:
        lg.warning("v %s", n)
        lg.error("w %d", n * 2, extra={"k": n})
    finally:
        lg.removeHandler(h)
    return [(r.getMessage(), [type(a) is int for a in r.args], getattr(r, "k", None)) for r in h.got], x * n


class Rec(logging.Handler):
    def __init__(self):
        super().__init__()
        self.got = []

    def emit(self, r):
        self.got.append(r)


@with_numbers(TABLE)
def re_n(x, n):
    return (
        re.sub("a", "b", "aaaaaaaaaa", n),
        re.compile("a{%d}" % n).pattern,
        re.split("a", "bababababababab", n),
        textwrap.shorten("hello world", n + 10),
        x * n,
    )


@with_numbers(TABLE)
def date_n(x, n):
    return datetime.timedelta(days=n), datetime.date(2000, n, 1), x * n


@with_numbers(TABLE)
def io_n(x, n):
    b = io.StringIO("abcdefghij")
    return b.read(n), b.seek(n), b.read(), io.BytesIO(b"abcdefgh").read(n), x * n


@with_numbers(TABLE)
def fmt_n(x, n):
    return (
        format(n, "05d"),
        format(3.14159, f".{n}f"),
        f"{3.14159:.{n}f}",
        "%.*f" % (n, 3.14159),
        "%*d" % (n, 1),
        string.Template("$a").substitute(a=n),
        x * n,
    )


@with_numbers(TABLE)
def bits_n(x, n):
    return (
        n.bit_length(),
        n.to_bytes(2, "little"),
        int.from_bytes(bytes([n]), "big"),
        n << 2,
        1 << n,
        n & 5,
        ~n,
        n ^ 3,
        n.real,
        n.imag,
        n.numerator,
        n.conjugate(),
        (n * 1.5).is_integer(),
        (n * 0.5).hex(),
        (n * 0.5).as_integer_ratio(),
        float.fromhex((n * 0.5).hex()),
        int.__add__(1, n),
        int.__mul__(n, 2),
        float.__add__(1.5, n),
        float.__lt__(4.5, n),
        (4.5).__lt__(n),
        (1).__add__(n),
        x * n,
    )


@with_numbers(TABLE)
def subclass_n(x, n):
    class MyInt(int):
        pass

    class MyF(float):
        pass

    return MyInt(n), MyF(n), MyF(n * 0.5), MyInt(n) + 1, MyInt(n).real, x * n


@with_numbers(TABLE)
def inspect_n(x, n):
    def f(a, b=n):
        pass

    s = inspect.signature(f)
    return s.parameters["b"].default, str(s), x * n


@with_numbers(TABLE, hits=0)
def lru_n(x, n):
    return fact(n), fact.cache_info().currsize > 0, x * n


@functools.lru_cache(None)
def fact(k):
    return 1 if k < 2 else k * fact(k - 1)


@with_numbers(TABLE)
def sizes(x, n):
    s = x.shape[0]
    d = {s: 1}
    return (
        type(s) is int,
        s,
        d,
        [s],
        (s,),
        x.shape,
        list(x.size()),
        x.numel(),
        len(x),
        type(x.shape[0]) is int,
        type(x.numel()),
        torch.Size([s, n]),
        x * n,
    )


@with_numbers(TABLE)
def str_keys(x, n):
    k = f"k{n}"
    d = {k: n}
    return d, k, type(k) is str, {k}, [k], getattr(types.SimpleNamespace(**d), k), k.upper(), k in d, x * n


@with_numbers(TABLE)
def setattr_n(x, n):
    o = types.SimpleNamespace()
    setattr(o, f"a{n}", n)
    object.__setattr__(o, "z", n)
    o.__dict__["w"] = n
    vars(o).update(q=n)
    return o, vars(o), x * n


class CP:
    def __init__(self, k):
        self.k = k

    @functools.cached_property
    def c(self):
        return self.k * 2


@with_numbers(TABLE)
def cached_n(x, n):
    o = CP(n)
    a = o.c
    return a, o.c, vars(o), x * o.c


@with_numbers(TABLE)
def exc_group(x, n):
    e = ValueError("a")
    e.add_note(f"note {n}")
    e.k = n
    return e.__notes__, vars(e), x * n


@with_numbers(TABLE, hits=0)
def thread_local(x, n):
    t = threading.local()
    t.a = n
    return t.a, type(t.a) is int, vars(t), x * n


@with_numbers(TABLE, hits=0)
def ctxvar(x, n):
    v = contextvars.ContextVar("v")
    v.set(n)
    return v.get(), x * n


@with_numbers(TABLE, hits=0)
def weakdict(x, n):
    o = CP(n)
    w = weakref.WeakKeyDictionary()
    w[o] = n
    return w[o], len(w), x * n


class Hashed:
    def __init__(self, k):
        self.k = k

    def __hash__(self):
        HEARD.append(self.k)
        return hash(self.k)


HEARD: list[int] = []
KEPT: dict[Hashed, int] = {}


@with_numbers(TABLE, hits=0)
def stored_under_a_key_that_ends_the_recording(x, n):
    KEPT[Hashed(n)] = n * 2
    KEPT.update({Hashed(n + 100): n * 3})
    made = {Hashed(n + 200): n}
    KEPT.update(made)
    return [*KEPT.values()][-3:], HEARD[-3:], x * n


@with_numbers(TABLE, hits=0)
def sizes_as_keys(x, n):
    whole = x.expand(n, *x.shape)
    made = {whole.shape: 1, whole[None].shape: 2}
    made.setdefault(whole.size(), 3)
    named = collections.namedtuple("named", "rows")
    return made, dict.fromkeys([whole.shape[:1]]), {named(whole.shape[0]): 4}, {frozenset(whole.shape)}, whole * 2


@TABLE.parametrize()
def test_what_is_kept_is_a_plain_number(trap: Trap) -> None:
    hold(trap)
