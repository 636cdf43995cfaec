"""A dimension that comes as an argument is a constant of its trace: kernels are made for it, and gradients known."""

import pytest
import torch
from tests.unit.lower.recording import check, lowered, ops
from torch.nn import functional as F

import framefuse
from framefuse.runtime.function import compiled_function

KERNELS = {
    "softmax": lambda x, dim: x.softmax(dim),
    "log_softmax": lambda x, dim: F.log_softmax(x, dim),
    "sum": lambda x, dim: x.sum(dim),
    "mean": lambda x, dim: torch.mean(x, dim=dim),
    "var": lambda x, dim: x.var(dim),
    "amax": lambda x, dim: x.amax(dim, keepdim=True),
    "logsumexp": lambda x, dim: x.logsumexp((dim,)),
    "norm": lambda x, dim: torch.linalg.vector_norm(x, dim=dim),
    "cat": lambda x, dim: torch.cat([x, x * 2], dim),
    "stack": lambda x, dim: torch.stack([x, x + 1], dim=dim),
    "chunk": lambda x, dim: x.chunk(2, dim)[0] * 2,
    "unbind": lambda x, dim: x.unbind(dim)[1] * 2,
    "flip": lambda x, dim: x.flip(dim) * 2,
    "roll": lambda x, dim: x.roll(1, dim) * 2,
    "select": lambda x, dim: x.select(dim, 1) * 2,
    "unsqueeze": lambda x, dim: x.unsqueeze(dim) * 2,
    "transpose": lambda x, dim: x.transpose(dim, -1) * 2,
    "flatten": lambda x, dim: x.flatten(dim) * 2,
    "normalize": lambda x, dim: F.normalize(x, dim=dim),
}
CALLS = {
    "cumsum": lambda x, dim: (x * 2).cumsum(dim) + 1,
    "sort": lambda x, dim: (x * 2).sort(dim=dim)[0] + 1,
    "topk": lambda x, dim: (x * 2).topk(2, dim)[0] + 1,
}


def answers(function):
    """The function compiled, called with each dimension three times; what it gives and its gradients are eager's."""
    compiled = framefuse.compile(function)
    state = compiled_function(compiled)
    for seed, dim in enumerate((0, 1, 0, 1, 0, 1)):
        torch.manual_seed(seed)
        x = torch.randn(6, 6, 12 + 6 * seed, requires_grad=True)
        before = state.dispatch.hits
        ours, eager = compiled(x, dim), function(x, dim)
        assert state.dispatch.hits == before + (seed > 1)
        torch.testing.assert_close(ours, eager)
        found, expected = (torch.autograd.grad((result * result).sum(), x)[0] for result in (ours, eager))
        torch.testing.assert_close(found, expected)
    assert not state.reasons and not state.breaks
    return state.products


@pytest.mark.parametrize("name", KERNELS)
def test_an_argument_that_is_a_dimension(name):
    for product in answers(KERNELS[name]):
        graph = product.stages.graph
        assert not [node.attr("name") for node in graph.nodes if node.op == "library"]


@pytest.mark.parametrize("name", CALLS)
def test_library_calls_know_their_dimension(name):
    """Nothing of their results is found out at run time, and no number is handed over."""
    for product in answers(CALLS[name]):
        assert not product.stages.graph.bound


@pytest.mark.parametrize(
    ("by_numpy", "by_torch"),
    [
        (lambda x: x.mean(axis=1, keepdims=True), lambda x: x.mean(dim=1, keepdim=True)),
        (lambda x: torch.softmax(x, axis=-1), lambda x: torch.softmax(x, dim=-1)),
        (lambda x: torch.max(x, axis=1)[0], lambda x: torch.max(x, dim=1)[0]),
        (lambda x: torch.stack([x, x], axis=1), lambda x: torch.stack([x, x], dim=1)),
        (lambda x: torch.linalg.norm(x, axis=-1), lambda x: torch.linalg.norm(x, dim=-1)),
        (lambda x: x.unsqueeze(axis=0).select(axis=1, index=0), lambda x: x.unsqueeze(0).select(1, 0)),
    ],
)
def test_numpys_names_of_parameters_are_torchs(by_numpy, by_torch):
    x = torch.randn(3, 4, 5)
    assert ops(lowered(by_numpy, x)) == ops(lowered(by_torch, x))
    assert "library" not in ops(lowered(by_numpy, x))
    check(by_numpy, x)


def test_a_parameter_that_is_an_axis_keeps_its_name():
    def quantized(x):
        scale, zero = torch.ones(4), torch.zeros(4, dtype=torch.int32)
        return torch.fake_quantize_per_channel_affine(x * 2, scale, zero, axis=1, quant_min=0, quant_max=9) + 1

    fast = framefuse.compile(quantized)
    for rows in (3, 5):
        x = torch.arange(4.0 * rows).reshape(rows, 4) / 3
        torch.testing.assert_close(fast(x), quantized(x))
