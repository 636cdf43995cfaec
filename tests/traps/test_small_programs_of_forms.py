"""Small programs in the many forms of one thing: flow, arguments, indices, sizes, dimensions, layers."""

from __future__ import annotations

import collections
import math
import operator
import typing

import torch
from tests.traps.small_programs import Rows, draw
from tests.traps.trap import Trap, hold, outcome
from torch import nn

ROWS = Rows()
F = nn.functional


@ROWS.program
def context_ret(compiled):
    class C:
        def __init__(self, s):
            self.s = s
            self.log = []

        def __enter__(self):
            return self

        def __exit__(self, t, v, tb):
            self.log.append(t.__name__ if t else None)
            return self.s

    def g(x, s, n):
        c = C(s)
        try:
            with c:
                if n:
                    raise KeyError(n)
                return x * 2, c.log
        except KeyError as e:
            return x * 3, c.log, e.args
        finally:
            x.add_(1)
        return x * 4, c.log

    f = compiled(g)
    for i in range(2):
        for s in (True, False):
            for n in (0, 1):
                x = draw(i, 3)
                yield f(x, s, n), x


@ROWS.program
def while_else(compiled):
    def g(x, n):
        i = 0
        while i < n:
            i += 1
            if i == 3:
                break
            if i == 1:
                continue
            x = x * i
        else:
            x = x + 100
        for j in range(n):
            if j == 2:
                break
        else:
            x = x - 50
        return x, i, [k for k in range(n) if k % 2], {k: v for k, v in zip("ab", range(n))}, {k % 2 for k in range(n)}

    f = compiled(g)
    for n in (1, 2, 3, 4, 2, 1):
        yield f(draw(n, 3), n)


@ROWS.program
def chained(compiled):
    f = compiled(
        lambda x, n: (
            x * (1 if 0 < n < 3 else 2),
            n == 1 == 1,
            n in (1, 2),
            not n,
            n and 5 or 6,
            (n := n + 1),
            n,
            x if n is not None else 0,
            [1, 2, 3][n % 3],
            (1,) * n,
            "a" * n,
            -n,
            ~n,
            n ^ 1,
            n | 2,
            n // 2 * 2,
            n @ 1 if False else 0,
        )
    )
    for n in (1, 2, 3, 1, 2):
        yield f(draw(n, 3), n)


@ROWS.program
def starred(compiled):
    def g(*a, k=3, **kw):
        return len(a), k, sorted(kw)

    f = compiled(
        lambda x, l, d: (
            x * g(*l, **d)[0],
            g(*l, *l, k=1),
            g(**d),
            g(*d),
            [*l, *d],
            {**d, "z": 1},
            (*l,),
            print is None,
        )
    )
    for i in range(3):
        yield f(draw(i, 3), [1, 2][: 1 + i % 2], {"q": 1})
    yield outcome(f, draw(0, 3), [1], {"k": 1, "j": 2})


@ROWS.program
def annotations(compiled):
    def h(x: int, y: "str" = 3) -> float:
        "doc"
        return x

    f = compiled(
        lambda x: (
            x * 2,
            h.__doc__,
            h.__annotations__["y"],
            h.__name__,
            h.__defaults__,
            h.__code__.co_varnames,
            typing.get_type_hints(h)["x"] is int,
            callable(h),
            h.__qualname__[-1],
            h.__module__,
        )
    )
    for i in range(3):
        yield f(draw(i, 3))


@ROWS.program
def del_names(compiled):
    def g(x):
        y = x * 2
        del y
        try:
            y
        except UnboundLocalError as e:
            s = type(e).__name__
        d = {"a": 1}
        del d["a"]
        l = [1, 2, 3]
        del l[0], l[-1:]
        return x * len(l), s, d, l

    f = compiled(g)
    for i in range(3):
        yield f(draw(i, 3))


@ROWS.program
def exc_in_call(compiled):
    @compiled
    def f(x, d, k):
        try:
            return x * d[k]
        except KeyError:
            return x - 1
        except TypeError:
            return x - 2

    for k in ("a", "b", "a", [1], "b", "c"):
        yield f(draw(1, 3), {"a": 2.0, "c": 3.0}, k)


@ROWS.program
def nested_try(compiled):
    def g(x, n):
        out = []
        for i in range(3):
            try:
                try:
                    if i == n:
                        raise ValueError(i)
                    out.append(i)
                except TypeError:
                    out.append("t")
                finally:
                    out.append("f")
            except ValueError as e:
                out.append(str(e))
                if n == 2:
                    raise RuntimeError("again") from e
        return x * len(out), out

    f = compiled(g)
    for n in (0, 1, 2, 0, 5, 2):
        yield outcome(f, draw(n, 3), n)


@ROWS.program
def tensor_iter(compiled):
    f = compiled(
        lambda x: (
            [v * 2 for v in x],
            list(x)[0],
            [*x][1],
            len(x),
            x[0] in [1] if False else 0,
            dict(enumerate(x))[1],
            max(x.shape),
            tuple(x.unbind())[0],
            [a + b for a, b in zip(x, x.flip(0))],
            reversed(x),
        )
    )
    for i in range(3):
        yield f(draw(i, 3, 2))


@ROWS.program
def tensor_bool_ops(compiled):
    f = compiled(
        lambda x: (
            x.any().item(),
            bool(x.sum() > 0),
            x.all() and 1,
            not x.sum(),
            x.max() > 1 if True else 0,
            (x > 0).sum().item() + 1,
            int(x[0]),
            float(x[1]),
            x[0].item() * 2,
            f"{x[0].item():.2f}",
            math.floor(x[2]),
            round(x[1].item(), 1),
            x[0] < x[1],
            [1, 2][int(x[0] > 0)],
            min(x[0], x[1]),
            x[0].tolist(),
            complex(x[0]),
            x[0].__index__() if False else 0,
            operator.index(torch.tensor(3)),
        )
    )
    for i in range(5):
        yield f(draw(i, 3))


@ROWS.program
def tensor_eq_none(compiled):
    f = compiled(
        lambda x, y: (
            x is None,
            x == None,
            x != None,
            y is None,
            x if y is None else x + y,
            [x, None].index(None) if False else 0,
            isinstance(x, torch.Tensor),
            type(x) is torch.Tensor,
            x.__class__.__name__,
            hasattr(x, "foo"),
            getattr(x, "foo", 1),
        )
    )
    for i in range(4):
        yield outcome(f, draw(i, 3), None if i % 2 else draw(i + 1, 3))


@ROWS.program
def set_data(compiled):
    w = nn.Parameter(torch.ones(3))

    @compiled
    def f(x):
        w.data = w.data + x
        w.data.mul_(2)
        return w * x

    for i in range(4):
        yield f(draw(i, 3)), w


@ROWS.program
def requires_toggle(compiled):
    @compiled
    def f(x):
        y = x.detach().clone()
        y.requires_grad_()
        z = (y * y).sum()
        z.backward()
        return y.grad, z.detach(), y.requires_grad, y.is_leaf

    for i in range(4):
        yield f(draw(i, 3))


@ROWS.program
def memory_fmt(compiled):
    f = compiled(
        lambda x: (
            x.contiguous(memory_format=torch.channels_last).stride(),
            x.to(memory_format=torch.channels_last) * 2,
            torch.empty_like(x, memory_format=torch.contiguous_format).stride(),
            x.is_contiguous(),
            x.t() if x.dim() == 2 else x.mT,
            x.permute(3, 2, 1, 0).contiguous(),
            x.transpose(1, 2).reshape(2, -1),
            x.flatten(1),
            x.squeeze(),
            x.unsqueeze(-1).stride(),
            x.movedim(0, -1) + 1,
            x.swapaxes(0, 1).clone().stride(),
        )
    )
    for i in range(4):
        yield f(draw(i, 2, 3, 4, 5) if i % 2 else draw(i, 2, 3, 4, 5).to(memory_format=torch.channels_last))


@ROWS.program
def size_obj(compiled):
    f = compiled(
        lambda x: (
            x.shape + (1,),
            x.shape[1:],
            x.size()[-1],
            torch.Size([2]) + x.shape,
            x.shape.numel(),
            (3, *x.shape),
            x.shape == (2, 3),
            list(x.shape),
            x.shape[::-1],
            x.new_zeros(x.shape[::-1]),
            torch.Size((1, 2)),
            type(x.shape[0:1]).__name__,
            x.shape.count(3),
            2 in x.shape,
            max(x.shape),
            hash(x.shape) == hash(tuple(x.shape)),
            x.shape * 2,
            str(x.shape),
        )
    )
    for s in ((2, 3), (2, 3), (3, 2), (4, 4)):
        yield f(draw(1, *s))


@ROWS.program
def where_forms(compiled):
    f = compiled(
        lambda x: (
            torch.where(x > 0),
            torch.where(x > 0, x, -x),
            x.where(x > 0, 0),
            torch.where(x > 0, 1, 0),
            torch.where(x > 0, torch.tensor(1.0, dtype=torch.float64), x),
            torch.nonzero(x > 0, as_tuple=True),
            torch.argwhere(x > 0),
            x.nonzero().shape[0],
            x[x > 0].shape[0] + 1,
            torch.masked_select(x, x > 0).sum(),
        )
    )
    for i in range(5):
        yield f(draw(i, 3, 2))


@ROWS.program
def foreach_(compiled):
    f = compiled(
        lambda a, b: (
            torch._foreach_add([a, b], 1),
            torch._foreach_mul([a, b], [a, b]),
            torch._foreach_norm([a, b]),
            torch._foreach_add_([a], [b]),
            torch._foreach_sqrt([a.abs(), b.abs()]),
        )
    )
    for i in range(3):
        a, b = draw(i, 3), draw(i + 1, 3)
        yield f(a, b), a


@ROWS.program
def strings_keys(compiled):
    f = compiled(lambda x, d: {k.upper(): v * 2 for k, v in sorted(d.items())} | {"n": x, 1: 2, None: 3, (1, 2): x + 1})
    for i in range(4):
        yield f(draw(i, 3), {"b": draw(i, 2), "a": 1.0 * i})


@ROWS.program
def namedtuple_out(compiled):
    NT = collections.namedtuple("NT", "a b")

    class M(typing.NamedTuple):
        x: torch.Tensor
        n: int = 3

    f = compiled(lambda x: (NT(x * 2, [x]), M(x + 1), torch.max(x, 0), x.sort().indices))
    for i in range(3):
        o = f(draw(i, 3))
        yield tuple(o[0]), tuple(o[1]), tuple(o[2]), o[3], type(o[0]).__name__, type(o[2]).__name__


@ROWS.program
def prints(compiled):
    import io

    f = compiled(lambda x, b: (print("a", x.shape, file=b), print(f"{x.sum():.3f}", end="!", file=b), x * 2)[2])
    for i in range(3):
        b = io.StringIO()
        yield f(draw(i, 3), b), b.getvalue()


@ROWS.program
def reduce_dims(compiled):
    f = compiled(
        lambda x, d, k: (
            x.sum(d, keepdim=k),
            x.mean(d),
            x.amax(d, k),
            x.std(d, keepdim=k),
            x.softmax(d),
            x.argmax(d),
            x.cumsum(d),
            x.norm(dim=d),
            x.logsumexp(d),
            x.prod(d),
            x.median(d).values,
            x.sort(d).values,
            x.unbind(d)[0],
            x[:0].unbind(),
            x.index_select(d, torch.tensor([0])),
            x.flip(d),
            x.roll(1, d),
            x.chunk(2, d)[0],
            x.squeeze(d).shape,
            x.unsqueeze(d).shape,
            torch.stack([x, x], d),
            torch.cat([x, x], d),
            x.transpose(d, 0),
            x.size(d),
            x.diff(dim=d),
            x.select(d, 0),
            x.narrow(d, 0, 1),
        )
    )
    for i, (d, k) in enumerate([(0, True), (1, False), (-1, True), (0, True), (2, False)]):
        yield f(draw(i, 2, 3, 4), d, k)


@ROWS.program
def int_index_args(compiled):
    f = compiled(
        lambda x, i, t: (
            x[i],
            x[:, i],
            x[i : i + 2],
            x[..., -i - 1],
            x[t],
            x[t, i],
            x.select(0, i),
            x.index_select(0, t),
            x.take(t),
            x[i, t],
            x.gather(1, t[None].expand(1, -1)),
            torch.index_put(x, (t,), torch.tensor(0.0)),
            x[[i, 0]],
            x[torch.tensor(i)],
            x[:, None, i],
        )
    )
    for i in range(3):
        yield f(draw(i, 3, 4), i, torch.tensor([i, 0]))
    yield outcome(f, draw(0, 3, 4), 5, torch.tensor([0]))


@ROWS.program
def interp_args(compiled):
    f = compiled(lambda x, m: F.interpolate(x, scale_factor=2, mode=m))
    for m in ("nearest", "bilinear", "bicubic", "area", "nearest", "nearest-exact"):
        yield f(draw(1, 1, 2, 3, 3), m)


@ROWS.program
def mha(compiled):
    m = nn.MultiheadAttention(4, 2, batch_first=True)
    f = compiled(lambda x, mask: m(x, x, x, key_padding_mask=mask))
    for i in range(3):
        yield f(draw(i, 2, 3, 4), torch.tensor([[False, False, True], [False] * 3]))
    m.eval()
    for i in range(3):
        yield f(draw(i, 2, 3, 4), None)


@ROWS.program
def device_dtype_ctx(compiled):
    @compiled
    def f(x):
        a = torch.ones(2)
        torch.set_default_dtype(torch.float64)
        b = torch.ones(2)
        c = torch.tensor(1.5)
        torch.set_default_dtype(torch.float32)
        with torch.device("cpu"):
            d = torch.zeros(2)
        return a, b, c, d, x * b.sum(), x.device.type, x.is_cuda, torch.get_default_dtype()

    for i in range(4):
        yield [v if v is not torch.float32 else 1 for v in f(draw(i, 3))]


@ROWS.program
def sizes_of_nested_tensors(compiled):
    fast = compiled(lambda a, b: (torch.nested.nested_tensor([a, b]).size(0), a * b))
    for i in range(3):
        yield outcome(fast, draw(i, 3, 4), draw(i + 3, 3, 4))


@ROWS.program
def questions_to_nested_tensors(compiled):
    asked = (len, lambda x: x.numel(), lambda x: x.shape, lambda x: x.size(), lambda x: x.nbytes, lambda x: x.size(0))
    for ask in asked:
        fast = compiled(lambda a, b, ask=ask: (outcome(ask, a), b * 2))
        for i in range(3):
            yield outcome(fast, torch.nested.nested_tensor([draw(i, 2, 4), draw(i + 3, 3, 4)]), draw(i, 3))
            yield outcome(fast, draw(i, 2, 4), draw(i, 3))


@ROWS.parametrize()
def test_forms_are_eagers(trap: Trap) -> None:
    hold(trap)
