"""The interpreter runs Python as CPython does: control flow, exceptions, generators and protocols in odd places."""

# ruff: noqa: PIE804, RUF059, B012, C416, C402, C401, UP031, F821, B023, B026, F841, PLE, RET, SIM105, TRY, UP028 - odd programs are the point

import collections
import contextlib
import dataclasses
import functools
import operator
from collections.abc import Callable
from typing import Any

import pytest

from framefuse.capture.record import record

PROGRAMS: list[Callable[[], Any]] = []


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS.append(function)
    return function


class Log(list):
    @contextlib.contextmanager
    def block(self, name: str, swallow: bool = False):
        self.append("+" + name)
        try:
            yield name
        except ValueError as error:
            self.append(f"!{error}")
            if not swallow:
                raise
        finally:
            self.append("-" + name)


@program
def finally_overrides_return():
    def f():
        try:
            return 1
        finally:
            return 2

    return f()


@program
def finally_in_loops():
    log = []
    for i in range(5):
        try:
            if i == 1:
                continue
            if i == 3:
                break
            log.append(i)
        finally:
            log.append(-i)
    else:
        log.append("else")
    return log


@program
def nested_handlers():
    log = []
    try:
        try:
            raise KeyError("a")
        except KeyError as a:
            try:
                raise ValueError("b") from a
            except ValueError as b:
                log += [repr(b.__cause__), repr(b.__context__)]
                raise
    except ValueError as c:
        log.append(str(c))
    try:
        raise
    except RuntimeError as error:
        log.append(str(error))
    return log


@program
def exception_variables_are_unbound():
    try:
        raise ValueError
    except ValueError as e:
        pass
    try:
        e
    except UnboundLocalError as error:
        return str(error)


@program
def contexts_chain_over_calls():
    def inner():
        raise KeyError("k")

    def outer():
        try:
            1 / 0
        except ZeroDivisionError:
            inner()

    try:
        outer()
    except KeyError as error:
        return repr(error.__context__), error.__suppress_context__


@program
def managers_nest_and_swallow():
    log = Log()
    with log.block("a"), log.block("b", swallow=True):
        raise ValueError("x")
    with contextlib.suppress(ValueError), log.block("c"):
        raise ValueError("y")
    with contextlib.ExitStack() as stack:
        for name in "de":
            stack.enter_context(log.block(name))
        stack.callback(log.append, "called")
    return list(log)


@program
def generators_with_finally():
    log = []

    def gen():
        try:
            received = yield 1
            log.append(received)
            yield from [2, 3]
            return "end"
        finally:
            log.append("closed")

    def outer():
        result = yield from gen()
        log.append(result)

    values = list(outer())
    g = gen()
    next(g)
    g.close()
    h = gen()
    next(h)
    with contextlib.suppress(ZeroDivisionError):
        h.throw(ZeroDivisionError("z"))
    return values, log


@program
def generator_expressions_are_lazy():
    log = []

    def see(x):
        log.append(x)
        return x

    lazy = (see(i) for i in range(3))
    log.append("made")
    return next(lazy), list(lazy), log, list(zip((i for i in range(3)), (see(i) for i in range(2)), strict=False))


@program
def stop_iteration_inside_a_generator():
    def gen():
        yield 1
        raise StopIteration

    try:
        list(gen())
    except RuntimeError as error:
        return str(error), type(error.__cause__).__name__


@program
def next_with_defaults_and_exhaustion():
    g = (i for i in [1])
    out = [next(g, None), next(g, "d")]
    try:
        next(g)
    except StopIteration as stop:
        out.append(stop.value)
    return out


@program
def closures_share_cells():
    def make():
        n = 0

        def add():
            nonlocal n
            n += 1
            return n

        return add, lambda: n

    add, get = make()
    add()
    return add(), get(), [f() for f in [lambda i=i: i for i in range(3)]], [f() for f in [lambda: i for i in range(3)]]


@program
def unpack_and_star():
    a, *b, (c, d) = 1, 2, 3, (4, 5)
    first, *rest = "xyz"
    [*m], n = (1, 2), 3
    return a, b, c, d, first, rest, m, n, [*range(2), *"ab"], {"a": 1, "b": 2}, {*[1], 2}


@program
def call_errors():
    out = []

    def f(a, b=1, /, c=2, *, d, e=3):
        return a

    for call in (
        lambda: f(),
        lambda: f(1),
        lambda: f(1, 2, 3, 4, d=1),
        lambda: f(1, a=2, d=1),
        lambda: f(1, d=1, z=2),
        lambda: f(1, c=1, *(2, 3), d=4),
        lambda: f(*1),
        lambda: f(**1),
        lambda: f(1, d=1, **{"d": 2}),
        lambda: (lambda: 0)(1),
        lambda: print.__doc__(),
        lambda: int("x"),
        lambda: [].nothing,
        lambda: 1 + "a",
        lambda: {}[1],
        lambda: [1][5],
        lambda: len(1),
        lambda: iter(1),
        lambda: next(1),
    ):
        try:
            out.append(call())
        except Exception as error:
            out.append((type(error).__name__, str(error)))
    return out


@program
def unpack_errors():
    out = []
    for make in (lambda: (1,), lambda: (1, 2, 3), lambda: 5, lambda: (i for i in range(5))):
        try:
            a, b = make()
        except Exception as error:
            out.append((type(error).__name__, str(error)))
        try:
            a, b, *c = make()
            out.append(c)
        except Exception as error:
            out.append((type(error).__name__, str(error)))
    return out


@program
def properties_and_descriptors():
    class D:
        def __set_name__(self, owner, name):
            self.name = "_" + name

        def __get__(self, holder, kind):
            return self if holder is None else getattr(holder, self.name, "unset")

        def __set__(self, holder, value):
            setattr(holder, self.name, value * 2)

    class A:
        d = D()

        def __init__(self):
            self.v = 1

        @property
        def p(self):
            return self.v

        @p.setter
        def p(self, value):
            self.v = value

        @functools.cached_property
        def c(self):
            self.v += 1
            return self.v

        def __getattr__(self, name):
            if name == "dyn":
                return 42
            raise AttributeError(name)

    a = A()
    out = [a.d, a.p]
    a.d = 3
    a.p = 5
    out += [a.d, a.p, a.c, a.c, a.dyn, hasattr(a, "none"), getattr(a, "none", 7), type(A.d).__name__]
    del a.v
    return [*out, "v" in vars(a)]


@program
def inheritance():
    class A:
        def __init__(self, x):
            self.x = x

        def go(self):
            return ["A", self.x]

        @classmethod
        def make(cls, x):
            return cls(x)

        @staticmethod
        def st(x):
            return x

    class B(A):
        def __init__(self, x):
            super().__init__(x + 1)

        def go(self):
            return ["B", *super().go()]

        @classmethod
        def make(cls, x):
            return super().make(x * 2)

    class M(B):
        def __new__(cls, *args):
            made = super().__new__(cls)
            made.new = True
            return made

    m = M.make(3)
    return m.go(), m.new, M.st(4), isinstance(m, A), [k.__name__ for k in M.__mro__[:3]]


@program
def operators_and_reflection():
    class N:
        def __init__(self, v):
            self.v = v

        def __add__(self, o):
            return ("add", o) if isinstance(o, int) else NotImplemented

        def __radd__(self, o):
            return ("radd", o)

        def __iadd__(self, o):
            self.v += o
            return self

        def __eq__(self, o):
            return isinstance(o, N) and self.v == o.v

        def __lt__(self, o):
            return self.v < o.v

        def __neg__(self):
            return N(-self.v)

        def __contains__(self, k):
            return k == self.v

        def __getitem__(self, k):
            return (k, self.v)

        def __setitem__(self, k, v):
            self.v = (k, v)

        def __delitem__(self, k):
            self.v = k

        def __len__(self):
            return 0

        def __bool__(self):
            return True

        def __call__(self, *a, **k):
            return a, k

        def __format__(self, spec):
            return f"<{spec}>"

        def __repr__(self):
            return "N!"

        def __hash__(self):
            return 3

        def __enter__(self):
            return self

        def __exit__(self, *e):
            return True

        def __iter__(self):
            return iter([self.v])

        def __abs__(self):
            return 9

        def __int__(self):
            return 8

        def __index__(self):
            return 1

    n = N(1)
    n += 4
    out = [n + 1, 1 + n, n.v, n == N(5), n != N(5), n < N(9), (-n).v, 5 in n, 6 not in n, n[1:2]]
    try:
        n + "a"
    except TypeError as error:
        out.append(str(error).replace("test_interpreter.", ""))
    with n:
        raise ValueError
    out += [n(1, k=2), f"{n:x} {n!r}", bool(n), len(n), [*n], abs(n), int(n), {n: 1}[N(5)], [10, 20][n]]
    out.append(sorted([N(2), N(1)])[0].v)
    n[3] = 4
    out.append(n.v)
    del n[7]
    out.append(n.v)
    return out


@program
def dataclasses_and_named_tuples():
    @dataclasses.dataclass(order=True)
    class P:
        x: int
        y: list = dataclasses.field(default_factory=list)

        def __post_init__(self):
            self.z = self.x * 2

    T = collections.namedtuple("T", "a b")
    p = P(1)
    p.y.append(2)
    t = T(1, b=2)
    return p.x, p.y, p.z, P(1) < P(2), t._replace(a=5), t.a + t.b, dataclasses.asdict(p), repr(p)[-14:]


@program
def sorting_and_reducing():
    values = [3, 1, 2]
    return (
        sorted(values, key=lambda v: -v),
        sorted(["b", "A"], key=str.lower),
        sorted([(1, "b"), (1, "a")], key=operator.itemgetter(0)),
        sorted([(1, "b"), (1, "a"), (0, "c")], key=lambda p: p[0], reverse=True),
        max(values, key=lambda v: -v),
        min((v for v in values), default=0),
        max([], default=5),
        functools.reduce(lambda a, b: a * b, values, 1),
        list(map(lambda a, b: a + b, values, values)),
        list(filter(None, [0, 1, 2])),
        sum((v for v in values), 10),
        any(v > 2 for v in values),
        all(v > 2 for v in values),
        dict((v, v * v) for v in values),
        {k: v for k, v in zip(values, "abc", strict=True)},
        " ".join(str(v) for v in values),
        list(enumerate((v for v in values), 1)),
        list(zip(*[[1, 2], [3, 4]], strict=True)),
        [*reversed(values)],
        tuple(v for v in values),
        set(v for v in values),
    )


@program
def match_statements():
    @dataclasses.dataclass
    class P:
        x: int
        y: int

    def go(v):
        match v:
            case 0 | 1:
                return "small"
            case int(n) if n > 10:
                return ("big", n)
            case [a, *rest]:
                return (a, rest)
            case {"k": P(x=1, y=y), **others}:
                return ("P", y, others)
            case P(a, 2):
                return a
            case str() as s:
                return s
            case None:
                return "none"
            case _:
                return "other"

    return [go(v) for v in (0, 11, 5, [1, 2, 3], (4,), {"k": P(1, 7), "z": 1}, P(3, 2), P(3, 3), "t", None, 2.5)]


@program
def deleting_and_scopes():
    x = 1
    del x
    try:
        x
    except UnboundLocalError as error:
        first = str(error)

    def f():
        return later

    try:
        f()
    except NameError as error:
        second = str(error)
    later = 5
    try:
        undefined_thing
    except NameError as error:
        third = str(error)
    return first, second, third, f()


@program
def walrus_and_chained_comparison():
    calls = []

    def see(v):
        calls.append(v)
        return v

    a = [y := 1, y**2]
    return 1 < see(2) < 3, 1 < see(0) < see(9), calls, a, [z for w in range(4) if (z := w % 2)], (y and 3) or 4, not y


@program
def text_formatting():
    v, w = 3.14159, 8
    return f"{v:.2f}|{v:{w}.1f}|{'a'!r:>5}|{v!s}|{{}}|{w=}", "%s %05d %r" % ("a", 3, "b"), f"{1:>4}{2}"


@program
def class_bodies():
    class Meta(type):
        def __call__(cls, *args):
            made = super().__call__(*args)
            made.meta = True
            return made

        @property
        def tag(cls):
            return cls.__name__

    class A(metaclass=Meta):
        x = [i for i in range(3)]

        def __init__(self, v=0):
            self.v = v

        def __init_subclass__(cls, **kw):
            cls.kw = kw

    class B(A, k=1):
        pass

    return A(2).v, A().meta, A.tag, B.kw, B.tag, A.x


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_python(function: Callable[[], Any]) -> None:
    expected = function()
    made = record(function, (), {})
    if made.exception is not None:
        raise made.exception
    assert made.value == expected
