"""Large products of 16 bits whose rows begin at odd places are those of padded matrices: values, NaNs and strides."""

import pytest
import torch
from tests.gpu.test_programs import DEVICE, checked, close, pytestmark  # noqa: F401
from torch.nn import functional as F

import framefuse
from framefuse.ir import costs
from framefuse.ir.schedule import RunCall

PROGRAMS = {
    "columns": (lambda a, b: a @ b, (16, 32), (32, 17)),
    "terms": (lambda a, b: torch.mm(a, b), (16, 33), (33, 24)),
    "all": (lambda a, b: F.relu(a @ b) + 1, (19, 33), (33, 17)),
    "made before": (lambda a, b: (a.exp() @ b.t()).tanh(), (16, 33), (17, 33)),
    "transposed": (lambda a, b: a.t() @ b, (33, 19), (33, 16)),
    "linear": (lambda a, b, c: F.linear(a, b, c), (3, 5, 33), (17, 33), (17,)),
    "added": (lambda a, b, c: torch.addmm(c, a, b).sigmoid(), (16, 33), (33, 17), (17,)),
    "batches": (lambda a, b: torch.bmm(a, b), (3, 16, 33), (3, 33, 17)),
    "twice": (lambda a, b: (a @ b) @ b.t(), (16, 33), (33, 17)),
}
PADDED = {"columns": [1], "transposed": [1], "linear": [3], "added": [3], "twice": [2, 2]}  # operands of each product


@pytest.fixture(autouse=True)
def everywhere(monkeypatch):
    monkeypatch.setattr(costs, "LAYOUT_GAIN", (1000, -1e9))


def products(fast):
    """Of each of the library's products, how many of its operands are made for it."""
    schedules = [product.stages.code.schedule for product in checked(fast, 2)]
    calls = [item.node for schedule in schedules for item in schedule.items if isinstance(item, RunCall)]
    return [sum(operand.op == "pad" for operand in call.inputs) for call in calls]


@pytest.mark.parametrize("name", PROGRAMS)
def test_products(name):
    function, *shapes = PROGRAMS[name]
    torch.manual_seed(0)
    fast = framefuse.compile(function)
    for row in range(3):
        operands = [torch.randn(shape, device=DEVICE).div(4).bfloat16() for shape in shapes]
        if row == 2:  # what the zeros meet is none of them
            for operand, *place, value in ((0, 0, torch.inf), (0, -1, torch.nan), (1, -1, -torch.inf)):
                operands[operand].view(-1)[place] = value
        with torch.no_grad():
            found, expected = fast(*operands), function(*operands)
        torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2, equal_nan=True)
        assert found.stride() == expected.stride() and found.isnan().any().item() is (row == 2)
    assert products(fast) == PADDED.get(name, [2])


def test_gradients():
    torch.manual_seed(0)
    layer = torch.nn.Linear(33, 17).to(DEVICE, torch.bfloat16)
    fast = framefuse.compile(layer)
    for _ in range(3):
        x = torch.randn(24, 33, device=DEVICE).bfloat16().requires_grad_()
        wanted = torch.autograd.grad(layer(x).float().square().sum(), [x, *layer.parameters()])
        close(torch.autograd.grad(fast(x).float().square().sum(), [x, *layer.parameters()]), wanted, 100)
    assert all(products(fast))


def test_small_products_and_aligned_ones_stay(monkeypatch):
    monkeypatch.undo()
    fast = framefuse.compile(lambda a, b: a @ b)
    for _ in range(3):
        a, b = (torch.randn(33, 33, device=DEVICE).bfloat16() for _ in range(2))
        close(fast(a, b), a @ b, 10)
    assert products(fast) == [0]
