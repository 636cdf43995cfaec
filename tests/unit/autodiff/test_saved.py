"""Backward computed from what the cut saves gives what the joint graph gives, bit by bit."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.autodiff.gradient_graphs import whole
from tests.unit.lower.recording import trace_of

from framefuse.autodiff.cut import choose_saved
from framefuse.autodiff.reverse import gradients
from framefuse.codegen.python import compile_graph
from framefuse.ir.builder import Builder, builder_over
from framefuse.ir.numbers import expr
from framefuse.lower import lower


def halves_agree(function, *tensors, free=lambda place: True):
    """Compares the gradients from the joint graph with those from saved values; gives the saved nodes."""
    trace = trace_of(function, *tensors)
    graph = lower(trace)
    b = builder_over(graph)
    split = len(b.nodes)
    results = [output.node for output in graph.outputs]
    torch.manual_seed(1)
    tangents = [torch.randn(b.sizes(node.shape), dtype=torch.float32) for node in results]
    seeds = [(node, b.opaque("input", (), (("index", 0),), node.dtype, node.shape, None, "cpu")) for node in results]
    wanted = [node for node in graph.inputs if node.dtype.is_float]
    found = [node for node in gradients(b, seeds, wanted).values() if node is not None]
    aside = {node for place, node in enumerate(graph.inputs) if free(place)}
    saved = choose_saved(
        b.nodes[:split],
        b.nodes[split:],
        found,
        free=aside,
        forbidden={*graph.inputs, *results} - aside,
        hints=graph.hints,
    )
    values = [tensors[entry.source.key] for entry in trace.assumptions.inputs]
    ends = [node for _, node in seeds]
    joint = run(b, [*graph.inputs, *ends], found, [*values, *tangents])
    kept = run(b, graph.inputs, saved, values)
    halves = run(b, [*saved, *ends], found, [*kept, *tangents])
    for one, other in zip(joint, halves, strict=True):
        assert torch.equal(one.nan_to_num(), other.nan_to_num())
    return saved


def run(b, leaves, wanted, values):
    """What the wanted nodes are when the leaves have these values."""
    fresh = Builder(b.hints)
    made = {leaf: placeholder(leaf, place) for place, leaf in enumerate(leaves)}
    inputs = list(made.values())

    def copied(node):
        if node not in made:
            made[node] = replace(node, inputs=tuple(copied(operand) for operand in node.inputs))
        return made[node]

    results = [copied(node) for node in wanted]
    fresh.nodes = [made[node] for node in b.nodes if node in made]
    torch.manual_seed(0)
    numbers = {symbol.name: value for symbol, value in b.hints.items()}
    return compile_graph(whole(fresh, inputs, results))([value.contiguous() for value in values], numbers)


def placeholder(node, place):
    strides = [expr(1)]
    for size in reversed(node.shape[1:]):
        strides.insert(0, strides[0] * size)
    attrs = (("index", place),)
    return replace(node, op="input", inputs=(), attrs=attrs, strides=tuple(strides[: len(node.shape)]))


def attention(x, w):
    q, k, v = (x @ w).reshape(4, 8, 2, 24).permute(0, 2, 1, 3).chunk(3, -1)
    probs = F.dropout((q @ k.transpose(-2, -1) * 0.3).softmax(-1), 0.5)
    return (probs @ v).transpose(1, 2).reshape(4, 8, 16)


def block(x, w, u):
    h = F.layer_norm(x, (16,))
    return x + F.gelu(h @ w) @ u


X = torch.randn(4, 8, 16, generator=torch.Generator().manual_seed(3))
W = torch.randn(16, 48, generator=torch.Generator().manual_seed(4))


@pytest.mark.parametrize(
    "function, tensors",
    [
        (attention, (X, W)),
        (block, (X, W, W.t().contiguous())),
        (lambda x, w: F.cross_entropy((x @ w).flatten(0, 1), torch.arange(32)), (X, W)),
        (lambda x: ((x - x.mean((0, 1))) * (x.var((0, 1)) + 1e-5).rsqrt()).relu().max(-1).values, (X,)),
        (lambda x: F.dropout(x.sinh(), 0.3) * x.sigmoid(), (X,)),
        (lambda x: torch.cat([x[:, :3], x[:, 5:].exp(), x.prod(1, keepdim=True)], 1).amax(0), (X,)),
    ],
)
def test_pieces_of_models(function, tensors):
    halves_agree(function, *tensors)
    saved = halves_agree(function, *tensors, free=lambda place: False)
    assert saved


STEPS = {
    "exp": lambda x, y: (x * 0.1).exp(),
    "tanh": lambda x, y: x.tanh(),
    "relu": lambda x, y: x.relu(),
    "mul": lambda x, y: x * y,
    "div": lambda x, y: x / (y * y + 1),
    "norm": lambda x, y: F.layer_norm(x, x.shape[-1:]),
    "softmax": lambda x, y: x.softmax(-1) * y,
    "product": lambda x, y: x @ y.transpose(-2, -1) @ x * 0.01,
    "dropout": lambda x, y: F.dropout(x, 0.5) + y,
    "maximum": lambda x, y: torch.maximum(x, y),
    "turned": lambda x, y: x.flip(-1) + y.roll(1, -1),
    "pow": lambda x, y: x.abs() ** 1.5,
    "mean": lambda x, y: x - y.mean(-1, keepdim=True),
}


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_random_programs(data):
    steps = data.draw(
        st.lists(
            st.tuples(st.sampled_from(sorted(STEPS)), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=8
        )
    )
    rows = data.draw(st.sampled_from([3, 400]))

    def function(x, y):
        values = [x, y]
        for name, first, second in steps:
            values.append(STEPS[name](values[first % len(values)], values[second % len(values)]))
        return values[-1]

    generator = torch.Generator().manual_seed(5)
    tensors = [torch.randn(2, rows, 8, generator=generator) for _ in range(2)]
    asides = data.draw(st.sets(st.integers(0, 1)))
    halves_agree(function, *tensors, free=asides.__contains__)
