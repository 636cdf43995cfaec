"""Gradients through random numbers: the mask of the forward, one byte an element, and eager's stream, call for call."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import framefuse
from framefuse.explain.report import describe
from framefuse.runtime.function import compiled_function

FUNCTIONS = {
    "dropout": lambda x: (F.dropout(torch.relu(x) * 1.5, 0.3) + 1.0).sin(),
    "two": lambda x: F.dropout(F.dropout(x.sin(), 0.2), 0.3),
    "inplace": lambda x: F.dropout(x * 2.0, 0.2, True, True).exp(),
    "all dropped": lambda x: F.dropout(x * 2.0, 1.0).cos(),
    "alpha": lambda x: F.alpha_dropout(x.sin(), 0.2).exp(),
    "channels": lambda x: F.dropout1d(x * 2.0, 0.2).sin(),
    "noise": lambda x: (x * torch.rand(8, 16) + torch.randn_like(x)).sin(),
    "fill": lambda x: x.sin() * torch.empty_like(x).uniform_(),
    "bernoulli": lambda x: torch.bernoulli(x.sigmoid()) * x.exp(),
    "rrelu": lambda x: F.rrelu(x.sin(), 0.1, 0.3, True).sin(),
    "gumbel": lambda x: F.gumbel_softmax(x.sin()).exp(),
    "attention": lambda x: F.scaled_dot_product_attention(*[x.view(1, 2, 4, 16).sin()] * 3, dropout_p=0.2).sin(),
}


def inputs():
    return [torch.randn(8, 16, generator=torch.Generator().manual_seed(n)).requires_grad_() for n in range(4)]


def first(function, x):
    y = function(x)
    (gradient,) = torch.autograd.grad((y * y).sum(), x)
    return y.detach(), gradient


def second(function, x):
    y = function(x)
    (gradient,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
    torch.rand(3)
    (further,) = torch.autograd.grad((gradient * gradient).sum(), x, create_graph=True)
    return y.detach(), gradient.detach(), further.detach(), torch.autograd.grad(further.sum(), x)[0]


def repeated(function, x):
    y = function(x).sum()
    y.backward(retain_graph=True)
    gradient = x.grad.clone()
    torch.rand(3)
    y.backward()
    return gradient, x.grad


def runs(how, function):
    torch.manual_seed(7)
    return [(how(function, x), torch.get_rng_state()) for x in inputs()]


@pytest.mark.parametrize("how", [first, second, repeated])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_and_the_generator_are_eagers(name, how):
    function = FUNCTIONS[name]
    if how is second and name == "rrelu":
        how = second_of_two
    compiled = framefuse.compile(function)
    torch.testing.assert_close(runs(how, compiled), runs(how, function), rtol=1e-4, atol=1e-4)
    found = describe(compiled_function(compiled))
    assert len(found.graphs) == 1 and found.hits == 3, str(found)


def second_of_two(function, x):
    """Eager itself has no third derivative of rrelu."""
    y = function(x)
    (gradient,) = torch.autograd.grad((y * y).sum(), x, create_graph=True)
    return y.detach(), gradient.detach(), torch.autograd.grad((gradient * gradient).sum(), x)[0]


def test_a_mask_is_kept_as_bytes():
    compiled = framefuse.compile(FUNCTIONS["dropout"])
    for x in inputs():
        compiled(x).sum().backward()
    product = compiled_function(compiled).products[0]
    (piece,) = product.stages.halves.pieces
    kept = [entry.node.dtype for entry in piece.saved]
    # eager keeps what relu gave, the noise and what sin reads, all in float32
    assert [dtype.name for dtype in kept if not dtype.is_float] == ["bool"]
    assert sum(dtype.size for dtype in kept) <= 5


def test_a_generator_of_its_own_is_not_made_again():
    generator = torch.Generator()

    def function(x):
        return x.sin() * torch.rand(8, 16, generator=generator) + torch.normal(x, 1.0, generator=generator)

    found = []
    for call in (function, framefuse.compile(function)):
        generator.manual_seed(3)
        found.append([(first(call, x), generator.get_state()) for x in inputs()])
    torch.testing.assert_close(found[1], found[0])


def test_a_transformer_with_dropout_trains_as_eager():
    def train(compile):
        torch.manual_seed(0)
        model = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.2, batch_first=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        forward = compile(model)
        torch.manual_seed(5)
        losses = []
        for n in range(6):
            x = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(n))
            optimizer.zero_grad()
            loss = forward(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        return losses, torch.get_rng_state(), [p.detach() for p in model.parameters()]

    torch.testing.assert_close(train(framefuse.compile), train(lambda model: model), rtol=1e-4, atol=1e-5)
