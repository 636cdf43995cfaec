"""Small programs over what Python has: containers, objects, generators, exceptions, managers, texts, sorting."""

from __future__ import annotations

import collections
import contextlib
import copy
import dataclasses
import decimal
import enum
import fractions
import functools
import gc
import io
import itertools
import math
import pickle
import sys
import threading
import traceback
import typing
import weakref

import pytest
import torch
from tests.traps.small_programs import MOST, Rows, draw
from tests.traps.trap import Trap, hold, outcome
from torch import nn

ROWS = Rows()
F = nn.functional
COPIES_ITERTOOLS = sys.version_info < (3, 12)  # it warns since


@ROWS.program
def dict_sub(compiled):
    class D(dict):
        def __missing__(self, k):
            return len(k)

        def get(self, k, d=None):
            return 5

        def keys(self):
            return ["z"]

        def __contains__(self, k):
            return True

    f = compiled(
        lambda x, d: (
            x * d["abc"],
            d.get("a"),
            list(d.keys()),
            "q" in d,
            list(d),
            dict(d),
            {**d},
            list(d.items()),
            len(d),
            d | {"m": 1},
            d.setdefault("n", 3),
            d.pop("n"),
        )
    )
    for i in range(4):
        yield f(draw(i, 3), D(a=1.0 + i // 2))


@ROWS.program
def props(compiled):
    class P:
        def __init__(self):
            self._k = 1.0
            self.log = []

        @property
        def k(self):
            self.log.append("get")
            return self._k

        @k.setter
        def k(self, v):
            self.log.append("set")
            self._k = v

        @k.deleter
        def k(self):
            self.log.append("del")

        @functools.cached_property
        def c(self):
            self.log.append("c")
            return self._k * 2

        @classmethod
        def cm(cls, x):
            return x + cls.z

        @staticmethod
        def sm(x):
            return x * 3

        z = 2

    @compiled
    def f(x, p):
        p.k = p.k + 1
        y = x * p.k + p.c
        del p.k
        return p.cm(y), P.sm(x), p.c

    p = P()
    for i in range(4):
        yield f(draw(i, 3), p), list(p.log)
        P.z = i // 2


@ROWS.program
def descr(compiled):
    class D:
        def __get__(self, o, t):
            return o.v * 2 if o is not None else t

        def __set__(self, o, v):
            o.v = v + 1

        def __set_name__(self, o, n):
            self.n = n

    class A:
        d = D()

        def __init__(s):
            s.v = 1.0

        def __getattr__(s, n):
            if n.startswith("x"):
                return len(n)
            raise AttributeError(n)

        def __setattr__(s, n, v):
            object.__setattr__(s, n, v)
            object.__setattr__(s, "count", getattr(s, "count", 0) + 1) if n == "v" else None

    @compiled
    def f(x, a):
        a.d = a.d
        return (
            x * a.d,
            a.xyz,
            getattr(a, "nope", 7),
            hasattr(a, "q"),
            A.d is A,
            a.count if hasattr(a, "count") else 0,
            A.__dict__["d"].n,
        )

    a = A()
    for i in range(5):
        yield f(draw(i, 3), a), dict(a.__dict__)


@ROWS.each
def gens(x):
    def g(n):
        try:
            for i in range(n):
                s = yield x * i
                if s:
                    x.add_(s)
        finally:
            x.mul_(2)

    def d():
        k = yield from g(3)
        return k

    it = g(4)
    a = next(it)
    b = it.send(1)
    it.close()
    return (
        a,
        b,
        list(d()),
        sum(v for v in g(3)),
        [*zip(g(2), g(5))],
        any(v is None for v in g(2)),
        next(iter([]), 5),
        list(itertools.islice(g(9), 2)),
        dict((i, v) for i, v in enumerate(g(2))),
    )


@ROWS.each
def gen_throw(x):
    def g():
        while True:
            try:
                yield x
            except ValueError as e:
                yield x * len(str(e))
            except GeneratorExit:
                x.add_(1)
                raise

    it = g()
    next(it)
    y = it.throw(ValueError("abc"))
    it.close()
    return y, x * 1


@ROWS.each
def exc_flow(x):
    log = []

    def a(n):
        try:
            if n == 1:
                raise KeyError("k")
            if n == 2:
                return "ret"
            for i in range(3):
                try:
                    if i == n - 3:
                        continue
                    if i == 2:
                        break
                finally:
                    log.append(i)
            else:
                log.append("else")
            raise ValueError(n) from KeyError("c")
        except KeyError as e:
            log.append(repr(e))
            return x * 2
        except (ValueError, TypeError) as e:
            log.append((str(e), repr(e.__cause__), e.__context__ is None))
            return e.args
        else:
            log.append("no")
        finally:
            log.append(f"fin{n}")

    return [a(i) for i in range(5)], log, x + 1


@ROWS.each
def exc_group(x):
    try:
        raise ExceptionGroup("g", [ValueError(1), TypeError(2)])
    except* ValueError as e:
        y = x * len(e.exceptions)
    except* TypeError as e:
        z = x + 1
    return y, z


@ROWS.each
def exc_custom(x):
    class E(Exception):
        def __init__(s, a, b=2):
            super().__init__(a)
            s.b = b

        def __str__(s):
            return f"E{s.b}"

    try:
        raise E(1, b=x)
    except E as e:
        return str(e.args), e.b * 2, isinstance(e, Exception), type(e).__name__


@ROWS.each
def assertion(x):
    try:
        assert x.shape[0] == 4, f"bad {x.shape}"
    except AssertionError as e:
        return str(e), x * 2


@ROWS.each
def ctxs(x):
    log = []

    @contextlib.contextmanager
    def c(n):
        log.append(n)
        try:
            yield n * 2
        except ValueError:
            log.append("caught")
        finally:
            log.append(-n)

    with c(1) as a, c(2) as b:
        y = x * a + b
        raise ValueError
    with contextlib.ExitStack() as s:
        k = s.enter_context(c(3))
        s.callback(log.append, "cb")
        z = y + k
    with contextlib.suppress(KeyError):
        {}["a"]
    with contextlib.nullcontext(5) as n:
        z = z * n
    return z, log


@ROWS.program
def threads(compiled):
    f = compiled(lambda x: (x * 2).sin() + torch.is_grad_enabled())
    for i in range(3):
        out = [None] * 3

        def work(k):
            out[k] = f(draw(i * 3 + k, 4))

        ts = [threading.Thread(target=work, args=(k,)) for k in range(3)]
        [t.start() for t in ts]
        [t.join() for t in ts]
        yield out


@ROWS.program
def pickles(compiled):
    m = nn.Linear(3, 2)
    f = compiled(m)
    for i in range(3):
        yield f(draw(i, 3))
    c = copy.deepcopy(m)
    c.weight.data.mul_(2)
    g = compiled(c)
    for i in range(3):
        yield g(draw(i, 3))
    m.load_state_dict(c.state_dict())
    for i in range(2):
        yield f(draw(i, 3)), list(m.state_dict())
    b = io.BytesIO()
    torch.save(m.state_dict(), b)
    b.seek(0)
    m.load_state_dict({k: v * 3 for k, v in torch.load(b).items()})
    yield f(draw(5, 3))
    m.load_state_dict({k: v.clone() for k, v in c.state_dict().items()}, assign=True)
    yield f(draw(6, 3)), f(draw(7, 3))


@ROWS.each
def deep(x):
    d = {"a": [x, x], "b": (x, {"c": x})}
    e = copy.deepcopy(d)
    e["a"][0].add_(1)
    s = copy.copy(d)
    return e, e["a"][0] is e["a"][1], s["a"] is d["a"], x * 1


@ROWS.each
def pick(x):
    return pickle.loads(pickle.dumps({"a": [1, 2.5, "s"], "n": None})), x * 2


@ROWS.program
def weak(compiled):
    class O:
        k = 2.0

    f = compiled(lambda x, w: x * (w().k if w() is not None else 0))
    o = O()
    w = weakref.ref(o)
    for i in range(3):
        yield f(draw(i, 3), w)
    del o
    gc.collect()
    for i in range(2):
        yield f(draw(i, 3), w)


@ROWS.program
def weakdict(compiled):
    class O:
        pass

    d = weakref.WeakValueDictionary()
    keep = [O(), O()]
    d["a"] = keep[0]
    f = compiled(lambda x: (x * len(d), "a" in d, list(d.keys())))
    yield f(draw(0, 3))
    yield f(draw(1, 3))
    d["b"] = keep[1]
    yield f(draw(2, 3))
    keep.clear()
    gc.collect()
    yield f(draw(3, 3))
    yield f(draw(4, 3))


@ROWS.each
def coll(x):
    c = collections.Counter("abca")
    d = collections.deque([1, 2, 3], maxlen=3)
    d.append(x)
    d.rotate(1)
    dd = collections.defaultdict(lambda: x)
    od = collections.OrderedDict(a=1, b=2)
    od.move_to_end("a")
    cm = collections.ChainMap({"a": 1}, {"b": x})
    NT = collections.namedtuple("NT", "a b", defaults=[5])
    n = NT(x)
    return (
        c.most_common(1),
        list(d),
        dd["q"] * 2,
        list(od),
        cm["b"] + 1,
        n.a,
        n.b,
        n._asdict()["b"],
        n._replace(b=x).b,
        tuple(NT._fields),
        len(dd),
        [*c.elements()],
        c["zz"],
    )


@ROWS.each
def iters(x):
    return (
        [
            list(v)
            for v in (
                itertools.accumulate([1, 2, 3]),
                itertools.chain([1], [2]),
                itertools.product([1, 2], repeat=2),
                itertools.permutations([1, 2]),
                itertools.combinations([1, 2, 3], 2),
                itertools.zip_longest([1], [2, 3], fillvalue=0),
                itertools.takewhile(lambda v: v < 2, [1, 2, 1]),
                itertools.dropwhile(lambda v: v < 2, [1, 2, 1]),
                itertools.starmap(pow, [(2, 3)]),
                itertools.compress([1, 2], [0, 1]),
                itertools.pairwise([1, 2, 3]),
                itertools.repeat(1, 2),
                filter(None, [0, 1]),
                map(lambda a, b: a + b, [1], [2]),
            )
        ],
        [(k, list(g)) for k, g in itertools.groupby([1, 1, 2])],
        next(itertools.count(3, 2)),
        functools.reduce(lambda a, b: a * b, [x, x, 2]),
        list(itertools.batched([1, 2, 3], 2)) if hasattr(itertools, "batched") else 0,
    )


class Color(enum.Enum):
    R = 1
    G = 2

    @property
    def twice(self):
        return self.value * 2


class Fl(enum.Flag):
    A = 1
    B = 2


@dataclasses.dataclass
class DC:
    x: typing.Any
    k: float = 2.0
    l: list = dataclasses.field(default_factory=list)

    def __post_init__(self):
        self.y = self.k + 1


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class FZ:
    a: int
    b: float = 1.0


@ROWS.program
def dcs(compiled):
    @compiled
    def f(x, d):
        e = DC(x * d.k)
        e.l.append(1)
        h = dataclasses.replace(d, k=5.0)
        z = FZ(1)
        try:
            z.a = 3
        except dataclasses.FrozenInstanceError as q:
            t = str(q)
        d.k = d.k + 1
        return (
            e.x,
            e.y,
            e.l,
            h.k,
            h.y,
            repr(z),
            z < FZ(2),
            hash(z) == hash(FZ(1)),
            t,
            [q.name for q in dataclasses.fields(d)],
            dataclasses.astuple(z),
            dataclasses.is_dataclass(d),
            e == e,
        )

    d = DC(None)
    for i in range(4):
        yield f(draw(i, 3), d), d.k


@ROWS.each
def nums(x):
    n = x.shape[0]
    return (
        math.gcd(n, 6),
        math.comb(5, n),
        math.isqrt(17),
        math.factorial(n),
        divmod(-7, n),
        round(2.5),
        round(-0.5),
        round(1234.567, -2),
        int(-2.7),
        -7 // 2,
        -7 % 3,
        7 % -3,
        0.1 + 0.2,
        float("inf") > 1e308,
        math.fmod(-7, 3),
        math.copysign(1, -0.0),
        1e16 + 1,
        2**0.5,
        (-8) ** (1 / 3),
        True + True,
        int("0x1f", 16),
        float("1e3"),
        bool(""),
        0.0 == -0.0,
        math.nan != math.nan,
        hash(1.0) == hash(1),
        1 if n else 2,
        n.__index__(),
        (5).to_bytes(2, "big"),
        int.from_bytes(b"\1\2", "little"),
        complex(1, 2) ** 2,
        abs(3 + 4j),
        sum([0.1] * 10),
        math.fsum([0.1] * 10),
        math.prod([1, 2, 3]),
        math.hypot(3, 4),
        math.dist([0], [1]),
        pow(3, -1, 7),
        math.ldexp(1, 3),
        math.frexp(8.0),
        math.modf(2.5),
        math.log(8, 2),
        math.erf(0.5),
        math.gamma(5),
        math.degrees(1),
        math.isclose(0.1 + 0.2, 0.3),
        decimal.Decimal("0.1") + 1 if False else 0,
        str(fractions.Fraction(1, 3) + 1),
        x * 2,
    )


@ROWS.program
def operators_that_decline(compiled):
    class Whole(int):
        def __mul__(self, other):
            return NotImplemented

        def __add__(self, other):
            return NotImplemented

    class Plain:
        def __lt__(self, other):
            return NotImplemented

        def __sub__(self, other):
            return NotImplemented

    f = compiled(
        lambda x, n: (Whole(n) * x, Whole(n) + x, outcome(lambda: Plain() - x), outcome(lambda: Plain() < x), x * n)
    )
    for i in range(4):
        yield f(draw(i, 3), 2)


@ROWS.program
def operators_of_tensors_come_first(compiled):
    class Whole(int):
        def __radd__(self, other):
            return "radd"

        def __rtruediv__(self, other):
            return "rtruediv"

        def __gt__(self, other):
            return "gt"

    class Asked:
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return func.__name__

        def __radd__(self, other):
            return "radd"

    @compiled
    def f(x, n):
        y = x.clone()
        y += Whole(n)
        return x + Whole(n), x / Whole(n), x < Whole(n), y

    g = compiled(lambda x: (x + Asked(), x * 2))
    for i in range(4):
        yield f(draw(i, 3), 2), g(draw(i, 3))


@ROWS.program
def membership_asks_the_elements(compiled):
    class Backwards(list):
        def __iter__(self):
            return reversed(list(super().__iter__()))

    @compiled
    def f(x, items, n):
        items.append(n)
        return x + len(items), n in items, items.index(n)

    items = Backwards([1])
    for i in (2, 3, 2, 3):
        yield f(draw(i, 3), items, i)
        del items[1:]


@ROWS.each
def quotients_by_zero(x):
    n = x.shape[0]
    return x * n, [outcome(divmod, a, b) for a in (n, n * 0.5) for b in (n - 3, (n - 3) * 0.5)]


@ROWS.case(lambda i: (draw(i, 3), i % 2))
def copied_iterators(x, n):
    pairs = []
    iterators = [map(abs, [n, x]), filter(None, [n, 1, 2]), zip([n, x], [2, 3]), enumerate([n, x])]
    iterators += [itertools.tee([n, x])[0]]
    if COPIES_ITERTOOLS:
        iterators += [itertools.chain([n], [x]), itertools.islice([n, 1, 2], 2), itertools.accumulate([n, x])]
    for iterator in iterators:
        kind = type(iterator)
        next(iterator, None)
        copied = copy.copy(iterator)
        pairs.append((kind.__name__, iterator.__class__ is kind, next(copied, None), next(iterator, None)))
    return pairs, type(iter(lambda: n, n)).__name__, isinstance(map(abs, []), map)


@ROWS.each
def slots_by_their_descriptors(x):
    class Slotted:
        __slots__ = ("a",)

    holder, member = Slotted(), Slotted.a
    member.__set__(holder, x)
    value = member.__get__(holder) * 2
    member.__delete__(holder)
    return value, hasattr(holder, "a"), member.__name__


@ROWS.each
def module_of_a_class_made_by_type(x):
    class Meta(type):
        def __new__(cls, name, bases, space):
            return super().__new__(cls, name, bases, space)

    made = [type("A", (), {}), type("B", (), {"__module__": "elsewhere"}), Meta("C", (), {})]
    return x * 2, [kind.__module__ for kind in made]


@ROWS.program
def list_is_empty_while_it_is_sorted(compiled):
    @compiled
    def f(x, items, grows):
        def key(value):
            seen.append(len(items))
            if grows:
                items.append(value)
            return -value

        return x * 2, outcome(items.sort, key=key)

    seen = []
    for i in range(6):
        seen.clear()
        items = [1, 3, 2]
        yield f(draw(i, 3), items, i % 2 == 1), items, list(seen)


@ROWS.program
def numbers_in_keys(compiled):
    class Key:
        def __init__(self, value):
            self.value = value

        def __hash__(self):
            return hash(self.value)

    Pair = collections.namedtuple("Pair", "a b")
    entries, objects = {}, {}

    @compiled
    def f(x, a, b):
        entries[a, b] = a
        return x * entries[a, b]

    @compiled
    def g(x, a, b):
        entries[Pair(a, (b,))] = Pair(a, b)
        objects[Key(a)] = Key((a, b))
        return x * a

    for i in range(8):
        yield f(draw(i, 3), i % 2, 1), g(draw(i, 3), i % 2, i % 3)
        yield [[type(part) for part in key] for key in entries]
        yield [(type(key.value), *map(type, kept.value)) for key, kept in objects.items()]
    yield repr(entries)


@ROWS.trap(MOST, 0)
def tracebacks_through_generators(compiled):
    @compiled
    def f(x, thrown):
        def walked():
            """Its first line is where one stands that has not started."""
            yield x
            raise StopIteration

        if thrown:
            walked().throw(ValueError(x.sum()))
        return list(walked())

    for number, error in enumerate((ValueError, RuntimeError) * 3):
        with pytest.raises(error) as caught:
            f(draw(number, 3), error is ValueError)
        for told in (caught.value, caught.value.__cause__):
            frames = traceback.extract_tb(told.__traceback__) if told is not None else ()
            yield type(told), [(at.name, at.lineno) for at in frames if at.name in ("f", "walked")]


@ROWS.parametrize()
def test_python_is_eagers(trap: Trap) -> None:
    hold(trap)
