"""Functions that torch composes of others are kernels and products of ours, with gradients of both orders."""

import pytest
import torch
import torch.nn.functional as F
from torch import randn

import framefuse
from framefuse.runtime.function import compiled_function

OURS = {
    "inner": (lambda x, y: torch.inner(x, y), lambda n: (randn(3, n), randn(5, n))),
    "inner of lines": (lambda x, y: torch.inner(x, y), lambda n: (randn(n), randn(n))),
    "inner of a number": (lambda x, y: torch.inner(x, y) + 1, lambda n: (randn(()), randn(n))),
    "addbmm": (lambda c, x, y: torch.addbmm(c, x, y, beta=0.5), lambda n: (randn(2), randn(n, 3, 5), randn(n, 5, 2))),
    "addr": (lambda c, x, y: torch.addr(c, x, y, alpha=2), lambda n: (randn(3, n), randn(3), randn(n))),
    "columns": (lambda x, y: torch.column_stack((x, y)) * 2, lambda n: (randn(n), randn(n, 2))),
    "columns of numbers": (lambda x, y: torch.column_stack((x, y)), lambda n: (randn(()), randn(()))),
    "depth": (lambda x, y: torch.dstack((x, y)) * 2, lambda n: (randn(n, 3), randn(n, 3, 2))),
    "dist": (lambda x, y: torch.dist(x, y), lambda n: (randn(n, 3), randn(3))),
    "dist 1": (lambda x, y: x.dist(y, 1), lambda n: (randn(n, 3), randn(n, 3))),
    "float_power": (lambda x: torch.float_power(x.abs() + 0.1, 1.7), lambda n: (randn(n, 3),)),
    "float_power of 2": (lambda x: torch.float_power(2, x), lambda n: (randn(n, 3),)),
    "float_power of integers": (lambda k: torch.float_power(k, 2), lambda n: (torch.arange(n),)),
    "cov": (lambda x: torch.cov(x), lambda n: (randn(n, 5),)),
    "cov of a line": (lambda x: x.cov(correction=0), lambda n: (randn(n),)),
    "cov of one variable": (lambda x: x.cov(), lambda n: (randn(1, n),)),
    "corrcoef": (lambda x: torch.corrcoef(x), lambda n: (randn(3, n + 2),)),
    "trapezoid": (lambda x: torch.trapezoid(x, dx=0.3), lambda n: (randn(3, n),)),
    "trapezoid at places": (lambda y, x: torch.trapz(y, x), lambda n: (randn(3, n), randn(n))),
    "trapezoid along rows": (lambda y, x: torch.trapezoid(y, x, dim=0), lambda n: (randn(n, 3), randn(n, 3))),
    "cumulative trapezoid": (lambda x: torch.cumulative_trapezoid(x, dim=0), lambda n: (randn(n, 3),)),
    "its places": (lambda y, x: torch.cumulative_trapezoid(y, x), lambda n: (randn(3, n), randn(n))),
}


def gradients(function, given):
    leaves = [tensor.clone().requires_grad_(tensor.is_floating_point()) for tensor in given]
    result, tracked = function(*leaves), [leaf for leaf in leaves if leaf.requires_grad]
    if not tracked:
        return result
    first = torch.autograd.grad((result * result.sin()).sum(), tracked, create_graph=True)
    second = torch.autograd.grad(sum(grad.sum() for grad in first), tracked, allow_unused=True, materialize_grads=True)
    return result, first, second


@pytest.mark.parametrize("name", OURS)
def test_they_are_eagers_and_no_calls_of_it(name):
    function, make = OURS[name]
    fast = framefuse.compile(function)
    for size in (4, 6, 7, 3):
        given = make(size)
        torch.testing.assert_close(gradients(fast, given), gradients(function, given), rtol=1e-4, atol=1e-5)
    state = compiled_function(fast)
    assert state.dispatch.hits >= 1
    assert not any(product.stages.library_targets for product in state.products)


@pytest.mark.parametrize("hard", [False, True])
@pytest.mark.parametrize("turned", [False, True])
def test_gumbel_softmax_draws_what_eager_draws(hard, turned):
    def function(x):
        return F.gumbel_softmax(x * 2, tau=0.7, hard=hard)

    fast = framefuse.compile(function)
    for seed in range(4):
        x = randn(5, 4 + seed).t() if turned else randn(4 + seed, 5)
        found = []
        for run in (fast, function):
            torch.manual_seed(seed)
            leaf = x.detach().clone().requires_grad_()
            result = run(leaf)
            (result * torch.arange(1.0, 6.0)).sum().backward()
            found.append((result, leaf.grad, torch.rand(2)))
        torch.testing.assert_close(*found)
        assert found[0][0].stride() == found[1][0].stride()
    (product,) = compiled_function(fast).products
    assert [target.__name__ for target in product.stages.library_targets] == ["draw_exponential"]


@pytest.mark.parametrize("function", [torch.addmm, torch.addbmm], ids=["addmm", "addbmm"])
def test_an_input_times_0_has_a_gradient_of_zeros(function):
    fast = framefuse.compile(lambda c, x, y: function(c, x, y, beta=0) + 1)
    batch = (2,) if function is torch.addbmm else ()
    for size in (2, 3, 4):
        c = torch.full((size, size), float("nan"), requires_grad=True)
        x, y = (randn(*batch, size, size) for _ in range(2))
        result = fast(c, x, y)
        torch.testing.assert_close(result, function(c, x, y, beta=0) + 1)
        result.sum().backward()
        assert torch.equal(c.grad, torch.zeros(size, size))


@pytest.mark.parametrize(
    "function",
    [
        lambda a, x, y: torch.baddbmm(a, batch1=x, batch2=y, beta=0.5),
        lambda a, x, y: a.baddbmm(batch1=x, batch2=y, alpha=2.0),
        lambda a, x, y: torch.addmm(a[0], mat1=x[0], mat2=y[0]),
        lambda a, x, y: torch.addmv(a[0, 0], mat=x[0], vec=y[0, :, 0]),
        lambda a, x, y: torch.bmm(input=x, mat2=y),
        lambda a, x, y: x[0].mm(mat2=y[0]),
        lambda a, x, y: torch.mv(x[0], vec=y[0, :, 0]),
        lambda a, x, y: torch.dot(x[0, 0], tensor=y[0, :, 0]),
        lambda a, x, y: torch.outer(x[0, 0], vec2=y[0, :, 0]),
        lambda a, x, y: torch.swapaxes(x, axis0=0, axis1=2),
    ],
    ids=["baddbmm", "its method", "addmm", "addmv", "bmm", "mm", "mv", "dot", "outer", "swapaxes"],
)
def test_functions_take_their_operands_by_torchs_names(function):
    fast = framefuse.compile(lambda a, x, y: function(a, x, y).tanh())
    for rows in (3, 3, 4, 5):
        a, x, y = randn(2, rows, rows), randn(2, rows, 6), randn(2, 6, rows)
        torch.testing.assert_close(fast(a, x, y), function(a, x, y).tanh())
    state = compiled_function(fast)
    assert state.dispatch.hits >= 2 and not any(product.stages.library_targets for product in state.products)
