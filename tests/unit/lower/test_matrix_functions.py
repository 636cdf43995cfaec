"""Products and norms of matrices by other names (tensordot, chains, powers) are graphs of ours, with gradients of both
orders.
"""

import math

import pytest
import torch
from torch import linalg, tensordot

import framefuse
from framefuse.runtime.function import compiled_function


def matrices(*shapes):
    def make(n):
        return [torch.randn(*(n if size is None else size for size in shape)).double() for shape in shapes]

    return make


OURS = {
    "one dimension": (lambda x, y: tensordot(x, y, 1), matrices((None, 4), (4, 5))),
    "two": (lambda x, y: tensordot(x, y, 2) + 1, matrices((3, None, 5), (None, 5, 2))),
    "none": (lambda x, y: tensordot(x, y, 0), matrices((3,), (None,))),
    "lists of them": (lambda x, y: tensordot(x, y, ([0, 2], [1, 0])) * 2, matrices((3, None, 5), (5, 3, 2))),
    "from the end": (lambda x, y: tensordot(x, y, dims=([-1], [-2])), matrices((2, None), (4, None, 2))),
    "of size 1": (lambda x, y: tensordot(x, y, ([1], [0])), matrices((2, 1), (None, 2))),
    "a chain": (lambda x, y, z: linalg.multi_dot([x, y, z]), matrices((2, 9), (9, None), (None, 4))),
    "from its end": (lambda x, y, z: linalg.multi_dot([x, y, z]), matrices((9, None), (None, 8), (8, 2))),
    "a chain of vectors": (
        lambda *given: linalg.multi_dot(given).sin(), matrices((7,), (7, 9), (9, None), (None,)),
    ),
    **{
        f"power {n}": (lambda x, n=n: linalg.matrix_power(x, n), matrices((2, None, None))) for n in (2, 3, 4, 7, 8)
    },
    **{
        f"{order} norm {dim} {keep}": (
            lambda x, order=order, dim=dim, keep=keep: linalg.matrix_norm(x, order, dim, keep), matrices((3, None, 4)),
        )
        for order in ("fro", 1, -1)
        for dim, keep in (((-2, -1), False), ((2, 0), True))
    },
    "inf norm": (lambda x: linalg.matrix_norm(x, math.inf), matrices((3, None, 4))),
    "-inf norm": (lambda x: linalg.matrix_norm(x, -math.inf, (2, 0), True), matrices((3, None, 4))),
    "norm of a matrix": (lambda x: linalg.norm(x, 1) + linalg.norm(x, "fro", (0, 1)), matrices((None, 4))),
}  # fmt: skip


def gradients(function, given):
    leaves = [tensor.clone().requires_grad_() for tensor in given]
    result = function(*leaves)
    first = torch.autograd.grad(result.square().sum(), leaves, create_graph=True)
    return result, first, torch.autograd.grad(sum(grad.sum() for grad in first), leaves)


@pytest.mark.parametrize("name", OURS)
def test_they_are_eagers_and_no_calls_of_it(name):
    function, make = OURS[name]
    fast = framefuse.compile(function)
    for size in (3, 6, 7, 4):
        given = make(size)
        torch.testing.assert_close(gradients(fast, given), gradients(function, given))
    state = compiled_function(fast)
    assert state.dispatch.hits >= 1
    assert not any(product.stages.library_targets for product in state.products)


def test_zeros_have_eagers_gradients():
    for order in ("fro", 1, math.inf):
        fast = framefuse.compile(lambda x, order=order: linalg.matrix_norm(x, order) * 3)
        for size in (3, 4, 5):
            x, y = (torch.zeros(size, 4).requires_grad_() for _ in range(2))
            fast(x).backward()
            (linalg.matrix_norm(y, order) * 3).backward()
            assert torch.equal(x.grad, y.grad)


def test_sizes_that_do_not_fit_are_eagers_errors():
    fast = framefuse.compile(lambda x, y: tensordot(x, y, 1) + 1)
    for size in (3, 4, 5):
        fast(torch.randn(2, size), torch.randn(size, 2))
    with pytest.raises(RuntimeError, match="contracted dimensions need to match"):
        fast(torch.randn(2, 3), torch.randn(4, 2))
