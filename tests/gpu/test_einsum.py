"""Einsum is sums, products of elements and products of matrices of a library, which are fused with what is around."""

import pytest
import torch
from tests.gpu.test_programs import DEVICE, checked, pytestmark  # noqa: F401

import framefuse
from framefuse.ir.schedule import RunCall
from framefuse.runtime.function import compiled_function

# By equation the products of matrices that the library makes, forward.
EQUATIONS = {
    "bclhn,bcshn,bclsh,bcshp->bclhp": 2,
    "bcshn,bcsh,bcshp->bchpn": 1,
    "bhnd,bhne->bhde": 1,
    "bnhd,bmhd->bhnm": 1,
    "bhnm,bmhd->bnhd": 1,
    "bhnd,bhd->bhn": 0,
    "ij,jk,kl->li": 2,
    "bi,oij,bj->bo": 1,
    "bij->ib": 0,
    "ij,ij->": 0,
    "...ij,...jk->...ik": 1,
    "ab,cb,db->acd": 1,
    "ij,kl->": 0,
    "ij,jk": 1,
}
SIZES = {letter: 2 + place % 5 for place, letter in enumerate("abcdehijklmnops")}


def operands(equation, dtype, more, grad):
    words = equation.partition("->")[0].replace("...", "ac").split(",")
    shapes = [[SIZES[letter] + more * (letter not in "hd") for letter in word] for word in words]
    return [torch.randn(shape, device=DEVICE).to(dtype).requires_grad_(grad) for shape in shapes]


def near(found, exact, dtype):
    assert found.shape == exact.shape and found.dtype is dtype
    away = (found.double() - exact).norm() / exact.norm().clamp(min=1e-6)
    assert away < (1e-5 if dtype is torch.float32 else 2e-2), away


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation, dtype):
    torch.manual_seed(0)
    fast = framefuse.compile(lambda *xs: torch.einsum(equation, *[x * 0.5 for x in xs]) + 1)
    for row in range(4):
        xs = operands(equation, dtype, row // 2, False)
        exact = torch.einsum(equation, *[x.double() * 0.5 for x in xs]) + 1
        found = fast(*xs)
        near(found, exact, dtype)
        assert found.stride() == (torch.einsum(equation, *[x * 0.5 for x in xs]) + 1).stride()
    for product in checked(fast, 2):
        calls = [item for item in product.stages.code.schedule.items if isinstance(item, RunCall)]
        assert [call.node.attr("name") for call in calls].count("bmm") == EQUATIONS[equation]
        assert not any(call.node.attr("name") == "einsum" for call in calls)


@pytest.mark.parametrize("equation", ["bclhn,bcshn,bclsh,bcshp->bclhp", "bnhd,bmhd->bhnm", "bhnd,bhd->bhn"])
def test_gradients(equation):
    torch.manual_seed(0)
    fast = framefuse.compile(lambda *xs: torch.einsum(equation, *xs).sin())
    for row in range(4):
        xs = operands(equation, torch.float32, row // 2, True)
        wide = [x.detach().double().requires_grad_() for x in xs]
        found, exact = fast(*xs), torch.einsum(equation, *wide).sin()
        given = torch.autograd.grad(found.square().sum(), xs)
        for one, other in zip(given, torch.autograd.grad(exact.square().sum(), wide), strict=True):
            near(one, other, torch.float32)
    checked(fast, 2)


@pytest.mark.parametrize("inside", [False, True])
def test_products_are_cast_by_the_graph_alone(inside):
    """Autocast around the compiled function casts nothing more, as where the function turns it off."""

    def products(x, y):
        with torch.autocast(DEVICE, torch.bfloat16, enabled=inside):
            return torch.einsum("bij,bjk->bik", x, y), torch.linalg.multi_dot([x[0], y[0], x[0]]), torch.bmm(x, y) + 1

    fast = framefuse.compile(products)
    for rows in (3, 3, 5, 3):
        x, y = torch.randn(2, rows, 24, 24, device=DEVICE).unbind(0)
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
            found, expected = fast(x, y), products(x, y)
        for one, other in zip(found, expected, strict=True):
            assert one.dtype is other.dtype
            torch.testing.assert_close(one, other, rtol=3e-2, atol=6e-1 if inside else 1e-3)
    state = compiled_function(fast)
    assert state.dispatch.hits >= 2 and state.dispatch.declines == 0, framefuse.explain(fast)
