"""Compiled functions train through library calls and composite functions as eager does, twice where that is asked."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import framefuse


def rand(*shape):
    torch.manual_seed(sum(shape))
    return torch.randn(shape)


EYE = 3 * torch.eye(4)
FUNCTIONS = {
    "convolution": (lambda x, w: F.gelu(F.conv2d(x, w, padding=1) * 2), rand(2, 3, 8, 8), rand(4, 3, 3, 3)),
    "pool": (lambda x: F.max_pool2d(x * 2, 2) * 3, rand(2, 3, 8, 8)),
    "tape": (lambda a, b: torch.linalg.solve(a + EYE, b).sin(), rand(4, 4), rand(4, 2)),
    "positions": (lambda x: (x * 2)[[1, 2, 2]].tanh(), rand(5, 3)),
    "norm": (lambda x, w: F.layer_norm(x @ w, (5,)).softmax(-1), rand(4, 8), rand(8, 5)),
    "loss": (lambda x, t: F.cross_entropy(x * 2, t), rand(5, 7), torch.tensor([1, 2, 3, 0, 6])),
    "slope": (lambda x, slope: F.leaky_relu(x * 2, slope) * x, rand(5, 7), 0.2),
}


def leaves_of(args, step):
    made = []
    for arg in args:
        if isinstance(arg, float):
            made.append(arg + step / 10)
        else:
            made.append(arg.clone().requires_grad_() if arg.is_floating_point() else arg)
    return made, [leaf for leaf in made if isinstance(leaf, torch.Tensor) and leaf.requires_grad]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name, again):
    function, *args = FUNCTIONS[name]
    compiled = framefuse.compile(function)
    for step in range(5):
        found = []
        for called in (function, compiled):
            values, leaves = leaves_of(args, step)
            result = called(*values)
            tangent = torch.ones_like(result) * (step + 1)
            gradients = torch.autograd.grad(result, leaves, tangent, create_graph=again)
            parts = [result, *gradients]
            if again:
                total = sum((part * part).mean() for part in gradients)
                parts += torch.autograd.grad(total, leaves, allow_unused=True)
            found.append(parts)
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-4)
    assert framefuse.explain(compiled).hits >= 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1, bias=False), nn.Conv2d(8, 16, 3, stride=2)
        self.norm, self.other = nn.BatchNorm2d(8), nn.BatchNorm2d(16)
        self.up, self.table = nn.Upsample(scale_factor=2, mode="bilinear"), nn.Embedding(7, 8, padding_idx=0)
        self.linear, self.rows, self.heads = nn.Linear(16, 8), nn.LayerNorm(8), nn.MultiheadAttention(8, 2)

    def forward(self, x, index, target):
        h = F.max_pool2d(F.relu(self.norm(self.first(x))), 2)
        h = self.up(F.gelu(self.other(self.second(h)))).flatten(2).transpose(1, 2)
        q = torch.cat([self.rows(self.linear(h)), self.table(index)], 1)
        q = q + self.heads(q, q, q, need_weights=False)[0]
        heads = q.view(q.shape[0], -1, 2, 4).transpose(1, 2)
        q = F.scaled_dot_product_attention(heads, heads, heads).transpose(1, 2).flatten(2)
        return F.cross_entropy(q.mean(1), target)


@pytest.mark.parametrize("last", [False, True])
def test_a_net(last):
    torch.manual_seed(0)
    plain = Net()
    twin = copy.deepcopy(plain)
    compiled = framefuse.compile(twin)
    steps = [torch.optim.SGD(net.parameters(), 0.1) for net in (plain, twin)]
    for step in range(7):
        rows = 4 if step < 4 else 3
        x, index = torch.randn(rows, 3, 16, 16), torch.randint(0, 7, (rows, 5))
        x = x.to(memory_format=torch.channels_last) if last else x
        target = torch.randint(0, 8, (rows,))
        losses = []
        for net, optimizer in zip((plain, compiled), steps, strict=True):
            losses.append(net(x, index, target))
            optimizer.zero_grad()
            losses[-1].backward()
            optimizer.step()
        torch.testing.assert_close(losses[1], losses[0], rtol=1e-4, atol=1e-4)
    for (name, a), b in zip(plain.named_parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(b.grad, a.grad, rtol=2e-3, atol=2e-4, msg=name)
        assert b.grad.stride() == a.grad.stride(), name
    torch.testing.assert_close(dict(twin.named_buffers()), dict(plain.named_buffers()), rtol=1e-4, atol=1e-4)
    assert framefuse.explain(compiled).hits >= 5
