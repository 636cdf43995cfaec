"""Transposed convolutions of pictures of one point, with which generators begin, are products: forward and backward.

With FRAMEFUSE_TEST_DEVICE=cpu the same tests run on the CPU by Triton's interpreter: see
tests/unit/codegen/test_interpreted_programs.py.
"""

import copy

import pytest
import torch
from tests.gpu.test_programs import DEVICE, checked, close, pytestmark  # noqa: F401
from torch import nn

import framefuse
from framefuse.ir.schedule import RunCall

KINDS = {
    "pictures": lambda: nn.ConvTranspose2d(8, 6, 4, bias=False),
    "with a bias and steps": lambda: nn.ConvTranspose2d(8, 6, (3, 5), stride=2),
    "lines": lambda: nn.ConvTranspose1d(8, 6, 5),
    "volumes": lambda: nn.ConvTranspose3d(8, 3, 2),
}


@pytest.fixture(autouse=True)
def all_digits():
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


def calls(products):
    items = (item for product in products for item in product.stages.code.schedule.items)
    return [item.node.attr("name") for item in items if isinstance(item, RunCall)]


@pytest.mark.parametrize("name", KINDS)
def test_a_generator_begins_with_a_product(name):
    torch.manual_seed(0)
    layer = KINDS[name]()
    model = nn.Sequential(layer, nn.SiLU()).to(DEVICE)
    eager, fast = copy.deepcopy(model), framefuse.compile(model)
    for rows in (3, 3, 5, 1, 3):
        x = torch.randn(rows, 8, *[1] * (layer.weight.dim() - 2), device=DEVICE)
        with torch.no_grad():
            found, expected = fast(x), eager(x)
        close(found, expected, 10)
        assert found.stride() == expected.stride()
    assert not any("conv" in each for each in calls(checked(fast, 2)))


@pytest.mark.parametrize("name", KINDS)
def test_its_gradients(name):
    torch.manual_seed(0)
    model = nn.Sequential(KINDS[name](), nn.SiLU()).to(DEVICE)
    eager, fast = copy.deepcopy(model), framefuse.compile(model)
    for rows in (3, 3, 5, 3):
        given = torch.randn(rows, 8, *[1] * (model[0].weight.dim() - 2), device=DEVICE)
        x, y = given.clone().requires_grad_(), given.clone().requires_grad_()
        fast(x).square().mean().backward()
        eager(y).square().mean().backward()
        both = zip((x, *model.parameters()), (y, *eager.parameters()), strict=True)
        for mine, theirs in both:
            close(mine.grad, theirs.grad, 10)
            assert mine.grad.stride() == theirs.grad.stride()


@pytest.mark.parametrize(
    "layer",
    [{"padding": 1}, {"groups": 2}, {"stride": 2, "output_padding": 1}, {"dilation": 2}],
    ids=lambda how: next(iter(how)),
)
def test_others_are_the_librarys(layer):
    torch.manual_seed(0)
    model = nn.ConvTranspose2d(8, 6, 4, **layer).to(DEVICE)
    fast = framefuse.compile(model)
    with torch.no_grad():
        for rows in (3, 3, 5):
            x = torch.randn(rows, 8, 1, 1, device=DEVICE)
            close(fast(x), model(x), 10)
    assert calls(checked(fast, 1)).count("conv_transpose2d")


def test_pictures_of_more_points_follow():
    model = nn.ConvTranspose2d(8, 6, 4).to(DEVICE)
    fast = framefuse.compile(model)
    with torch.no_grad():
        for side in (1, 1, 3, 3, 1, 2):
            x = torch.randn(5, 8, side, side, device=DEVICE)
            close(fast(x), model(x), 10)
    checked(fast, 3)


def test_chains_of_products():
    def f(a, b, c):
        return torch.linalg.multi_dot([a, b, c]).tanh()

    fast = framefuse.compile(f)
    for rows, columns in ((9, 3), (9, 3), (12, 3), (3, 9), (3, 9)):
        given = [torch.randn(shape, device=DEVICE) for shape in ((rows, 6), (6, 8), (8, columns))]
        close(fast(*given), f(*given), 10)
    checked(fast, 3)
