"""Small programs whose gradients are eager's: kinks, writes, hooks, functions of the user, losses, complex numbers."""

from __future__ import annotations

import operator

import torch
from tests.traps.small_programs import MOST, Rows, draw
from tests.traps.trap import Trap, hold, outcome
from torch import nn

ROWS = Rows()
F = nn.functional

G = lambda *s, d=torch.float32: lambda i: (draw(i, *s, dtype=d, grad=True),)


def two(*s, d=torch.float32):
    return lambda i: (draw(i, *s, dtype=d, grad=True), draw(i + 50, *s, dtype=d, grad=True))


@ROWS.case(two(3, 4), grad=True)
def grad_mix(a, b):
    return (
        torch.where(a > b, a, b * 2),
        a.detach() * b,
        (a * b).sum(0),
        torch.maximum(a, a),
        a.clamp(-0.5, 0.5),
        a.abs(),
        a.sign() * b,
        a.relu(),
        (a.round() * b),
    )


@ROWS.case(two(4), grad=True)
def norms_whose_scale_and_shift_are_one_tensor(a, b):
    rows, pictures = torch.linspace(-1, 2, 12).view(3, 4) * a.detach(), torch.linspace(-1, 2, 24).view(2, 4, 3)
    return (
        F.batch_norm(rows, None, None, b, b, training=True),
        F.batch_norm(rows * a, None, None, a, a, training=True),
        F.layer_norm(rows, (4,), b, b),
        F.group_norm(pictures, 2, b, b),
        F.instance_norm(pictures, None, None, b, b),
    )


@ROWS.case(lambda i: (draw(i, 6 + i, 5, grad=True), torch.arange(5 + i) % 5), grad=True)
def smoothed_labels_of_changes(x, target):
    changes = x[1:] - x[:-1]
    return F.cross_entropy(changes, target, label_smoothing=0.1), F.cross_entropy(
        changes, target, label_smoothing=0.2, reduction="none", ignore_index=2
    )


@ROWS.case(two(4), grad=True)
def leaves_made_inside(a, b):
    made = torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True), a.new_ones(4, requires_grad=True)
    products = [leaf * b.detach() for leaf in made]
    slopes = torch.autograd.grad((products[0] * a).sum() + products[1].sum(), made, create_graph=True)
    with torch.no_grad():
        late = torch.full_like(a, 2.0, requires_grad=True)
    return *made, *products, *slopes, late * 2, torch.zeros(2, requires_grad=True)


@ROWS.case(two(3, 4), grad=True)
def ties(a, b):
    z = a * 0
    return (
        z.max(),
        z.amax(1),
        z.max(1).values,
        torch.maximum(z, z),
        z.clamp(0, 0),
        z.min(),
        z.abs(),
        z.relu(),
        F.relu6(z),
        torch.minimum(z, z.detach()),
        z.sort(1).values,
        z.median(),
        z.norm(),
        z.cummax(0).values,
        F.max_pool1d(z, 2),
        torch.fmax(z, z),
        z.topk(2).values,
        z.aminmax().max if torch.__version__ >= "2.13" else z.max(),  # before, it had no derivative
        z.logsumexp(0),
        F.hardtanh(z),
        F.leaky_relu(z),
        F.threshold(z, 0, 1.0),
        F.elu(z),
        F.softshrink(z),
        torch.hypot(z, z),
        torch.linalg.vector_norm(z, dim=1),
        F.normalize(z),
        torch.cdist(z, z),
        z.std(0),
        z.renorm(2, 0, 1.0),
    )


@ROWS.case(
    lambda i: (
        torch.tensor(
            [[0.0, 0.0, 2.0 + i], [1.0, 0.0, float("inf")], [3.0, float("nan"), 0.0], [0.0, float("inf"), 2.0]]
        ).requires_grad_(),
    ),
    grad=True,
)
def prods(x):
    return x.prod(1), x.prod(0), x.prod(), x[0].prod(), x[1].prod(), x.cumprod(1)


@ROWS.case(two(3, 4), grad=True)
def inplace_grad(a, b):
    x = a * 1
    x.mul_(b)
    x[0] = b[1]
    x[:, 1].add_(a[:, 0])
    y = x.view(-1)
    y[3:6] = 0
    x.t()[0].neg_()
    return x, y * 2


@ROWS.case(two(3, 4), grad=True)
def detach_alias(a, b):
    x = a * 2
    d = x.detach()
    d.mul_(3)
    return x * b


@ROWS.case(two(3, 4), grad=True)
def nograd_mid(a, b):
    with torch.no_grad():
        m = a.max()
        k = a / m
    with torch.enable_grad():
        j = a * k
    with torch.set_grad_enabled(False):
        q = j * b
    return j * b + q, k, q


@ROWS.case(
    two(
        4,
    ),
    grad=True,
)
def retained(a, b):
    x = a * b
    x.retain_grad()
    y = x.sin().sum()
    y.backward(retain_graph=True)
    return x.grad, y * 1, a.grad.clone()


@ROWS.case(
    two(
        4,
    ),
    grad=True,
)
def double_back(a, b):
    y = (a**3 * b).sum()
    (g,) = torch.autograd.grad(y, a, create_graph=True)
    return (g * b).sum(), g


@ROWS.case(
    two(
        4,
    ),
    grad=True,
)
def hvp(a, b):
    f = lambda v: (v.sin() * b).sum()
    return torch.autograd.functional.hvp(f, a, b.detach())[1], torch.autograd.functional.jacobian(f, a)


@ROWS.case(
    two(
        4,
    )
)
def func_grad(a, b):
    return (
        torch.func.grad(lambda v: (v.sin() * b).sum())(a),
        torch.func.vmap(lambda v: v * v.exp())(a),
        torch.func.jvp(lambda v: v.tanh(), (a,), (b,)),
        torch.func.vjp(lambda v: v.cos(), a)[1](b),
        torch.func.jacrev(lambda v: v**2)(a),
        torch.func.hessian(lambda v: (v**3).sum())(a),
    )


class Sq(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, k):
        ctx.save_for_backward(x)
        ctx.k = k
        return x * x * k

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 2 * x * g * ctx.k + 1, None


@ROWS.case(lambda i: (draw(i, 4, grad=True), 1.0 + i), grad=True)
def custom_fn(x, k):
    return Sq.apply(x, k) + Sq.apply(x * 2, 2.0)


class Two(torch.autograd.Function):
    @staticmethod
    def forward(x, y):
        return x + y, x * y, (x > 0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.mark_non_differentiable(output[2])
        ctx.save_for_backward(*inputs)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, a, b, c):
        x, y = ctx.saved_tensors
        gx = gy = None
        if a is not None:
            gx = a
            gy = a
        if b is not None:
            gx = b * y + (gx if gx is not None else 0)
            gy = b * x
        return gx, gy


@ROWS.case(
    two(
        4,
    ),
    grad=True,
)
def custom_two(x, y):
    a, b, c = Two.apply(x, y)
    return a, b * c, c


@ROWS.case(
    two(
        4,
    ),
    grad=True,
)
def custom_partial(x, y):
    a, b, c = Two.apply(x, y)
    return b * 2


class Dirty(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        x.mul_(2)
        ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx, g):
        return g * 2


@ROWS.case(
    two(
        4,
    ),
    grad=True,
)
def custom_dirty(x, y):
    z = x * 1
    Dirty.apply(z)
    return z * y


@ROWS.case(
    two(
        4,
    ),
    grad=True,
)
def tensor_hook(x, y):
    z = x * y
    z.register_hook(lambda g: g * 2)
    h = z.sum() * 1
    return h


@ROWS.case(lambda i: (draw(i, 4, grad=bool(i % 2)),), grad=True)
def req_flip(x):
    return x * 2, x.requires_grad


@ROWS.case(
    two(
        4,
    ),
    grad=True,
)
def ckpt(x, y):
    return torch.utils.checkpoint.checkpoint(lambda a, b: (a * b).sin(), x, y, use_reentrant=False)


@ROWS.case(two(3, 4), grad=True)
def losses(a, b):
    return (
        F.mse_loss(a, b),
        F.l1_loss(a, b),
        F.smooth_l1_loss(a, b),
        F.huber_loss(a, b),
        F.kl_div(a.log_softmax(1), b.softmax(1), reduction="batchmean"),
        F.binary_cross_entropy_with_logits(a, b.sigmoid()),
        F.cross_entropy(a, torch.tensor([0, -100, 3])),
        F.cross_entropy(a, b.softmax(1), label_smoothing=0.1),
        F.nll_loss(a.log_softmax(1), torch.tensor([0, 1, 2]), weight=torch.tensor([1.0, 2, 3, 4])),
        F.cosine_embedding_loss(a, b, torch.tensor([1, -1, 1])),
        F.triplet_margin_loss(a, b, a * 2),
        F.margin_ranking_loss(a, b, torch.ones(3, 4)),
        F.poisson_nll_loss(a, b.abs()),
        F.gaussian_nll_loss(a, b, torch.ones(3, 4)),
        F.multi_margin_loss(a, torch.tensor([1, 2, 0])),
        F.hinge_embedding_loss(a, torch.tensor([[1, -1, 1, -1]] * 3)),
        F.soft_margin_loss(a, torch.ones(3, 4)),
        F.multilabel_soft_margin_loss(a, torch.ones(3, 4)),
        F.pairwise_distance(a, b),
        F.cosine_similarity(a, b),
        F.ctc_loss(a[:, None].log_softmax(2), torch.tensor([[1, 2]]), torch.tensor([3]), torch.tensor([2])),
    )


@ROWS.case(lambda i: (draw(i, 3, 4, grad=True), torch.full((3,), -100)), grad=True)
def all_ignored(a, t):
    return (
        F.cross_entropy(a, t),
        F.cross_entropy(a, t, reduction="sum"),
        F.nll_loss(a.log_softmax(1), t, reduction="none"),
    )


@ROWS.case(lambda i: (torch.zeros(0, 4, requires_grad=True), torch.zeros(0, dtype=torch.long)), grad=True)
def empty_loss(a, t):
    return (
        F.cross_entropy(a, t),
        F.cross_entropy(a, t, reduction="sum"),
        a.mean(),
        a.sum(),
        F.mse_loss(a, a * 2),
        F.layer_norm(a, (4,)),
        a.softmax(1),
        F.linear(a, torch.ones(2, 4)),
        F.embedding(t, torch.ones(3, 2)),
        a.max(1).values,
        a.norm(),
        a.prod(),
    )


@ROWS.case(lambda i: (draw(i, 2, 3, 5, 5, grad=True),), grad=True)
def convs(x):
    w = torch.linspace(-1, 1, 54).view(2, 3, 3, 3)
    return (
        F.conv2d(x, w),
        F.conv2d(x, w, padding="same"),
        F.conv2d(x, w, stride=2, padding=1, dilation=2),
        F.conv_transpose2d(x, w.transpose(0, 1)),
        F.unfold(x, 2),
        F.avg_pool2d(x, 2, ceil_mode=True, count_include_pad=False),
        F.max_pool2d(x, 3, 1, 1),
        F.adaptive_avg_pool2d(x, 2),
        F.adaptive_max_pool2d(x, (2, 1)),
        F.interpolate(x, size=7, mode="bilinear"),
        F.interpolate(x, scale_factor=0.5, mode="bicubic", align_corners=True),
        F.grid_sample(x, torch.zeros(2, 2, 2, 2), align_corners=False),
        F.pixel_unshuffle(x[:, :, :4, :4], 2),
        F.lp_pool2d(x, 2.0, 2),
        F.group_norm(x, 3),
        F.instance_norm(x),
        F.local_response_norm(x, 2),
        F.pad(x, (1, 2, 0, 1), mode="reflect"),
        F.pad(x, (1, 1, 1, 1), mode="replicate"),
        F.pad(x, (1, 1, 1, 1), mode="circular"),
        F.fold(F.unfold(x, 2), (5, 5), 2),
    )


NAMES = (
    "relu",
    "celu",
    "selu",
    "elu",
    "gelu",
    "silu",
    "mish",
    "softplus",
    "softsign",
    "tanhshrink",
    "hardswish",
    "hardsigmoid",
    "logsigmoid",
    "relu6",
    "hardshrink",
    "softshrink",
    "leaky_relu",
    "rrelu",
)


@ROWS.case(lambda i: (draw(i, 5, 2, 3, grad=True),), grad=True)
def acts(x):
    return [getattr(F, n)(x) for n in NAMES] + [
        F.gelu(x, approximate="tanh"),
        F.glu(x[:2], 0),
        F.prelu(x, torch.tensor([0.1])),
        F.softmin(x, -1),
        F.gumbel_softmax(x),
        F.dropout(x, 0.3),
        F.alpha_dropout(x, 0.3),
        F.feature_alpha_dropout(x, 0.3),
        F.dropout2d(x.unsqueeze(0), 0.5),
        F.threshold(x, 0.1, 20),
    ]


@ROWS.case(lambda i: (draw(i, 3, 4, dtype=torch.complex64, grad=True),), grad=True)
def cgrad(x):
    return (
        x * x,
        x.abs(),
        x.real,
        x.imag,
        x.angle(),
        x.conj(),
        x.exp(),
        x.sum(),
        x @ x.mT,
        x.mean(),
        torch.view_as_real(x),
        x.pow(2),
        x / (x + 1),
        x.sgn(),
        x.norm(),
        torch.fft.ifft(x),
        x.prod(),
        x.cumsum(0),
        x.sin(),
        x.tanh(),
        x.sqrt(),
        x.log(),
        torch.linalg.vector_norm(x, 1),
        torch.linalg.vector_norm(x, float("inf")),
        torch.linalg.vector_norm(x, 3),
        x.var(),
        x.std(),
        x.reciprocal(),
        x.square(),
    )


@ROWS.case(lambda i: (draw(i, 3, 4, dtype=torch.complex64, grad=True) * torch.tensor([0, 1, 1, 1]),))
def cnorm0(x):
    return (
        torch.linalg.vector_norm(x, 0),
        torch.linalg.vector_norm(x, 0, 1),
        x.norm(p=0),
        torch.linalg.vector_norm(x, float("-inf")),
        torch.linalg.vector_norm(x, 0.5),
        x.norm(dim=0, p=1),
    )


@ROWS.case(lambda i: (draw(i, 3, 4, dtype=torch.complex64, grad=True),), grad=True)
def cnorm0_grad(x):
    return torch.linalg.vector_norm(x, 0, 1), x.abs().sum(), torch.linalg.vector_norm(x, float("-inf"))


@ROWS.case(lambda i: (draw(i, 3, 4, dtype=torch.bfloat16, grad=True),), grad=True)
def bf_grad(x):
    return F.layer_norm(x, (4,)), x.softmax(1), F.gelu(x), (x.float() * 2).bfloat16()


@ROWS.case(
    two(
        4,
    ),
    grad=True,
)
def inference(x, y):
    with torch.inference_mode():
        z = x * y
        k = z.is_inference()
    return z, k, x * 2


@ROWS.case(
    two(
        5,
    ),
    grad=True,
)
def index_grad(a, b):
    return (
        a[[0, 0, 1]],
        a[a > 0].sum(),
        a.gather(0, torch.tensor([1, 1])),
        a.scatter(0, torch.tensor([0, 2]), b[:2]),
        a.index_select(0, torch.tensor([3, 3])),
        a.masked_fill(a > 0, 0),
        a.scatter_add(0, torch.tensor([1, 1]), b[:2]),
        a.index_add(0, torch.tensor([0, 0]), b[:2]),
        a.index_put((torch.tensor([0, 0]),), b[:2], accumulate=True),
        a.take(torch.tensor([1, 1])),
        a.scatter_reduce(0, torch.tensor([0, 0, 1]), b[:3], "amax"),
        a.scatter_reduce(0, torch.tensor([0, 0, 1]), b[:3], "mean", include_self=False),
        a.scatter_reduce(0, torch.tensor([0, 0, 1]), b[:3], "prod"),
        a.masked_select(b > 0).sum(),
        a.index_fill(0, torch.tensor([1]), 3.0),
        a.index_copy(0, torch.tensor([1, 2]), b[:2]),
        a.repeat_interleave(2),
        a.repeat(2, 2),
        a.unfold(0, 2, 1),
        a.roll(1),
        a.flip(0),
        a.diag(),
        torch.diag_embed(a),
        a.tril() if False else a.cumsum(0),
        torch.take_along_dim(a, torch.tensor([0, 0]), 0),
        a.kthvalue(2).values,
        a.sort(descending=True).values,
        a.as_strided((2, 2), (1, 1)),
        torch.combinations(a[:3]).sum(1),
        a.renorm(2, 0, 1.0) if False else a.sum(),
        torch.trapezoid(a),
        a.expand(2, 5),
        a.unsqueeze(0).squeeze(),
        torch.stack([a, b, a], 1),
        torch.cat([a, a]),
        a.split(2)[1],
        torch.tensor_split(a, 2)[0],
        torch.vstack([a, b]),
        torch.nn.functional.one_hot(torch.tensor([1, 0]), 3),
        torch.cumulative_trapezoid(a),
    )


@ROWS.case(lambda i: (draw(i, 2, 4, 8, grad=True),), grad=True)
def attn(x):
    m = torch.ones(4, 4, dtype=torch.bool).tril()
    return (
        F.scaled_dot_product_attention(x, x, x),
        F.scaled_dot_product_attention(x, x, x, attn_mask=m),
        F.scaled_dot_product_attention(x, x, x, is_causal=True),
        F.scaled_dot_product_attention(x, x, x, attn_mask=torch.zeros(4, 4, dtype=torch.bool)),
        F.scaled_dot_product_attention(x, x, x, scale=0.1),
        (x @ x.mT).masked_fill(~m, float("-inf")).softmax(-1),
    )


@ROWS.case(
    two(
        3,
    ),
    grad=True,
)
def same_twice(a, b):
    return a, a, a + 0, b.view(3), b.view(3)


@ROWS.case(
    lambda number: (torch.tensor([-float("inf"), float("inf"), -0.0, 0.0, 1.5, float(number)]).requires_grad_(),),
    grad=True,
)
def slopes_of_powers_that_are_roots(a):
    return a.pow(1.5)


@ROWS.program
def statistics_that_are_updated_before_backward_are_read_as_they_are_then(compiled):
    for kind, sizes in ((nn.BatchNorm1d, (5, 3)), (nn.BatchNorm2d, (2, 3, 2, 2)), (nn.InstanceNorm1d, (2, 3, 5))):
        norm = kind(3, affine=True, track_running_stats=True)

        @compiled
        def both(x, norm=norm):
            first = norm.eval()(x).tanh()
            return first * norm.train()(x * 2)

        @compiled
        def updated(x, mean, variance):
            mean, variance = mean * 2, variance * 2
            first = F.batch_norm(x, mean, variance).tanh()
            return first + F.batch_norm(x * 3, mean, variance, training=True)

        for number in range(4):
            x = draw(number, *sizes, grad=True)
            for made in (both(x), updated(x, draw(number, 3), draw(number, 3).exp())):
                made.square().sum().backward()
                yield made, x.grad, norm.weight.grad, norm.running_var


class Refusing(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, g):
        return None


class Told(Refusing):
    @staticmethod
    def backward(ctx, g):
        TOLD.append(g.clone())
        return None


TOLD = []


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2


class Squaring(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, g):
        return g * 2 * ctx.saved_tensors[0]


@ROWS.program
def functions_that_give_no_gradient(compiled):
    fast = compiled(lambda a, b: (Refusing.apply(a) * b).sum() + Told.apply(a).sum())
    TOLD.clear()
    for i in range(4):
        a, b = two(3)(i)
        fast(a, b).backward()
        yield a.grad, b.grad, list(TOLD)


@ROWS.program
def derivatives_of_powers_until_none_is_left(compiled):
    """Down to the exponent 0 eager's gradients require grad, though they are constant."""
    for power in (
        lambda x: x**1,
        lambda x: x**2 + 3 * x,
        lambda x: (x**3).sum(),
        lambda x: x.square(),
        lambda x: torch.pow(x, 4),
        lambda x: torch.where(x > 0, x**2, x),
    ):
        fast = compiled(power)
        for i in range(3):
            x = draw(i, 3 + i, grad=True)
            slope = fast(x)
            while slope.requires_grad:
                (slope,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
                yield slope


@ROWS.program
def second_derivatives_that_are_zero(compiled):
    """Of piecewise linear nets: zeros that lead to what decides the pieces, so that a loss of them has gradients."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(2, 4), nn.ReLU(), nn.Linear(4, 1))
    for function in (net, lambda x: x.relu() * x, lambda x: x.relu() ** 2, lambda x: (x * 1).relu_() * x.round()):
        fast = compiled(function)
        for i in range(3):
            x = draw(i, 3 + i, 2, grad=True)
            slopes = [fast(x).sum()]
            for _ in range(3):
                slopes += torch.autograd.grad(slopes[-1].sum(), x, create_graph=True)
            yield slopes
            slopes[2].square().sum().backward()
            yield x.grad, [parameter.grad for parameter in net.parameters()]


@ROWS.program
def second_derivatives_of_adaptive_means(compiled):
    """Zeros, which lead to the input where eager's own kernel computed the windows."""
    for rank, sizes in ((1, 2), (2, (2, 5)), (3, (3, 2, 2))):
        pool = getattr(F, f"adaptive_avg_pool{rank}d")
        fast = compiled(lambda x, pool=pool, sizes=sizes: pool(x, sizes))
        for i in range(3):
            x = draw(i, 2, 3, *(6, 40, 40)[3 - rank :], grad=True)
            (slope,) = torch.autograd.grad(fast(x).sum(), x, create_graph=True)
            yield slope
            slope.square().sum().backward()
            yield x.grad


@ROWS.program
def gradients_of_norms_by_kept_statistics(compiled):
    """They require grad, though the input takes no part in them; what stands before has none of theirs."""
    for net in (
        nn.BatchNorm1d(3, affine=False),
        nn.InstanceNorm1d(3, track_running_stats=True),
        nn.BatchNorm1d(3),
        nn.Sequential(nn.Conv1d(3, 3, 1), nn.BatchNorm1d(3, affine=False), nn.Tanh()),
        nn.Sequential(nn.Conv1d(3, 3, 1), nn.BatchNorm1d(3, affine=False)),
    ):
        fast = compiled(net.eval())
        for i in range(3):
            x = draw(i, 2, 3, 4, grad=True)
            (slope,) = torch.autograd.grad(fast(x).sum(), x, create_graph=True)
            yield slope
            net.zero_grad()
            slope.square().sum().backward()
            yield x.grad, [parameter.grad for parameter in net.parameters()]


@ROWS.program
def what_a_gradient_of_a_convolution_does_not_depend_on(compiled):
    """Its input, and the biases before it, have no gradient of it: zeros would have weight decay move them."""
    for net in (
        nn.Conv2d(3, 4, 3),
        nn.Conv2d(3, 4, 3).requires_grad_(False),
        nn.Sequential(nn.Conv2d(3, 3, 1), nn.ConvTranspose2d(3, 2, 2), nn.Conv2d(2, 2, 3)),
        nn.Sequential(nn.Conv2d(3, 3, 1), nn.Tanh(), nn.Conv2d(3, 2, 3)),
    ):
        fast = compiled(net)
        for i in range(3):
            x = draw(i, 2, 3, 6, 6, grad=True)
            (slope,) = torch.autograd.grad(fast(x).sum(), x, create_graph=True)
            yield slope
            net.zero_grad()
            slope.square().sum().backward()
            yield x.grad, [parameter.grad for parameter in net.parameters()]


@ROWS.program
def what_leads_on_from_the_gradient_of_a_weight(compiled):
    """That of batch norm's by kept statistics leads to its input alone, that of PReLU's to the weight too."""
    for net in (nn.BatchNorm1d(3).eval(), nn.PReLU(3)):
        fast = compiled(net)
        for i in range(3):
            x = draw(i, 2, 3, 4, grad=True)
            for parameter in net.parameters():
                (slope,) = torch.autograd.grad(fast(x).sum(), parameter, create_graph=True)
                leaves = [x, *net.parameters()]
                yield slope, torch.autograd.grad((slope + 1).square().sum(), leaves, allow_unused=True)


@ROWS.program
def gradients_of_gradients_of_one_element(compiled):
    """They lead on to the element, by zeros."""
    for function in (lambda x: F.log_softmax(x, -1), lambda x: x.softmax(-1)):
        for sizes in ((), (1,), (3, 1)):
            fast = compiled(function)
            for i in range(3):
                x = draw(i, max(sizes, default=1)).reshape(sizes).requires_grad_()
                (slope,) = torch.autograd.grad(fast(x).sum(), x, create_graph=True)
                yield slope
                if slope.requires_grad:
                    yield torch.autograd.grad(slope.sum(), x)


@ROWS.program
def what_backward_says_of_written_parts(compiled):
    """Of parts that one call gave: torch may not make their nodes anew."""

    def part_of_all(x):
        y = x * 1
        first, *_ = y.unbind(1)
        kept = first.sin()
        y.add_(1)
        return kept

    def by_a_view(x):
        y = x * 1
        first, second = y.chunk(2, 1)
        kept = first * second
        y.select(1, 2).exp_()
        return kept, y

    def behind_its_back(x):
        y = x * 1
        kept = y.split(2, 1)[0].exp() * y.split(2, 1)[1]
        y.detach().mul_(2)
        return kept

    def unread(x):
        y = x * 1
        first, second = y.chunk(2, 1)
        kept = first + second
        y.mul_(2)
        return kept, y

    for function in (part_of_all, by_a_view, behind_its_back, unread):
        fast = compiled(function)
        for i in range(4):
            made = fast(draw(i, 3, 4, grad=True))
            parts = made if isinstance(made, tuple) else (made,)
            yield [part.requires_grad for part in parts]
            yield outcome(sum(part.sum() for part in parts).backward)


@ROWS.program
def what_backward_says_of_changed_memory(compiled):
    linear, layers = nn.Linear(3, 2), nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))
    cell, weight = nn.GRUCell(3, 2), nn.Parameter(torch.ones(2, 3))
    for model, function in (
        (linear, linear),
        (layers, layers),
        (cell, cell),
        (weight, lambda x: (x * weight[0]).sin()),
        (weight, lambda x: x.view(2, 6) * weight.view(6)),
        (weight, lambda x: torch.einsum("bi,oi->bo", x, weight)),
        (weight, lambda x: (x[:2] * weight).sin()),
    ):
        fast = compiled(function)
        for i in range(4):
            x = draw(i, 4, 3, grad=True)
            y = fast(x)
            with torch.no_grad():
                for part in model.parameters() if isinstance(model, nn.Module) else [model]:
                    if part.ndim > 1:
                        part.mul_(0.5)
            yield outcome(y.sum().backward)
    fast = compiled(lambda x, w: ((x @ w).tanh(), x.exp()))
    for changed in (0, 1, 2, 0, 1, 2):
        x, w = draw(changed, 3, 3, grad=True), draw(9, 3, 3, grad=True)
        made = fast(x, w)
        with torch.no_grad():
            (*made, w)[changed].add_(1)
        try:
            (made[0] * made[1]).sum().backward()
        except RuntimeError as error:
            yield str(error), str(error.__context__)


class Counting(torch.autograd.Function):
    """Counts its backwards where the next one finds it."""

    @staticmethod
    def forward(ctx, x, in_a_list):
        ctx.calls, ctx.in_a_list, ctx.count = [], in_a_list, 0
        return x * 2

    @staticmethod
    def backward(ctx, g):
        calls = ctx.calls
        calls.append(1)
        return g * len(calls), None


class CountingOn(Counting):
    @staticmethod
    def backward(ctx, g):
        ctx.count += 1
        return g * ctx.count, None


@ROWS.program
def what_backward_leaves_in_its_context(compiled):
    for function in Counting, CountingOn:
        fast = compiled(lambda x, function=function: function.apply(x, True).sin())
        for i in range(4):
            x = draw(i, 3, grad=True)
            y = fast(x).sum()
            y.backward(retain_graph=True)
            y.backward()
            yield x.grad


@ROWS.program
def second_derivatives_of_functions(compiled):
    programs = [
        compiled(lambda a, b: Doubling.apply(a).sum() + (b * 2).sum()),
        compiled(lambda a, b: (Doubling.apply(a) * b).sum()),
        compiled(lambda a, b: Squaring.apply(a).sum() + (b * 2).sum()),
    ]
    for i in range(4):
        for fast in programs:
            a, b = two(3)(i)
            first = torch.autograd.grad(fast(a, b), (a, b), create_graph=True)
            yield first
            for slope in first:
                yield outcome(torch.autograd.grad, slope.sum(), (a, b), allow_unused=True, retain_graph=True)


class Sometimes(torch.autograd.Function):
    """Gives no gradient where those that come add up to less than 0."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return None if g.sum() < 0 else g * 2


@ROWS.program
def functions_that_give_no_gradient_at_times(compiled):
    fast = compiled(lambda a, b: (Sometimes.apply(a), Sometimes.apply(a.sin()) * b, Sometimes.apply(b) + a))
    for signs in (1, 1, 1), (-1, 1, 1), (1, -1, 1), (-1, -1, 1), (1, 1, -1), (-1, -1, -1):
        a, b = two(3)(sum(signs))
        outputs = fast(a, b.detach().abs().requires_grad_())
        torch.autograd.backward(outputs, [torch.full((3,), float(sign)) for sign in signs])
        yield a.grad, b.grad
    for sign in (1, -1):
        a, b = two(3)(sign)
        fast(a, b)[0].backward(torch.full((3,), float(sign)))
        yield a.grad, b.grad


@ROWS.program
def functions_that_are_differentiated_once(compiled):
    fast = compiled(lambda a, b: Squaring.apply(a) * b)
    for i in range(4):
        a, b = two(3)(i)
        slopes = torch.autograd.grad(fast(a, b).sum(), (a, b), create_graph=True)
        yield outcome(slopes[0].sum().backward), a.grad, b.grad


@ROWS.program
def nodes_of_parts_and_of_what_has_no_derivative(compiled):
    programs = [compiled(lambda x: x.clone().fill_diagonal_(2)), compiled(lambda x: 3 % x), compiled(lambda x: x.exp())]
    for i in range(4):
        for fast in programs:
            x = draw(i, 3, 3, grad=True)
            y = fast(x)
            node = type(y.grad_fn)
            yield str(y.grad_fn).split(" object")[0], str(node), node.__name__, node.__module__, y.grad_fn.name()
            yield outcome(y.sum().backward), x.grad


@ROWS.case(lambda i: (torch.tensor([-1.0, 0.0, 2.0, 0.5 + i]).requires_grad_(), draw(i, 4, grad=True)), grad=True)
def slopes_of_the_radius(r, angle):
    return torch.polar(r, angle)


class Perhaps(torch.autograd.Function):
    """A backward whose one ``return`` gives a gradient or None."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.set_materialize_grads(False)
        return x * 2, y * 3

    @staticmethod
    def backward(ctx, a, b):
        return (a * 2, (None if b is None else b * 3)) if a is not None and b is not None else (None, None)


class Alone(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3 if ctx.needs_input_grad[0] else None


@ROWS.case(two(3), grad=True)
def gradients_that_a_condition_gives(a, b):
    return Perhaps.apply(a, b)[0].sum() + Perhaps.apply(b, a)[1].sum() + sum(Perhaps.apply(a, b)).sum(), Alone.apply(a)


@ROWS.program
def no_derivative(compiled):
    fast = compiled(lambda x: torch.heaviside(x * 2, x))
    for i in range(4):
        yield outcome(fast(draw(i, 3, grad=True)).sum().backward)


@ROWS.case(lambda i: (draw(i, 3, 4, grad=True), i % 3), grad=True)
def nodes_of_views_of_what_was_written(x, n):
    y = x * 2
    flat, turned = y.view(-1), y.t()
    flat[n] = 0
    steps = F.avg_pool1d(x[None], 2), torch.cov(x), x.diff(n=n, dim=1)
    return tuple((part, part.grad_fn.name()) for part in (y, flat, turned, y[0], *steps))


@ROWS.trap(MOST, 0)
def what_nodes_saved(compiled):
    read = compiled(lambda x: (x.sin().grad_fn._saved_self, x * 2))
    asked = compiled(lambda x: (operator.attrgetter("grad_fn._saved_result")(x.exp()), x * 2))
    listed = compiled(lambda x: [name for name in dir(x.sin().grad_fn) if "saved" in name])
    for i in range(4):
        x = draw(i, 3, grad=True)
        yield outcome(read, x), outcome(asked, x), listed(x)


class Refuses(torch.autograd.Function):
    asked: list[float] = []

    @staticmethod
    def forward(ctx, x, limit):
        ctx.limit = limit
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        Refuses.asked.append(ctx.limit)
        if ctx.limit % 2:
            raise ArithmeticError(f"at {ctx.limit}")
        return gradient if ctx.limit == 4 else (gradient, None)


@ROWS.program
def a_backward_that_raises_runs_once(compiled):
    fast = compiled(lambda x, limit: Refuses.apply(x * 2, limit).sum())
    for limit in (0, 1, 2, 3, 4, 5, 6):
        x = draw(limit, 3, grad=True)
        yield outcome(fast(x, limit).backward), x.grad, list(Refuses.asked)
    Refuses.asked.clear()


class Dirties(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x.mul_(2))
        return x

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


@ROWS.case(lambda i: (draw(i, 3, grad=i > 1), draw(i, 3)))
def a_mark_counts_as_a_write(x, y):
    made = x * 2
    return Dirties.apply(made), made._version, Dirties.apply(y) is y, y._version


@ROWS.case(lambda i: (draw(i, 2, 3, grad=True),), grad=True)
def what_is_saved_counts_as_many_writes(x):
    positions = torch.tensor([[0, 1, 2], [3, 0, 1]])
    made = torch.zeros(4, 3)
    made.scatter_(0, positions, x)
    made.scatter_add_(0, positions, x)
    made.scatter_reduce_(0, positions, x, "amax")
    product = torch.ones(4, 3).add_(1).scatter_reduce_(0, positions, x, "prod")
    least = torch.ones(4, 3).add_(1).mul_(2).scatter_reduce_(0, positions, x, "amin", include_self=False)
    return made, made._version, product, product._version, least, least._version


@ROWS.case(lambda i: (draw(i, 3, 2, grad=True),), grad=True)
def aliases_of_data_are_written(x):
    made = x.exp()
    made.data.detach().t().detach().sub_(1)
    return made


@ROWS.case(lambda i: (draw(i, 3, 2, grad=True),), grad=True)
def a_part_of_an_alias_of_data_is_written(x):
    made = x.sigmoid()
    made.data.detach().view(-1)[0] = 5
    return made


@ROWS.case(lambda i: (draw(i, 2, 3, 4, 5, grad=True),), grad=True)
def two_copies_in_one_order(x):
    x = x * 2
    with torch.no_grad():
        seen = x[0, 0].t().contiguous()
    turned = x[0, 0].t().contiguous()
    kept = x.detach().to(memory_format=torch.channels_last)
    wide, contiguous = (x.to(memory_format=torch.channels_last) for _ in range(2))
    before = seen[0, 0].item(), kept[0, 0, 0, 0].item()
    seen.zero_()
    kept.zero_()
    return turned, wide, contiguous, seen, kept, turned is seen, wide is kept, before


def border(i, dtype=torch.float32):
    """From the second call on it holds an element where slopes of roots and logarithms are infinite."""
    return (torch.tensor([0.3, 0.2 if i == 0 else 0.0, 0.9, 1.0], dtype=dtype).roll(i).requires_grad_(),)


@ROWS.case(border, grad=True)
def a_slope_of_zero_times_an_infinite_one(x):
    return (
        x.sqrt().round() + x.log().floor() + (x**0.3).ceil(),
        torch.div(x.rsqrt(), 2.0, rounding_mode="trunc"),
        (x.sqrt() * 2).sum().round(),
    )


@ROWS.case(lambda i: border(i, torch.bfloat16), grad=True)
def a_slope_of_zero_times_one_that_is_no_number(x):
    return (x.acos().trunc(), (x / x).sign())


@ROWS.case(border, grad=True)
def zeros_without_memory_stay_zeros(x):
    return (x.sqrt().sgn(), x.log().sgn() * 3)


@ROWS.parametrize()
def test_gradients_are_eagers(trap: Trap) -> None:
    hold(trap)
