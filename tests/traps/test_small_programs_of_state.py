"""Small programs whose state changes: attributes, globals, classes, defaults, hooks, caches."""

from __future__ import annotations

import collections
import functools

import numpy as np
import torch
from tests.traps.small_programs import Rows, draw
from tests.traps.trap import Trap, hold, outcome
from torch import nn

ROWS = Rows()
F = nn.functional

L = lambda *s, d=torch.float32: lambda i: (draw(i, *s, dtype=d),)


@ROWS.program
def np_write_through(compiled):
    f = compiled(lambda x: (x.add_(1), x * 2))
    for i in range(4):
        a = np.zeros(3, dtype=np.float32) + i
        yield f(torch.from_numpy(a)), torch.from_numpy(a.copy())


@ROWS.program
def np_nonwritable(compiled):
    f = compiled(lambda x: x * 2)
    for i in range(3):
        a = np.broadcast_to(np.float32(i), (3,))
        yield f(torch.from_numpy(a.copy()))


@ROWS.program
def post_acc(compiled):
    w = nn.Parameter(torch.ones(3))
    log = []
    w.register_post_accumulate_grad_hook(lambda p: log.append(p.grad.clone()))
    f = compiled(lambda x: (w * x).sum())
    for i in range(4):
        w.grad = None
        f(draw(i, 3)).backward()
        yield w.grad, list(log)


@ROWS.program
def hooks_in_fn(compiled):
    @compiled
    def f(x):
        y = x * 2
        h = y.register_hook(lambda g: g * 3)
        z = y.sin()
        w = z.sum()
        return w

    for i in range(4):
        x = draw(i, 3, grad=True)
        f(x).backward()
        yield x.grad


@ROWS.program
def grad_accum(compiled):
    m = nn.Linear(3, 2)
    f = compiled(m)
    for i in range(4):
        f(draw(i, 2, 3)).sum().backward()
        yield [p.grad for p in m.parameters()]
    m.zero_grad(set_to_none=False)
    f(draw(9, 2, 3)).sum().backward()
    yield [p.grad for p in m.parameters()]


@ROWS.program
def backward_twice(compiled):
    f = compiled(lambda x: (x * x).sum())
    for i in range(3):
        x = draw(i, 3, grad=True)
        y = f(x)
        y.backward(retain_graph=True)
        y.backward()
        yield x.grad, outcome(y.backward)


@ROWS.program
def grad_none_out(compiled):
    f = compiled(lambda x, y: (x * 2, y.detach() * 3, (y > 0), y.int()))
    for i in range(3):
        x, y = draw(i, 3, grad=True), draw(i + 5, 3, grad=True)
        o = f(x, y)
        o[0].sum().backward()
        yield o, x.grad, y.grad


@ROWS.program
def autograd_grad_inside(compiled):
    @compiled
    def f(x):
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            y = (x**3).sum()
            (g,) = torch.autograd.grad(y, x)
        return g * 2

    for i in range(4):
        yield f(draw(i, 3))


@ROWS.program
def gradcheckpoint_penalty(compiled):
    m = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
    f = compiled(m)
    for i in range(3):
        m.zero_grad()
        x = draw(i, 2, 3, grad=True)
        (g,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
        (g.norm() - 1).pow(2).backward()
        yield [p.grad for p in m.parameters()]


@ROWS.program
def anomaly(compiled):
    f = compiled(lambda x: x.sqrt().sum())
    with torch.autograd.set_detect_anomaly(True):
        for i in range(2):
            x = torch.tensor([1.0, -1.0], requires_grad=True)
            yield outcome(lambda: f(x).backward())[:2] if True else 0
    for i in range(3):
        x = (draw(i, 3).abs() + 1).requires_grad_()
        f(x).backward()
        yield x.grad


@ROWS.program
def vmaps(compiled):
    f = compiled(
        lambda x, w: (
            torch.vmap(lambda a: a @ w)(x),
            torch.vmap(lambda a, b: a * b, in_dims=(0, None))(x, w[0]),
            torch.vmap(torch.sum)(x),
            torch.func.vmap(lambda a: a.softmax(0), out_dims=1)(x),
        )
    )
    for i in range(3):
        yield f(draw(i, 3, 4), draw(i + 3, 4, 4))


@ROWS.program
def func_call(compiled):
    m = nn.Linear(3, 2)
    f = compiled(lambda p, x: torch.func.functional_call(m, p, (x,)))
    for i in range(3):
        yield f({"weight": draw(i, 2, 3), "bias": draw(i + 1, 2)}, draw(i, 4, 3))


@ROWS.program
def per_sample(compiled):
    m = nn.Linear(3, 2)
    f = compiled(
        lambda p, x: torch.func.vmap(
            torch.func.grad(lambda p, x: torch.func.functional_call(m, p, (x,)).sum()), in_dims=(None, 0)
        )(p, x)
    )
    for i in range(3):
        yield f({k: v.detach() for k, v in m.named_parameters()}, draw(i, 4, 3))


G = {"k": 1.0}


@ROWS.program
def global_dict(compiled):
    f = compiled(lambda x: x * G["k"] + len(G))
    for i in range(6):
        yield f(draw(i, 3))
        G["k"] = float(i // 2)
    G["q"] = 1
    yield f(draw(0, 3))
    del G["q"]
    yield f(draw(0, 3))
    G["k"] = 1.0


@ROWS.program
def default_changes(compiled):
    def h(x, k=2.0, *, m=1.0):
        return x * k + m

    f = compiled(lambda x: h(x))
    yield f(draw(0, 3))
    yield f(draw(1, 3))
    h.__defaults__ = (3.0,)
    yield f(draw(2, 3))
    h.__kwdefaults__ = {"m": 5.0}
    yield f(draw(2, 3))
    h.__kwdefaults__["m"] = 6.0
    yield f(draw(3, 3))
    h.__code__ = (lambda x, k=2.0, *, m=1.0: x - k - m).__code__
    yield f(draw(3, 3))


@ROWS.program
def monkey(compiled):
    class A:
        def go(self, x):
            return x * 2

    a = A()
    f = compiled(lambda x: a.go(x))
    yield f(draw(0, 3))
    yield f(draw(1, 3))
    a.go = lambda x: x * 3
    yield f(draw(2, 3))
    del a.go
    yield f(draw(2, 3))
    A.go = lambda self, x: x * 4
    yield f(draw(2, 3))

    class B(A):
        def go(self, x):
            return super().go(x) + 1

    a.__class__ = B
    yield f(draw(2, 3))
    yield f(draw(4, 3))
    A.go = staticmethod(lambda x: x * 9)
    B.go = A.__dict__["go"]
    yield f(draw(2, 3))


@ROWS.program
def class_counters(compiled):
    class A:
        n = 0

        def __init__(self):
            A.n += 1
            self.id = A.n

    f = compiled(lambda x: x * A().id)
    for i in range(5):
        yield f(draw(i, 3)), A.n


@ROWS.program
def deque_state(compiled):
    d = collections.deque(maxlen=3)
    f = compiled(lambda x: (d.append(x), sum(d))[1])
    for i in range(6):
        yield f(draw(i, 3)), list(d)


@ROWS.program
def cached(compiled):
    @functools.lru_cache
    def c(n):
        return n * 2.0

    f = compiled(lambda x, n: x * c(n))
    for i in range(6):
        yield f(draw(i, 3), i % 2), tuple(c.cache_info())


@ROWS.program
def singledisp(compiled):
    @functools.singledispatch
    def g(v, x):
        return x

    @g.register
    def _(v: int, x):
        return x * v

    @g.register(str)
    def _(v, x):
        return x + len(v)

    f = compiled(lambda x, v: g(v, x))
    for i, v in enumerate([1, 2, "ab", "c", 2.5, 3]):
        yield f(draw(i, 3), v)


@ROWS.program
def wraps(compiled):
    def deco(fn):
        @functools.wraps(fn)
        def w(*a, **k):
            w.n += 1
            return fn(*a, **k) * w.n

        w.n = 0
        return w

    @deco
    def g(x):
        return x + 1

    f = compiled(g)
    for i in range(4):
        yield f(draw(i, 3)), g.n, f.__name__


@ROWS.program
def abstract(compiled):
    import abc

    class B(abc.ABC):
        @abc.abstractmethod
        def go(self, x): ...
        @property
        @abc.abstractmethod
        def k(self): ...

    class C(B):
        k = 3.0

        def go(self, x):
            return x * self.k

    f = compiled(lambda x: (C().go(x), isinstance(C(), B), issubclass(C, B), outcome(B)[1]))
    for i in range(3):
        yield f(draw(i, 3))


@ROWS.program
def slots(compiled):
    class S:
        __slots__ = ("a", "b")

        def __init__(self, a):
            self.a = a

    @compiled
    def f(x, s):
        s.b = s.a + 1
        t = S(x)
        try:
            t.c = 1
        except AttributeError as e:
            m = type(e).__name__
        return t.a * s.b, m, hasattr(t, "b")

    s = S(1.0)
    for i in range(4):
        s.a = float(i)
        yield f(draw(i, 3), s), s.b


@ROWS.program
def functions_of_torch_wrapped_by_the_program(compiled):
    calls = {
        (F, "relu"): lambda x: F.relu(x) + 1,
        (F, "softmax"): lambda x: F.softmax(x, -1) + 1,
        (torch.Tensor, "norm"): lambda x: x.norm() * x,
        (torch, "einsum"): lambda x: torch.einsum("i,i->", x, x),
    }
    for (holder, name), call in calls.items():
        counted, own, f = [], getattr(holder, name), compiled(call)

        def around(*args, counted=counted, own=own, **kwargs):
            counted.append(1)
            return own(*args, **kwargs) * 2

        try:
            for i in range(6):
                if i in (2, 5):
                    setattr(holder, name, around if i == 2 else own)
                yield f(draw(i, 3)), len(counted)
        finally:
            setattr(holder, name, own)


@ROWS.parametrize()
def test_state_is_eagers(trap: Trap) -> None:
    hold(trap)
