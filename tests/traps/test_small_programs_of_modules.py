"""Small programs over modules, their hooks and state, optimizers, and Python that changes between calls."""

from __future__ import annotations

import types
import warnings

import torch
from tests.traps.small_programs import Rows, draw
from tests.traps.trap import Trap, hold
from torch import nn

ROWS = Rows()
F = nn.functional


@ROWS.program
def closures(compiled):
    k = 1.0

    def setk(v):
        nonlocal k
        k = v

    def mk(a):
        return lambda x: x * a + k

    fs = [compiled(mk(2.0)), compiled(mk(3.0))]
    for i in range(5):
        setk(i // 2)
        yield fs[0](draw(i, 3)), fs[1](draw(i, 3))


@ROWS.program
def late_binding(compiled):
    @compiled
    def f(x):
        fs = [lambda v: v * i for i in range(3)]
        gs = [lambda v, i=i: v * i for i in range(3)]
        return [a(x) for a in fs], [a(x) for a in gs]

    for i in range(3):
        yield f(draw(i, 3))


@ROWS.program
def defaults(compiled):
    def h(x, l=[]):
        l.append(len(l))
        return x * len(l)

    f = compiled(lambda x: h(x) + 1)
    for i in range(5):
        yield f(draw(i, 3)), list(h.__defaults__[0])


@ROWS.program
def fn_attrs(compiled):
    def h(x):
        h.n = getattr(h, "n", 0) + 1
        return x * h.n

    f = compiled(lambda x: (h(x), h.__name__, h.n))
    for i in range(5):
        yield f(draw(i, 3)), h.n


@ROWS.each
def meta(x):
    class M(type):
        def __call__(c, *a):
            o = super().__call__(*a)
            o.m = 1
            return o

        def __getitem__(c, i):
            return i * 2

        def __len__(c):
            return 4

        def __instancecheck__(c, o):
            return o == 3

    class A(metaclass=M):
        def __init__(s, v):
            s.v = v

        def __init_subclass__(c, **k):
            c.kk = k

        def __class_getitem__(c, i):
            return 0

    class B(A, z=1):
        pass

    return x * B(x).v, B(1).m, B[2], len(B), isinstance(3, B), B.kk, B.__mro__[1] is A, type(B).__name__


@ROWS.each
def dunder(x):
    class V:
        def __init__(s, t):
            s.t = t

        def __add__(s, o):
            return V(s.t + (o.t if isinstance(o, V) else o))

        __radd__ = __add__

        def __iadd__(s, o):
            s.t = s.t * o
            return s

        def __mul__(s, o):
            return NotImplemented

        def __matmul__(s, o):
            return V(s.t @ o.t)

        def __neg__(s):
            return V(-s.t)

        def __getitem__(s, k):
            return (k,)

        def __setitem__(s, k, v):
            s.k = (k, v)

        def __contains__(s, k):
            return k == 1

        def __call__(s, *a, **k):
            return len(a), sorted(k)

        def __enter__(s):
            return s.t

        def __exit__(s, *a):
            return True

        def __iter__(s):
            return iter([1, 2])

        def __reversed__(s):
            return [2, 1]

        def __index__(s):
            return 1

        def __float__(s):
            return 2.5

        def __round__(s, n=0):
            return 9

        def __format__(s, f):
            return f

        def __hash__(s):
            return 5

        def __dir__(s):
            return ["a"]

        def __bool__(s):
            return False

        def __len__(s):
            return 3

        def __divmod__(s, o):
            return 1, 2

        def __pow__(s, o, m=None):
            return o, m

        def __rsub__(s, o):
            return "rsub"

        def __lt__(s, o):
            return "lt"

        def __abs__(s):
            return "abs"

        def __invert__(s):
            return "inv"

    a = V(x)
    b = a + 1 + a
    b += 2
    c = sum([a, a], 0) if False else 1 + a
    try:
        a * 2
    except TypeError as e:
        m = str(e)
    with a as w:
        raise KeyError
    a[1:2, ...] = 4
    return (
        b.t,
        c.t,
        m,
        (a @ a).t,
        (-a).t,
        a[1, ::2],
        a.k,
        1 in a,
        a(1, q=2),
        w,
        list(a),
        reversed(a),
        [5, 6][a],
        float(a),
        round(a),
        f"{a:zz}",
        {a: 1}[a],
        not a,
        divmod(a, 1),
        a**2,
        pow(a, 2, 3),
        1 - a,
        a < 1,
        abs(a),
        ~a,
        a or 3,
        5 > a if False else 0,
        [*a],
        len(a),
    )


@ROWS.program
def unpack(compiled):
    @compiled
    def f(x, *a, k=1, **kw):
        (p, *q), s = a
        return x * p, q, s, k, sorted(kw), {**kw, "k": k}, [*a, *q]

    for i in range(3):
        yield f(draw(i, 3), [1.0 + i, 2, 3], 4, k=i, z=draw(i, 2))


@ROWS.each
def match_(x):
    def m(v):
        match v:
            case {"a": [p, *q], **rest}:
                return p, q, rest
            case [1, 2 | 3 as z]:
                return z
            case str(s) if len(s) > 1:
                return s
            case types.SimpleNamespace(k=k):
                return k
            case torch.Tensor():
                return v * 2
            case (a, b):
                return a
            case None | True:
                return "n"
            case _:
                return "other"

    return [
        m(v) for v in ({"a": [1, 2], "c": 3}, [1, 3], "ab", "a", types.SimpleNamespace(k=7.0), x, (9, 8), None, 5.5)
    ]


@ROWS.each
def strings_of_tensors(x):
    return (
        str(x.shape),
        repr(x.dtype),
        f"{x.shape[0]}",
        x.type(),
        str(x.size()),
        x.layout.__str__() if False else 0,
        x * 2,
    )


@ROWS.program
def hooks(compiled):
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    f = compiled(m)
    log = []
    yield f(draw(0, 2, 3))
    yield f(draw(1, 2, 3))
    h = m[0].register_forward_hook(lambda mod, i, o: o * 2)
    yield f(draw(2, 2, 3))
    yield f(draw(3, 2, 3))
    p = m[1].register_forward_pre_hook(lambda mod, i, k: ((i[0] + 1,), k), with_kwargs=True)
    yield f(draw(4, 2, 3))
    yield f(draw(4, 2, 3))
    h.remove()
    yield f(draw(5, 2, 3))
    p.remove()
    b = m[0].register_full_backward_hook(lambda mod, gi, go: (log.append(1), None)[1])
    for i in range(3):
        m.zero_grad()
        f(draw(i, 2, 3, grad=True)).sum().backward()
        yield [q.grad for q in m.parameters()], len(log)
    m[0].register_full_backward_hook(lambda mod, gi, go: log.append((len(gi), len(go))))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for needs in (False, False, True, False):  # torch warns where no input needs a gradient, and calls the hook
            f(draw(i, 2, 3, grad=needs)).sum().backward()
            yield list(log)
    m[0].weight.register_hook(lambda g: g * 3)
    for i in range(3):
        m.zero_grad()
        f(draw(i, 2, 3, grad=True)).sum().backward()
        yield [q.grad for q in m.parameters()]


@ROWS.program
def mods(compiled):
    m = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    f = compiled(m)
    for i in range(3):
        yield f(draw(i, 4, 3)), dict(m.state_dict())
    m.eval()
    for i in range(2):
        yield f(draw(i, 4, 3))
    m[1].momentum = None
    m.train()
    for i in range(3):
        yield f(draw(i, 4, 3)), dict(m.state_dict())
    m[1].track_running_stats = False
    yield f(draw(9, 4, 3))
    m[0] = nn.Linear(3, 3, bias=False)
    yield f(draw(9, 4, 3))
    m.append(nn.Tanh())
    yield f(draw(9, 4, 3))
    del m[2]
    yield f(draw(9, 4, 3))
    m.double()
    yield f(draw(9, 4, 3, dtype=torch.float64))
    m.requires_grad_(False)
    yield f(draw(9, 4, 3, dtype=torch.float64))
    m[1].eps = 0.1
    yield f(draw(9, 4, 3, dtype=torch.float64))
    m[1].affine = False
    yield f(draw(9, 4, 3, dtype=torch.float64))
    m[1].weight = None
    m[1].bias = None
    yield f(draw(9, 4, 3, dtype=torch.float64))


@ROWS.program
def param_utils(compiled):
    for wrap in (
        lambda l: nn.utils.parametrizations.weight_norm(l),
        lambda l: nn.utils.parametrizations.spectral_norm(l),
        lambda l: nn.utils.parametrizations.orthogonal(l),
        lambda l: nn.utils.weight_norm(l),
    ):
        m = wrap(nn.Linear(3, 3))
        f = compiled(m)
        for i in range(4):
            m.zero_grad()
            y = f(draw(i, 2, 3))
            y.sum().backward()
            yield y, [p.grad for p in m.parameters()]


@ROWS.program
def rnns(compiled):
    l = nn.LSTM(3, 4, 2, batch_first=True, bidirectional=True)
    g = nn.GRU(3, 4)
    c = nn.LSTMCell(3, 4)
    rn = nn.RNN(3, 4, nonlinearity="relu")

    @compiled
    def f(x, ls):
        p = nn.utils.rnn.pack_padded_sequence(x, ls, batch_first=True, enforce_sorted=False)
        o, (h, q) = l(p)
        u, n = nn.utils.rnn.pad_packed_sequence(o, batch_first=True)
        return u, n, h, q, g(x)[0], c(x[0])[0], rn(x)[1]

    for i in range(3):
        yield f(draw(i, 2, 5, 3), torch.tensor([5 - i, 3]))
    yield nn.utils.rnn.pad_sequence([draw(0, 2), draw(1, 3)])


@ROWS.program
def opt(compiled):
    for O in (
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        lambda p: torch.optim.AdamW(p, lr=0.1, amsgrad=True),
        lambda p: torch.optim.RMSprop(p, centered=True),
        lambda p: torch.optim.Adagrad(p),
        lambda p: torch.optim.NAdam(p),
        lambda p: torch.optim.Adamax(p),
        lambda p: torch.optim.Rprop(p),
        lambda p: torch.optim.ASGD(p),
        lambda p: torch.optim.Adadelta(p),
        lambda p: torch.optim.RAdam(p),
    ):
        m = nn.Linear(3, 2)
        o = O(m.parameters())
        s = torch.optim.lr_scheduler.StepLR(o, 2, 0.5)

        @compiled
        def step(x):
            o.zero_grad()
            l = m(x).pow(2).sum()
            l.backward()
            nn.utils.clip_grad_norm_(m.parameters(), 1.0)
            o.step()
            return l

        for i in range(5):
            yield step(draw(i, 4, 3)), list(m.parameters())
            s.step()


@ROWS.program
def tattr(compiled):
    @compiled
    def f(x):
        y = x * 2
        y.tag = "a"
        y.k = 3
        x.seen = getattr(x, "seen", 0) + 1
        return y * y.k, y, x.seen, hasattr(y, "zz"), y.tag

    x = draw(0, 3)
    for i in range(4):
        o = f(x)
        yield o[0], o[1].tag, o[2:], x.seen


@ROWS.program
def buffers(compiled):
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.register_buffer("b", torch.zeros(3))
            s.register_buffer("np", torch.ones(1), persistent=False)
            s.n = 0

        def forward(s, x):
            s.b = s.b + x
            s.n += 1
            s.np.add_(1)
            s.last = x * 2
            return s.b * s.n * s.np

    m = M()
    f = compiled(m)
    for i in range(4):
        yield f(draw(i, 3)), m.b, m.n, m.np, m.last, list(m.state_dict())


@ROWS.program
def containers(compiled):
    ml = nn.ModuleList([nn.Linear(3, 3) for _ in range(3)])
    md = nn.ModuleDict({"a": nn.Linear(3, 3), "b": nn.ReLU()})
    pl = nn.ParameterList([torch.ones(3), torch.ones(3) * 2])
    pd = nn.ParameterDict({"p": torch.ones(3)})
    f = compiled(
        lambda x: (
            sum(l(x) for l in ml),
            [k for k in md],
            [m(x) for m in md.values()],
            sum(p for p in pl) * x,
            pd["p"] + x,
            len(ml),
            [type(l).__name__ for l in reversed(ml)],
            ml[-1](x),
            ml[:2][0](x),
            "a" in md,
            [n for n, _ in ml.named_modules()],
            [n for n, _ in md.named_parameters()],
            sum(1 for _ in ml.children()),
        )
    )
    for i in range(3):
        yield f(draw(i, 3))
    ml.append(nn.Linear(3, 3))
    md["c"] = nn.Tanh()
    pl.append(torch.ones(3))
    pd["q"] = torch.ones(1)
    yield f(draw(8, 3))
    yield f(draw(9, 3))
    ml[0] = nn.Linear(3, 3)
    yield f(draw(9, 3))
    yield f(draw(8, 3))


@ROWS.program
def newlayer(compiled):
    @compiled
    def f(x):
        torch.manual_seed(3)
        l = nn.Linear(3, 2)
        return l(x)

    for i in range(4):
        yield f(draw(i, 3))


class TS(torch.Tensor):
    pass


class Mode(torch.overrides.TorchFunctionMode):
    def __torch_function__(s, fn, types, a=(), k=None):
        return fn(*a, **(k or {})) * 2 if fn is torch.sin else fn(*a, **(k or {}))


class MadeLate(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 2.0))

    def forward(self, x):
        return self.scale * x


@ROWS.program
def a_parameter_made_inside(compiled):
    f = compiled(lambda x: (nn.Parameter(x.detach() * 2) * x, nn.Parameter(torch.ones(3), False) + x.sin()))
    for i in range(4):
        made = f(draw(i, 3))
        made[0].sum().backward()
        yield made


@ROWS.program
def a_parameter_made_inside_and_returned(compiled):
    f = compiled(lambda x: nn.Parameter(x * 2))
    for i in range(4):
        made = f(draw(i, 3))
        yield made, made.is_leaf, type(made).__name__


@ROWS.program
def a_module_made_inside(compiled):
    f = compiled(lambda x: MadeLate()(x) + x.sin())
    for i in range(5):
        yield f(draw(i, 3))


@ROWS.program
def a_parameter_made_inside_and_trained(compiled):
    @compiled
    def f(x):
        weight = nn.Parameter((x.sin() * 2).detach())
        loss = (weight * x).sum()
        loss.backward()
        return weight.grad, loss.detach()

    for i in range(5):
        yield f(draw(i, 3))


@ROWS.parametrize()
def test_modules_are_eagers(trap: Trap) -> None:
    hold(trap)
