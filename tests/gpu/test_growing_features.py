"""Layers each of which joins the features of all before it, as those of a DenseNet: the features lie in one memory."""

import pytest
import torch
from tests.gpu.test_programs import DEVICE, all_digits, checked, pytestmark  # noqa: F401
from torch import nn

import framefuse


class Layer(nn.Module):
    def __init__(self, channels, growth):
        super().__init__()
        self.norm, self.squeeze = nn.BatchNorm2d(channels), nn.Conv2d(channels, 2 * growth, 1, bias=False)
        self.between, self.wide = nn.BatchNorm2d(2 * growth), nn.Conv2d(2 * growth, growth, 3, padding=1, bias=False)

    def forward(self, features):
        x = self.squeeze(torch.relu(self.norm(torch.cat(features, 1))))
        return self.wide(torch.relu(self.between(x)))


class Dense(nn.Module):
    def __init__(self, channels=6, growth=3, layers=5):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1)
        self.layers = nn.ModuleList(Layer(channels + n * growth, growth) for n in range(layers))
        self.norm = nn.BatchNorm2d(channels + layers * growth)
        self.last = nn.Linear(channels + layers * growth, 4)

    def forward(self, x):
        features = [torch.relu(self.stem(x))]
        for layer in self.layers:
            features.append(layer(features))
        return self.last(torch.relu(self.norm(torch.cat(features, 1))).mean((2, 3)))


class InFront(Dense):
    """New features stand in front."""

    def forward(self, x):
        x = torch.relu(self.stem(x))
        for layer in self.layers:
            x = torch.cat([layer([x]), x], 1)
        return self.last(torch.relu(self.norm(x)).mean((2, 3)))


class Residuals(nn.Module):
    """The features grow by what is computed, beside what a call gives; the last cat is a result too."""

    def __init__(self):
        super().__init__()
        self.steps = nn.ModuleList(nn.Linear(4 * n, 4) for n in range(1, 8))

    def forward(self, x):
        for number, step in enumerate(self.steps):
            new = step(torch.tanh(x) * 2)
            x = torch.cat([x, new.sigmoid() if number % 2 else new], -1)
        return x, torch.relu(x).sum(-1)


def net(kind):
    torch.manual_seed(3)
    made = kind()
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-1, 1)
            module.running_var.uniform_(0.5, 2)
    return made.to(DEVICE)


def total(result):
    return sum(each.square().sum() for each in (result if isinstance(result, tuple) else (result,)))


@pytest.mark.parametrize("memory", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("trains", [False, True])
@pytest.mark.parametrize("kind", [Dense, InFront, Residuals])
def test_of_a_dense_net(kind, trains, memory):
    ours, eager = net(kind).train(trains), net(kind).train(trains)
    fast = framefuse.compile(ours)
    for rows in (2, 2, 3, 1 + trains, 5):
        x = torch.randn(rows, 3, 5, 7) if kind is not Residuals else torch.randn(rows, 3, 2, 4)
        x = x.to(DEVICE).contiguous(memory_format=memory)
        pair = [x.clone().requires_grad_(trains) for _ in range(2)]
        with torch.set_grad_enabled(trains):
            results = fast(pair[0]), eager(pair[1])
        torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)
        for one, other in zip(*(r if isinstance(r, tuple) else (r,) for r in results), strict=True):
            assert one.stride() == other.stride()
        if trains:
            for result in results:
                total(result).backward()
            torch.testing.assert_close(pair[0].grad, pair[1].grad, rtol=1e-3, atol=1e-4)
            for one, other in zip(ours.parameters(), eager.parameters(), strict=True):
                torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-4)
    parts = [m for product in checked(fast, 3) for m in product.stages.code.schedule.memories if m.place == "view"]
    assert len(parts) > 4, "features are parts of a memory"
