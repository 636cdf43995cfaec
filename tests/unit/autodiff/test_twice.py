"""The gradients of gradients are autograd's: the transform applied twice, rules of every kind."""

import pytest
import torch
from tests.unit.autodiff.gradient_graphs import apart, gradient_graph, lowered, trace_of
from torch.nn import functional as F

import framefuse
from framefuse.codegen.python import compile_graph


def check_twice(function, *tensors):
    """d(sum(gradient * v)) / d(inputs, tangent) by graphs of graphs against autograd's double backward."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    trace = trace_of(lambda *args: apart(function(*args)), *leaves)
    order = [entry.source.key for entry in trace.assumptions.inputs]
    graph = lowered(trace)
    places = list(range(len(tensors)))
    first, exists = gradient_graph(graph, places, again=True)
    assert all(exists)
    second, there = gradient_graph(first, list(range(len(first.inputs))), again=True)

    leaves = [leaves[place] for place in order]
    values = [None] * len(leaves)
    for place, leaf in zip(order, leaves, strict=True):
        values[place] = leaf
    result = function(*values)
    torch.manual_seed(2)
    tangent = torch.randn_like(result, requires_grad=True)
    found = torch.autograd.grad(result, leaves, tangent, create_graph=True)
    directions = [torch.randn_like(part) for part in found]
    pairs = [(part, v) for part, v in zip(found, directions, strict=True) if part.requires_grad]
    expected = torch.autograd.grad(
        [part for part, _ in pairs], [*leaves, tangent], [v for _, v in pairs], allow_unused=True
    )
    given = [*(leaf.detach() for leaf in leaves), tangent.detach(), *directions]
    results = iter(compile_graph(second)(given))
    for here, target in zip(there, expected, strict=True):
        mine = next(results) if here else None
        if target is None:
            assert mine is None or not mine.any()
        else:
            torch.testing.assert_close(mine if mine is not None else torch.zeros_like(target), target)


def rand(*shape):
    torch.manual_seed(sum(shape))
    return torch.randn(shape, dtype=torch.float64)


X = {
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu,
    "mish": F.mish,
    "softplus": F.softplus,
    "logsigmoid": F.logsigmoid,
    "elu": F.elu,
    "relu": lambda x: F.relu(x) ** 3,
    "clamp": lambda x: x.clamp(-0.5, 0.5) ** 3,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(0),
    "logsumexp": lambda x: x.logsumexp(1),
    "layer_norm": lambda x: F.layer_norm(x, (6,)),
    "group_norm": lambda x: F.group_norm(x, 2),
    "rms_norm": lambda x: F.rms_norm(x, (6,)),
    "norm": lambda x: x.norm(dim=1),
    "norm3": lambda x: x.norm(3, 1),
    "std": lambda x: x.std(1),
    "var": lambda x: x.var(),
    "normalize": F.normalize,
    "prod": lambda x: x.prod(1),
    "amax": lambda x: x.amax(1) ** 2,
    "max": lambda x: x.max(1)[0] ** 2,
    "max all": lambda x: x.max() ** 2,
    "cat": lambda x: torch.cat([x * x, x[:, 1:4] ** 3], 1),
    "steps": lambda x: x[:, ::2] ** 3,
    "pad": lambda x: F.pad(x, (1, 2)) ** 2,
    "take": lambda x: x[torch.tensor([0, 2, 2])] ** 2,
    "gather": lambda x: x.gather(1, torch.tensor([[0, 1], [5, 5], [2, 1], [0, 0]])) ** 2,
    "pow": lambda x: x.abs() ** 2.5,
    "atan2": lambda x: torch.atan2(x, x.flip(0)),
    "hypot": lambda x: torch.hypot(x, x.flip(0)),
    "sigmoid": torch.sigmoid,
    "sqrt": lambda x: x.abs().sqrt(),
    "lgamma": lambda x: torch.lgamma(x.abs() + 1),
    "digamma": lambda x: torch.digamma(x.abs() + 1),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.tensor([0, 5, 2, 2])),
    "bce": lambda x: F.binary_cross_entropy_with_logits(x, x.flip(0).sigmoid()),
    "smooth": lambda x: F.smooth_l1_loss(x, x.flip(0), beta=0.5),
    "cumsum": lambda x: x.cumsum(1) ** 2,
    "sort": lambda x: x.sort(1)[0] ** 2,
    "cumprod": lambda x: x.cumprod(1),
    "items": lambda x: x[[0, 1], [2, 3]] ** 2,
    "xlogy": lambda x: torch.xlogy(x, x.abs()),
    "glu": F.glu,
    "sinc": torch.sinc,
    "logaddexp": lambda x: torch.logaddexp(x, x.flip(0)),
    "cosine": lambda x: F.cosine_similarity(x, x.flip(0)),
    "logit": lambda x: torch.logit(x.sigmoid()),
    "inverse": lambda x: torch.linalg.inv(x[:, :4] + 5 * torch.eye(4, dtype=x.dtype)),
}
PAIRS = {
    "matmul": (lambda a, b: a @ b, (3, 4), (4, 5)),
    "batch": (lambda a, b: a @ b, (2, 3, 4), (2, 4, 5)),
    "shared": (lambda a, b: a @ b, (2, 3, 4), (4, 5)),
    "linear": (F.linear, (2, 3, 4), (5, 4)),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1), (2, 3, 5, 5), (4, 3, 3, 3)),
    "embedding": (lambda w, x: F.embedding(torch.tensor([1, 2, 2]), w) * x, (4, 3), (3, 3)),
    "pool": (lambda x, y: F.max_pool2d(x * y, 2), (2, 3, 4, 4), (2, 3, 4, 4)),
    "adaptive": (lambda x, y: F.adaptive_max_pool2d(x * y, 3), (2, 3, 4, 4), (2, 3, 4, 4)),
    "average": (lambda x, y: F.avg_pool2d(x * y, 2) ** 2, (2, 3, 4, 4), (2, 3, 4, 4)),
    "bilinear": (lambda x, y: F.interpolate(x * y, scale_factor=2, mode="bilinear") ** 2, (1, 2, 3, 3), (1, 2, 3, 3)),
    "batch_norm": (lambda x, w: F.batch_norm(x, None, None, w, training=True), (5, 4), (4,)),
    "prelu": (lambda x, w: F.prelu(x, w) ** 2, (5, 4), (4,)),
    "where": (lambda x, y: torch.where(x > y, x * y, x * x), (5, 4), (5, 4)),
    "div": (lambda x, y: x / y, (5, 4), (4,)),
}


@pytest.mark.parametrize("name", X)
def test_one_operand(name):
    check_twice(X[name], rand(4, 6))


@pytest.mark.parametrize("name", PAIRS)
def test_two_operands(name):
    function, left, right = PAIRS[name]
    check_twice(function, rand(*left), rand(*right) + 0.1)


def test_attention_by_products_alone():
    """Where the program forbids the fused kernel, eager has second gradients of attention."""

    def f(x, w):
        q = (x @ w).view(2, 5, 4, 4).transpose(1, 2)
        return torch.nn.functional.scaled_dot_product_attention(q, q * 2, q + 1, is_causal=True)

    fast = framefuse.compile(f)
    for _ in range(3):
        x = (torch.randn(2, 5, 16, dtype=torch.float64) / 2).requires_grad_()
        w = (torch.randn(16, 16, dtype=torch.float64) / 4).requires_grad_()
        found = []
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            for each in (f, fast):
                (first,) = torch.autograd.grad(each(x, w).square().sum(), x, create_graph=True)
                found.append((first, *torch.autograd.grad(first.square().sum(), (x, w))))
        torch.testing.assert_close(found[1], found[0])


def test_fused_attention_refuses_as_in_eager():
    """The kernel of the gradients reads the kept logarithms, which have no history: the error is the kernel's own."""

    def f(q):
        return torch.nn.functional.scaled_dot_product_attention(q, q, q)

    fast = framefuse.compile(f)
    for _ in range(3):
        q = torch.randn(1, 2, 8, 16, requires_grad=True)
        for each in (f, fast):
            (first,) = torch.autograd.grad(each(q).square().sum(), q, create_graph=True)
            with pytest.raises(RuntimeError, match=r"flash_attention_for_cpu_backward is not implemented"):
                torch.autograd.grad(first.square().sum(), q)
    assert framefuse.explain(fast).hits >= 2
