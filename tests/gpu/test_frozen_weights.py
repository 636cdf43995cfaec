"""Values kept of weights on a GPU: convolutions channels-last, scales within weights, casts; right after each change.

With FRAMEFUSE_TEST_DEVICE=cpu the same tests run on the CPU.
"""

import copy
import os

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import framefuse

DEVICE = os.environ.get("FRAMEFUSE_TEST_DEVICE", "cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="torch finds no GPU"),
]


class Pictures(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.wide = nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.Conv2d(32, 64, 3, padding=1)
        self.each, self.back = nn.Conv2d(64, 64, 3, padding=1, groups=64), nn.Conv2d(64, 32, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(32), nn.BatchNorm2d(64), nn.BatchNorm2d(64), nn.BatchNorm2d(32)])
        self.head = nn.Linear(32, 10)

    def forward(self, x):
        x = y = F.silu(self.norms[0](self.stem(x)))
        x = F.relu(self.norms[1](self.wide(x)))
        x = self.norms[3](self.back(F.relu(self.norms[2](self.each(x))))) + y
        return self.head(x.mean((2, 3))), x


class Volumes(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv3d(4, 16, 3, padding=1), nn.ConvTranspose3d(16, 8, 2, 2)
        self.norms = nn.ModuleList([nn.BatchNorm3d(16), nn.BatchNorm3d(8)])

    def forward(self, x):
        return self.norms[1](self.two(F.gelu(self.norms[0](self.one(x)))))


NETS = {"pictures": (Pictures, (3, 32, 32)), "volumes": (Volumes, (4, 8, 8, 8))}


def made(name):
    torch.manual_seed(0)
    make, sizes = NETS[name]
    model = make().to(DEVICE).eval()
    for module in model.modules():
        if isinstance(module, (nn.BatchNorm2d, nn.BatchNorm3d)):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.normal_(module.weight), nn.init.normal_(module.bias)
    return model, lambda batch: torch.randn(batch, *sizes, device=DEVICE)


def compared(fast, model, x, share):
    """As near to float64 as eager is, up to a ``share`` of the largest value, and lying as eager's."""
    exact = copy.deepcopy(model).double()(x.double())
    for one, other, true in zip(
        *(r if isinstance(r, tuple) else (r,) for r in (fast(x), model(x), exact)), strict=True
    ):
        assert (one.dtype, one.stride()) == (other.dtype, other.stride())
        own = (other.double() - true).abs().max()
        assert (one.double() - true).abs().max() <= 2 * own + share * true.abs().max()


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
@pytest.mark.parametrize("casts", [False, True])
@pytest.mark.parametrize("name", NETS)
@pytest.mark.filterwarnings("ignore:.*autocast")
def test_values_after_changes(name, casts, mode):
    model, inputs = made(name)
    fast = framefuse.compile(model, mode=mode, options={"freeze": True})
    share = 1e-2 if casts else 1e-4

    def steps(batch):
        for _ in range(3):
            with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16, enabled=casts):
                compared(fast, model, inputs(batch), share)

    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        steps(4)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        torch.optim.SGD(model.parameters(), 0.05).step()
        steps(4)
        model.train()
        with torch.no_grad():
            model(inputs(8))
        model.eval()
        steps(5)
        for parameter in model.parameters():
            parameter.data.mul_(1.1)
        framefuse.refresh(model)
        steps(4)
    graphs = framefuse.explain(fast).graphs
    assert any(graph.derived is not None and graph.derived.spared > 4 for graph in graphs)


def test_graphs_are_replayed_over_what_is_kept():
    """Weights that change are derived where they lay: no graph is captured once more."""
    model, inputs = made("pictures")
    fast = framefuse.compile(model, mode="reduce-overhead", options={"freeze": True})
    x = inputs(4)
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        for _ in range(6):
            compared(fast, model, x, 1e-4)
        before = framefuse.explain(fast).graphs[0].replays
        for _ in range(6):
            model.wide.weight.mul_(1.1)
            compared(fast, model, x, 1e-4)
    after = framefuse.explain(fast).graphs[0]
    assert after.derived.times == 7
    if DEVICE == "cuda":
        assert before.graphs == after.replays.graphs == 1, after.replays.why
