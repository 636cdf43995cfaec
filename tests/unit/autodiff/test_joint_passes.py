"""Passes of users over results and gradients in one graph: both are theirs, in each case of a backward."""

from contextlib import nullcontext

import pytest
import torch

import framefuse
from framefuse.errors import UserError
from framefuse.ir.dtypes import BY_TORCH
from framefuse.ir.rewrite import reached
from framefuse.runtime.function import compiled_function


def turned(graph):
    """Products with their operands turned: the same numbers by other nodes, in results and gradients."""

    def change(node, operands, build):
        return build.pointwise("mul", *reversed(operands)) if node.op == "mul" else None

    return framefuse.rewritten(graph, change)


def halved(graph):
    """Gradients that read a tanh of the results in bfloat16."""
    results = reached([graph.outputs[0].node])

    def change(node, operands, build):
        parts = zip(node.inputs, operands, strict=True)
        return None if node in results else node.over(tuple(rounded(build, old, new) for old, new in parts))

    def rounded(build, old, new):
        return build.cast(build.cast(new, BY_TORCH[torch.bfloat16]), old.dtype) if old.op == "tanh" else new

    return framefuse.rewritten(graph, change)


class Net(torch.nn.Module):
    """Two results, one from the other, a shared part, and statistics that are no results."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.second = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8), torch.nn.Linear(8, 6)

    def forward(self, x):
        middle = torch.tanh(self.norm(self.first(x * x)) * 0.5)
        logits = self.second(middle * middle)
        return logits, (logits * x).sum(), middle.detach() * 2


def pair() -> tuple[Net, Net]:
    torch.manual_seed(0)
    net, twin = Net(), Net()
    twin.load_state_dict(net.state_dict())
    return net, twin


@pytest.mark.parametrize("asked", [(0,), (1,), (0, 1)])
def test_results_statistics_and_each_case_of_backward_are_those_of_eager(asked):
    net, twin = pair()
    with framefuse.register_pass("joint", turned):
        fast = framefuse.compile(net)
        for n in (4, 7, 5):
            x = torch.randn(n, 6, requires_grad=True)
            given, expected = fast(x), twin(x)
            torch.testing.assert_close([*given, *net.buffers()], [*expected, *twin.buffers()])
            for wanted in ("x", "weights"):
                sides = []
                for model, results in ((net, given), (twin, expected)):
                    inputs = [x] if wanted == "x" else [*model.parameters()]
                    outputs = [results[place] for place in asked]
                    tangents = [torch.ones_like(output) for output in outputs]
                    sides.append(torch.autograd.grad(outputs, inputs, tangents, retain_graph=True))
                torch.testing.assert_close(*sides)
    assert compiled_function(fast).dispatch.hits == 2


def test_forward_is_not_computed_twice():
    counts = []
    for passes in (nullcontext, lambda: framefuse.register_pass("joint", turned)):
        with passes():
            fast = framefuse.compile(pair()[0])
            for n in (4, 5):
                fast(torch.randn(n, 6))
        counts.append(len(framefuse.explain(fast).graphs[0].work))
    assert counts[0] == counts[1]


def test_second_derivatives_are_those_of_the_results():
    def f(x):
        return (torch.tanh(x) * x * x).sum()

    with framefuse.register_pass("joint", turned):
        fast = framefuse.compile(f)
        for n in (3, 4, 6):
            x = torch.randn(n, requires_grad=True)
            twice = [
                torch.autograd.grad(torch.autograd.grad(g(x), x, create_graph=True)[0].sum(), x) for g in (fast, f)
            ]
            torch.testing.assert_close(*twice)


def test_what_backward_keeps_is_what_the_pass_has_it_read():
    def f(x, w):
        return torch.tanh(x @ w).sum()

    kept = []
    for passes in (nullcontext, lambda: framefuse.register_pass("joint", halved, check=False)):
        with passes():
            fast = framefuse.compile(f, options={"check": False})
            for n in (16, 24):
                x, w = torch.randn(n, 32), torch.randn(32, 32, requires_grad=True)
                (gradient,) = torch.autograd.grad(fast(x, w), w)
                torch.testing.assert_close(gradient, torch.autograd.grad(f(x, w), w)[0], rtol=0.05, atol=0.1)
        kept.append(framefuse.explain(fast).graphs[0].saved[0])
    assert kept == [16 * 32 * 4, 16 * 32 * 2]


def test_a_pass_that_changes_results_is_named():
    def slip(graph):
        return framefuse.rewritten(
            graph, lambda node, operands, build: build.pointwise("cos", *operands) if node.op == "sin" else None
        )

    with framefuse.register_pass("joint", slip):
        with pytest.raises(UserError, match="the pass 'slip' changes what the program computes: output 0"):
            framefuse.compile(lambda x: torch.sin(x).sum())(torch.randn(3, requires_grad=True))
