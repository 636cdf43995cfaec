"""Values and gradients that were wrong once: derivatives, special values, missing gradients, complex numbers."""

import math

import torch
from tests.traps.trap import Table, hold

F = torch.nn.functional
TABLE = Table()


def gradients(f, *leaves):
    """First gradients of a compiled and called function, and gradients of these."""
    first = torch.autograd.grad(f(*leaves).sum(), leaves, create_graph=True, allow_unused=True)
    known = [value for value in first if value is not None and value.requires_grad]
    second = torch.autograd.grad([(value * value).sum() for value in known], leaves, allow_unused=True) if known else ()
    return first, [value is not None and value.requires_grad for value in first], second


def rand(*sizes, dtype=torch.float64):
    return torch.rand(*sizes, dtype=dtype).add(0.5).requires_grad_()


@TABLE.trap(traces=1, hits=3)
def digamma_twice(compiled):
    f = compiled(lambda x: torch.digamma(x) * x)
    for _ in range(4):
        yield gradients(f, rand(9))


@TABLE.trap(traces=1, hits=3)
def products_with_zeros_twice(compiled):
    f = compiled(lambda x: x.prod(-1))
    for zeros in ((), (1,), (0, 2), (0, 1, 2)):
        x = rand(2, 4).detach()
        x[0, list(zeros)] = 0.0
        yield gradients(f, x.requires_grad_())


@TABLE.trap(traces=1, hits=3)
def kinks_require_grad_again(compiled):
    f = compiled(lambda x, w: F.relu(x) + F.hardtanh(w) + F.leaky_relu(x * 2) + F.softshrink(w))
    for _ in range(4):
        yield gradients(f, rand(7), rand(7))


@TABLE.trap(traces=1, hits=3)
def linear_calls_require_no_grad_again(compiled):
    f = compiled(lambda x, a, b: torch.addmm(x, a, b))
    for _ in range(4):
        yield gradients(f, rand(3, 2), rand(3, 4), rand(4, 2))


@TABLE.trap(traces=1, hits=3)
def layer_norm_gives_all_gradients_a_history(compiled):
    f = compiled(lambda x, w, b: F.layer_norm(x, (4,), w, b))
    for _ in range(4):
        yield gradients(f, rand(3, 4), rand(4), rand(4))


@TABLE.trap(traces=1, hits=3)
def instance_norm_that_writes_statistics_twice(compiled):
    mean, var = torch.zeros(3, dtype=torch.float64), torch.ones(3, dtype=torch.float64)
    f = compiled(lambda x: F.instance_norm(x, mean, var))
    for _ in range(4):
        yield gradients(f, rand(2, 3, 5))
        yield mean, var


@TABLE.trap(traces=3, hits=9)
def targets_get_no_gradient(compiled):
    pair = compiled(lambda x, t: F.hinge_embedding_loss(x, t))
    triple = compiled(lambda x, y, t: F.cosine_embedding_loss(x, y, t))
    norm = compiled(lambda x: x.norm(p=0))
    for _ in range(4):
        x, y, t = rand(4, 5), rand(4, 5), torch.ones(4, dtype=torch.float64, requires_grad=True)
        yield torch.autograd.grad(pair(x[:, 0] * 2, t), (x, t), allow_unused=True)
        yield torch.autograd.grad(triple(x, y, t), (x, y, t), allow_unused=True)
        yield torch.autograd.grad(norm(x), x, allow_unused=True)


@TABLE.trap(traces=1, hits=3)
def a_target_with_weight_decay_stays(compiled):
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = torch.nn.Parameter(torch.full((4,), 0.3))
            self.target = torch.nn.Parameter(torch.tensor([1.0, -1.0, 1.0, -1.0]))

        def forward(self, x):
            return F.hinge_embedding_loss(x * self.weight, self.target)

    net = Net()
    run, optimizer = compiled(net), torch.optim.SGD(net.parameters(), lr=0.1, weight_decay=0.5)
    for _ in range(4):
        optimizer.zero_grad()
        run(torch.rand(4)).backward()
        optimizer.step()
        yield net.weight.detach(), net.target.detach(), net.target.grad


@TABLE.trap(traces=2, hits=6)
def hyperbolic_functions_up_to_the_end(compiled):
    f = compiled(lambda x: (torch.cosh(x), torch.sinh(x)))
    for shift in (0.0, 0.1, 0.2, 0.4):
        yield f(torch.full((8,), 89.0 + shift))
        yield f(torch.full((4,), 710.0 + shift, dtype=torch.float64))


@TABLE.trap(traces=4, hits=12)
def not_a_number_in_gradients(compiled):
    kinks = [F.hardtanh, F.relu6, F.hardshrink, F.softshrink, F.elu, F.selu, F.hardswish, torch.sinc]
    f = compiled(lambda *given: [kink(x) for kink, x in zip(kinks, given, strict=True)])
    g = compiled(lambda x: torch.logit(x, 1e-3))
    h = compiled(lambda x: torch.std(x))
    k = compiled(lambda x: x // 1e-30)
    for scale in (1.0, 2.0, 3.0, 4.0):
        x = torch.full((64,), scale)
        x[::3], x[1::3] = math.nan, 1e-36
        given = [x.clone().requires_grad_() for _ in kinks]
        yield torch.autograd.grad([part.sum() for part in f(*given)], given)
        y = x.clone().requires_grad_()
        yield torch.autograd.grad(g(y).sum(), y)
        yield h(torch.tensor([1e30, -1e30, 3e30]) * scale)
        yield k(torch.full((64,), 1e300 * scale, dtype=torch.float64))


@TABLE.trap(traces=1, hits=3)
def the_inverse_error_function_close_to_one(compiled):
    f = compiled(lambda x: torch.erfinv(x))
    for scale in (1, 2, 4, 8):
        yield f(1 - torch.arange(1, 17, dtype=torch.float64) * scale * 2.0**-53)


@TABLE.trap(traces=1, hits=3)
def scales_that_vary_with_gradients(compiled):
    f = compiled(lambda x, s: F.interpolate(x, scale_factor=s))
    for scale in (1.7, 2.0, 2.5, 1.2):
        x = rand(2, 3, 8)
        yield torch.autograd.grad(f(x, scale).sum(), x)


def complexes():
    yield lambda z: torch.cat([z, z * 2])
    yield lambda z: torch.stack([z * 2, z * 3], 1).reshape(-1)
    yield lambda z: torch.zeros(4, dtype=torch.complex128) + z
    yield lambda z: torch.where(z.real > 0, z, z * 2)
    yield lambda z: F.pad(z, (1, 1))
    yield lambda z: z.flip(0) * z.roll(1)
    yield lambda z: torch.addmm(z.reshape(2, 2), z.reshape(2, 2), z.reshape(2, 2))
    yield lambda z: (z.abs() ** 2) * z.angle()
    yield lambda z: torch.fft.fft(z) * torch.polar(z.abs(), z.real)
    yield lambda z: torch.view_as_real(z).sin()
    yield lambda z: torch.hstack([z, z.exp()])


@TABLE.trap(traces=11, hits=33)
def complex_numbers_with_gradients(compiled):
    for f in complexes():
        run = compiled(f)
        for _ in range(4):
            z = torch.randn(4, dtype=torch.complex128, requires_grad=True)
            found = run(z)
            yield found
            yield torch.autograd.grad(found, z, torch.ones_like(found))


@TABLE.trap(traces=1, hits=3)
def powers_of_zero(compiled):
    f = compiled(lambda x, p: x**p)
    for k in range(4):
        x = torch.tensor([0.0, 0.0, -0.0, 0.0, 2.0], dtype=torch.float64).add(0).requires_grad_()
        p = torch.tensor([0.0, 1.0, 2.0, 0.5, 1.0 + k], dtype=torch.float64).requires_grad_()
        yield gradients(f, x, p)
        for tangent in (math.inf, math.nan, 1.0):
            yield torch.autograd.grad(f(x, p), (x, p), torch.full_like(x, tangent))


@TABLE.trap(traces=6, hits=2)
def products_of_no_reflections(compiled):
    """Torch gives None for gradients of nothing, by its own formula."""
    f = compiled(lambda a, t: torch.linalg.householder_product(a * 2, t * 3).sin())
    for rows, count in ((5, 0), (4, 0), (0, 0), (5, 3), (6, 3), (7, 2)):
        a = torch.randn(rows, 3 if rows else 0, dtype=torch.float64, requires_grad=True)
        t = torch.randn(count, dtype=torch.float64, requires_grad=True)
        yield torch.autograd.grad(f(a, t).sum(), (a, t), allow_unused=True)


PRODUCTS = (
    ((1.0, 2.0, 3.0, 4.0), (2.0, math.inf, 3.0, 1.0), (1.0, math.nan, 2.0, 3.0)),  # the first call: no zeros
    ((0.0, 0.0, 2.0, 1.0), (1.0, 0.0, math.inf, 2.0), (3.0, math.nan, 0.0, 4.0)),
    ((0.0, math.inf, 2.0, 0.0), (0.0, 2.0, 3.0, 4.0), (1.0, 2.0, -math.inf, 4.0)),
    ((-0.0, -1.0, 2.0, 3.0), (math.inf, -math.inf, 0.0, 2.0), (1.0, 2.0, 3.0, 4.0)),
    ((1.0, 2.0, math.inf, 3.0), (math.nan, 1.0, 2.0, 3.0), (math.inf, -math.inf, 2.0, 3.0)),
)


@TABLE.trap(traces=4, hits=16)
def zeros_beside_infinity_in_products(compiled):
    products = [lambda x: x.prod(1), lambda x: x.prod(0), lambda x: x.prod(), lambda x: x[1].prod(0)]
    for function in map(compiled, products):
        for rows in PRODUCTS:
            x = torch.tensor(rows, requires_grad=True)
            made = function(x)
            yield made, torch.autograd.grad(made.sum(), x)


@TABLE.trap(traces=5, hits=15)
def norms_of_any_order_with_zeros_and_infinity(compiled):
    for order in (0.5, 1.5, 2.5, 3, -1):
        f = compiled(lambda x, order=order: torch.linalg.vector_norm(x, order, 1))
        for scale in (1.0, 2.0, 3.0, 4.0):
            x = torch.tensor([[0.0, 0.0, 0.0], [0.0, 1.0, math.inf], [0.0, math.nan, 1.0], [0.0, -2.0, scale]])
            x.requires_grad_()
            made = f(x)
            yield made, torch.autograd.grad(made.sum(), x)


@TABLE.parametrize()
def test_program(trap):
    hold(trap)
