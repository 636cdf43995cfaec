"""Small programs over kinds of tensors: dtypes, layouts, views, writes, indices, numbers, random numbers."""

from __future__ import annotations

import numpy as np
import torch
from tests.traps.small_programs import Rows, draw
from tests.traps.trap import Trap, hold
from torch import nn

ROWS = Rows()
F = nn.functional

I = lambda d, *s: lambda i: (draw(i, *s, dtype=d),)


@ROWS.case(lambda i: (draw(i, 3, 4), np.float32(i + 0.5)))
def np_scalar_mul(x, s):
    return x * s, s * x, x + np.float64(2)


@ROWS.case(lambda i: (draw(i, 3, 4), np.arange(4, dtype=np.float32) + i))
def np_array_add(x, a):
    return x + torch.from_numpy(a), torch.as_tensor(a) * 2


@ROWS.case()
def numpy_view_written(x):
    y = x * 2
    a = y.numpy()
    a[0] = 7
    return y + 1


@ROWS.case(lambda i: (draw(i, 4, dtype=torch.int8), draw(i + 1, 4, dtype=torch.uint8)))
def int8_uint8(a, b):
    return a + b, a * b, a - b, a // (b + 1), a % 7, -b, a / 2, b >> 1, a << 1


@ROWS.case(lambda i: (draw(i, 4, dtype=torch.int32) * 300000000,))
def int32_overflow(a):
    return a * a, a + a, a.sum(), a.prod(), a.abs(), -a


@ROWS.case(lambda i: (torch.tensor([-7, 7, -8, 8, 0, 5 + i]), torch.tensor([2, -2, 3, -3, 5, -1])))
def int_division(a, b):
    return a // b, a % b, a / b, torch.div(a, b, rounding_mode="trunc"), torch.fmod(a, b), torch.remainder(a, b)


@ROWS.case(lambda i: (torch.tensor([float("inf"), -float("inf"), float("nan"), 0.0, -0.0, 1.0 + i]),))
def inf_nan(x):
    return (
        x // 1,
        x % 2,
        x.round(),
        torch.sign(x),
        x.clamp(-1, 1),
        torch.maximum(x, torch.zeros(())),
        torch.fmax(x, torch.zeros(())),
        x == x,
        x > 0,
        torch.nan_to_num(x),
        x.sigmoid(),
        x.tanh(),
        x.softmax(0),
        x.argmax(),
        x.max(),
        x.min(),
        1 / x,
        x * 0,
        torch.signbit(x),
        torch.copysign(torch.ones(6), x),
        torch.heaviside(x, torch.tensor(0.5)),
        x.pow(0),
        torch.logaddexp(x, x),
        torch.hypot(x, x),
    )


@ROWS.case(lambda i: (torch.tensor([float("inf"), float("nan"), -0.0, 3.0 + i], dtype=torch.float64),))
def to_int(x):
    return torch.nan_to_num(x).clamp(-100, 100).int(), x.bool(), x.isfinite(), x.logical_not(), x.isneginf()


@ROWS.case(lambda i: (torch.tensor([0.5, 1.5, 2.5, -0.5, -1.5, 3.5 + i]),))
def rounding(x):
    return x.round(), x.round(decimals=1), torch.trunc(x), torch.floor(x), torch.ceil(x), torch.frac(x)


@ROWS.case(lambda i: (draw(i, 3, 4, dtype=torch.float16),))
def f16_over(x):
    return x * 60000, x / 0, (x * 1000).sum(), x.exp() * x, x**3, x.pow(0.5), x.rsqrt()


@ROWS.case(lambda i: (draw(i, 3, 4, dtype=torch.bool), draw(i + 9, 3, 4, dtype=torch.bool)))
def bools(a, b):
    return (
        a + b,
        a * b,
        a & b,
        a ^ b,
        ~a,
        a.sum(),
        a.float().mean(),
        a > b,
        a | True,
        a.any(0),
        a.all(1),
        a.cumsum(0),
        a.to(torch.uint8) - 1,
        a * 2.5,
        a.max(0).values,
        a.prod(),
    )


@ROWS.case()
def setitem_forms(x):
    y = x.clone()
    y[0] = 1
    y[:, 1] += 2
    y[..., -1] *= 3
    y[[0, 2]] = y[[2, 0]]
    y[y > 2] = 0
    y[None, 1:, ::2] = -1
    y[(1, 2)] = 9
    y[torch.tensor(1)] = 4
    return y


@ROWS.case()
def getitem_forms(x):
    return (
        x[0, 1],
        x[-1],
        x[:, None, 1],
        x[..., ::2],
        x[[0, 0, 2]],
        x[torch.tensor([True, False, True])],
        x[torch.tensor([[0, 1], [2, 0]])],
        x[x > 0],
        x[1:1],
        x[5:],
        x[:-1, -3:],
        x[True],
        x[False],
        x[:, [1, 3]],
        x[[0, 1], [2, 3]],
        x[range(2)],
        x[np.array([1, 0])],
        x[np.int64(1)],
        x[slice(None, None, 2)],
    )


def outcome_(f):
    try:
        return f()
    except Exception as e:
        return (type(e).__name__, str(e))


@ROWS.case(lambda i: (torch.tensor(1.5 + i), torch.tensor(2 + i)))
def zero_dim(x, n):
    return (
        x + n,
        x * 2,
        n / 2,
        n // 2,
        x.sum(),
        x.unsqueeze(0),
        x.expand(3),
        x[None],
        x[...],
        torch.stack([x, x]),
        x.t(),
        x.softmax(0),
        x.max(),
        x.argmax(),
        torch.arange(3) * x,
        torch.arange(3) + n,
        torch.ones(2, dtype=torch.float16) * x,
        torch.ones(2, dtype=torch.int8) * n,
        torch.ones(2, dtype=torch.int8) * x,
    )


@ROWS.case(lambda i: (draw(i, 4, 3).t(), draw(i, 3, 8)[:, ::2]))
def strided_in(a, b):
    return (
        a + b,
        a * 2,
        a.contiguous(),
        a.clone(),
        torch.empty_like(a).fill_(1),
        a.reshape(-1),
        a.flatten(),
        a.mT.relu(),
        torch.cat([a, b]),
        torch.stack([a, b]),
        a.sum(0),
        a.softmax(0),
        torch.zeros_like(b),
        b.exp(),
        b.view(3, 2, 2) if False else 0,
    )


@ROWS.case(lambda i: (draw(i, 2, 3, 4, 5).to(memory_format=torch.channels_last),))
def channels(x):
    return (
        x + 1,
        F.relu(x),
        x.clone(),
        x.permute(0, 2, 3, 1) * 2,
        x.contiguous(),
        x.mean((2, 3), keepdim=True) * x,
        F.interpolate(x, scale_factor=2),
        F.pad(x, (1, 1)),
        x.is_contiguous(memory_format=torch.channels_last),
        x.cumsum(1),
        x.softmax(1),
        x.sort(1).values,
        x.flip(1),
        x.roll(1, 2),
        torch.where(x > 0, x, 0),
        x.half(),
        x.to(torch.float64),
        x[:, :2],
        x.unfold(2, 2, 1),
        F.avg_pool2d(x, 2),
        F.max_pool2d(x, 2),
    )


@ROWS.case(lambda i: (draw(i, 2, 1).expand(2, 3 + i),))
def expanded(x):
    return (
        x + 1,
        x.clone(),
        x.contiguous(),
        x.sum(1),
        x * x,
        x.t().clone(),
        x.reshape(-1),
        torch.empty_like(x).zero_(),
        x.exp(),
    )


@ROWS.case(lambda i: (draw(i, 3, 4),))
def out_tuple(x):
    a = torch.empty(0)
    b = torch.empty(0, dtype=torch.long)
    m = torch.max(x, 1, out=(a, b))
    s = torch.sort(x, out=(torch.empty(0), torch.empty(0, dtype=torch.long)))
    return m, a, b, s, m.values is a


@ROWS.case(lambda i: (draw(i, 3, 4, dtype=torch.complex64),))
def cplx(x):
    return (
        x * x,
        x.abs(),
        x.angle(),
        x.conj() * x,
        x.real,
        x.imag + 1,
        x / x.abs(),
        x.exp(),
        x.sum(),
        x.mean(0),
        torch.view_as_real(x),
        x @ x.mH,
        x.pow(2),
        x.sqrt(),
        x.log(),
        x * 1j,
        x + 1,
        x.norm(),
        x == x,
        1 / x,
        x.sgn(),
        torch.polar(x.abs(), x.angle()),
        x.isfinite(),
        x.cumsum(0),
        x.prod(),
        x.var(),
        x.reciprocal(),
        torch.fft.fft(x),
    )


@ROWS.case(lambda i: (draw(i, 3, 4, dtype=torch.complex64),))
def cplx_write(x):
    x.real.mul_(2)
    x.imag[0] = 0
    y = x.conj()
    y.add_(1j)
    return x + 0, y


@ROWS.case(lambda i: (draw(i, 6),))
def inplace_ops(x):
    y = x.clone()
    y.add_(1).mul_(2).clamp_(0, 3).neg_()
    y.sub_(y.mean())
    y.div_(3).pow_(2).sqrt_()
    y.fill_(x[0])
    y.zero_()
    y.copy_(x)
    y.masked_fill_(y > 0, 2)
    y.index_fill_(0, torch.tensor([1]), 9)
    y.scatter_(0, torch.tensor([0]), 7.0)
    y.index_add_(0, torch.tensor([2, 2]), x[:2])
    y.resize_(3)
    y.swapaxes_(0, 0)
    y.unsqueeze_(0)
    return y


@ROWS.case(lambda i: (torch.tensor([3, 1, 2, 1, 3, i]),))
def stable(x):
    return (
        torch.sort(x, stable=True),
        x.argsort(stable=True, descending=True),
        x.topk(2).values,
        x.kthvalue(2),
        x.msort(),
    )


@ROWS.case(lambda i: (draw(i, 3, dtype=torch.int64), [2**31, 2**40, -(2**62), 2**62][i]))
def edge_int(x, n):
    return (
        x * n,
        x + n,
        x // n,
        n * 4,
        x - n,
        torch.tensor(n),
        torch.full((2,), n),
        x > n,
        n % 1000,
        x % n,
        x.float() * n,
        x.int() * (n % 7),
    )


@ROWS.case(lambda i: (torch.ones(2 + (i != 1) * i, 1 if i < 2 else 3), torch.ones(1, 3)))
def broadcast_change(a, b):
    return (
        a + b,
        a * b.t() if a.shape[0] == 3 else a,
        torch.broadcast_tensors(a, b),
        a.expand_as(a),
        torch.maximum(a, b),
    )


@ROWS.case(lambda i: (draw(i, 4),))
def type_conversions(x):
    return (
        x.to(torch.int64),
        x.double().float(),
        x.type(torch.float16),
        x.to(x.dtype) is x,
        x.float() is x,
        x.half().to(x),
        x.type_as(torch.ones(1, dtype=torch.float64)),
        x.view(torch.int32),
        x.to("cpu") is x,
        x.bfloat16().float(),
        x.char(),
        x.cfloat(),
        x.new_zeros(2),
        x.new_tensor([1, 2]),
        x.new_full((2,), 3),
        x.new_empty(0),
    )


@ROWS.case(lambda i: (draw(i, 4), torch.float64 if i % 2 else torch.float16))
def dtype_args(x, d):
    return (
        x.to(d),
        torch.zeros(3, dtype=d) + x[:3].to(d),
        torch.finfo(d).max,
        torch.arange(3, dtype=d),
        torch.result_type(x, torch.ones((), dtype=d)),
        torch.promote_types(d, torch.int8),
        d.is_floating_point,
        str(d),
        d.itemsize,
        torch.can_cast(d, torch.int32),
    )


@ROWS.case(
    lambda i: (draw(i, 4), draw(i, 4, dtype=torch.float64), torch.tensor(2, dtype=torch.float64), torch.tensor(3))
)
def promotion(a, b, c, n):
    return (
        a + b,
        a + c,
        a * n,
        b * n,
        n + c,
        a.int() + c,
        a.int() * 2.0,
        a.int() / 2,
        a.half() + c,
        a.half() * a,
        a.bool() + 1,
        a.int() + True,
        torch.where(a > 0, a, c),
        torch.where(a > 0, 1, 2.5),
        torch.where(a > 0, a.int(), b),
        torch.cat([a, b]),
        torch.stack([a.int(), a.long()]),
        torch.add(a.int(), a.int(), alpha=2),
        a.int().clamp(0.5),
        torch.lerp(a, a, 0.3),
        torch.addcmul(a, a, a, value=2),
        torch.maximum(a.int(), b),
        a.int() ** 2.0,
        a.int().sum() / 3,
        torch.tensor(1) / torch.tensor(2),
        a > c,
        a.int() == a,
        torch.minimum(a, c),
        torch.pow(2, a.int().abs()),
        torch.pow(2.0, a.int()),
        a.int() // 2.0,
        a.bool() * a.bool(),
    )


@ROWS.case(lambda i: (draw(i, 4),))
def creation(x):
    return (
        torch.tensor([1, 2.5]),
        torch.tensor([True, False]),
        torch.tensor([[1], [2]]),
        torch.tensor(x[0].item()),
        torch.tensor([]),
        torch.arange(5, 0, -2),
        torch.arange(0, 1, 0.3),
        torch.full_like(x, 2, dtype=torch.int32),
        torch.zeros(()),
        torch.ones(x.shape[0], 2),
        torch.empty(0, 3),
        torch.logspace(0, 1, 3),
        torch.eye(2, 3),
        torch.tril_indices(3, 3),
        torch.cartesian_prod(torch.tensor([1, 2]), torch.tensor([3])),
        torch.meshgrid(x[:2], x[:2], indexing="ij"),
        torch.zeros_like(x, dtype=torch.bool),
        torch.rand_like(x),
        torch.randn(2, 3),
        torch.randint(0, 5, (3,)),
        torch.randperm(5),
        torch.multinomial(x.softmax(0), 2),
        torch.normal(0.0, 1.0, (2,)),
        torch.bernoulli(x.sigmoid()),
        torch.empty(3).uniform_(1, 2),
        torch.empty(3).normal_(),
        torch.empty(3).exponential_(),
        torch.empty(4).random_(5),
        torch.poisson(x.abs()),
    )


@ROWS.case(lambda i: (draw(i, 4), i))
def seeds(x, s):
    torch.manual_seed(s)
    a = torch.rand(3)
    st = torch.get_rng_state()
    b = torch.rand(3)
    torch.set_rng_state(st)
    c = torch.rand(3)
    g = torch.Generator().manual_seed(s + 5)
    d = torch.rand(2, generator=g)
    g2 = g.clone_state() if False else None
    with torch.random.fork_rng(devices=[]):
        e = torch.rand(2)
    return a, b, c, d, e, torch.rand(1), torch.initial_seed()


@ROWS.case(lambda i: (draw(i, 50, 4), torch.arange(50), torch.arange(50) < 20 + i))
def chosen_by_one_mask(x, labels, mask):
    """The first choice waits for a kernel that has values of the end, the second for nothing but its size."""
    y = x.sin()
    features, chosen = y[mask], labels[mask]
    return features, chosen, x.cos() * y


@ROWS.case(lambda i: (draw(i, 50, 4), torch.arange(50) % 3, torch.arange(50) < 20 + i))
def chosen_for_a_loss(x, labels, mask):
    y = x.sin()
    loss = torch.nn.functional.cross_entropy(y[mask], labels[mask])
    return loss, x.cos() * 2, y.amax(1)


@ROWS.case(lambda i: (draw(i, 3, 4),))
def stats(x):
    return (
        x.var(unbiased=False),
        x.std(1, keepdim=True),
        torch.var_mean(x, 0),
        x.quantile(0.5),
        x.quantile(torch.tensor([0.1, 0.9]), dim=1),
        x.median(1),
        x.mode(0).indices.shape,
        x.histc(4),
        torch.cov(x),
        torch.corrcoef(x),
        x.cummax(1),
        x.logcumsumexp(1),
        x.aminmax(),
        x.diff(),
        torch.trapz(x),
        x.amax((0, 1)),
        x.count_nonzero(0),
        x.nansum(),
        x.nanmean(),
        torch.cdist(x, x),
        x.renorm(2, 0, 1.0),
        torch.linalg.vector_norm(x, 3, 1),
        x.norm(p=float("inf")),
        x.norm(p=0),
        x.dist(x * 2),
        torch.bucketize(x, torch.tensor([-1.0, 0, 1])),
        torch.searchsorted(torch.tensor([-1.0, 0, 1]), x),
    )


@ROWS.case(lambda i: (draw(i, 4, 4),))
def linalg(x):
    s = x @ x.t() + torch.eye(4)
    return (
        torch.linalg.cholesky(s),
        torch.linalg.solve(s, x),
        torch.linalg.inv(s),
        torch.linalg.det(s),
        torch.linalg.slogdet(s),
        torch.linalg.svdvals(s),
        torch.linalg.eigvalsh(s),
        torch.linalg.qr(s).R.abs(),
        torch.einsum("ij,jk->ik", x, s),
        torch.einsum("ii", x),
        torch.kron(x[:2, :2], s[:2, :2]),
        x.trace(),
        torch.outer(x[0], x[1]),
        torch.cross(x[:, :3], s[:, :3], dim=1),
        torch.tensordot(x, s, 1),
        torch.matrix_exp(x * 0.1),
        x.inverse() if False else 0,
        torch.linalg.matrix_power(s, 3),
        torch.addmm(x, x, s, beta=0.5, alpha=2),
        torch.baddbmm(x[None], x[None], s[None]),
        x.mv(x[0]),
        x[0].dot(x[1]),
        torch.chain_matmul(x, s) if False else 0,
        torch.linalg.multi_dot([x, s, x]),
        torch.block_diag(x[:1, :2], s[:1, :1]),
        torch.vander(x[0]),
        torch.linalg.lstsq(s, x).solution,
        torch.linalg.pinv(s),
    )


@ROWS.case(lambda i: (draw(i, 3, dtype=torch.int64), 3 - i if i < 3 else -1))
def power_of_integers(x, n):
    return x**n


@ROWS.case(lambda i: (draw(i, 3, 4, dtype=torch.bool), draw(i, 3, 4, dtype=torch.int32)))
def borders_of_half(mask, numbers):
    return [F.pad(x, (1, 2, 0, 1), value=value) for x in (mask, numbers) for value in (0.5, -0.5, 1.7, 0.0, 1, True)]


@ROWS.case(lambda i: (draw(i, 5, 6), draw(i, 6, 6)[1:]))
def copies_that_count_from_where_memory_begins(x, part):
    ones = torch.ones(2, 2)
    return (
        torch.as_strided_copy(x[1:], (2, 2), (3, 1), 1),
        torch.as_strided_copy(part, (2, 2), (3, 1), storage_offset=0),
        torch.as_strided_scatter((x * 2)[1:], ones, (2, 2), (3, 1), 2),
        torch.as_strided_scatter(part, ones, (2, 2), (3, 1)),
    )


@ROWS.case(lambda i: (draw(i, 3),))
def numbers_of_numpy_say_the_dtype(x):
    two, one, half = np.float64(2), np.int32(1), np.float16(0.5)
    return (
        torch.tensor(two),
        torch.tensor([one]),
        torch.tensor([2, two]),
        torch.tensor(((half,),)),
        torch.tensor([half, two]),
        torch.tensor([two], dtype=torch.int64),
        torch.as_tensor([two]),
        torch.asarray([one]),
        x.new_tensor([two]),
        torch.Tensor([two]),
        torch.full((2,), two),
        x * 2,
    )


@ROWS.parametrize()
def test_tensors_are_eagers(trap: Trap) -> None:
    hold(trap)
