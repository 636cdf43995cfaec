"""What has no gradient that we can give says so before anything runs."""

import pytest
import torch
from tests.unit.autodiff.gradient_graphs import gradient_graph, lowered, trace_of
from torch.nn import functional as F

from framefuse.errors import Stop

INDEX = torch.tensor([0, 2, 2])
REFUSED = {
    "embedding": lambda w: F.embedding(INDEX, w, sparse=True) * 2,
    "module": torch.nn.Embedding(4, 3, sparse=True, _weight=torch.ones(4, 3)),
    "bag": lambda w: F.embedding_bag(INDEX, w, torch.tensor([0]), sparse=True) * 2,
    "gather": lambda w: torch.gather(w, 0, INDEX[:, None], sparse_grad=True) * 2,
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name):
    if name == "module":
        module = REFUSED[name]
        graph = lowered(trace_of(lambda index: module(index) * 2, INDEX))
    else:
        graph = lowered(trace_of(REFUSED[name], torch.ones(4, 3, requires_grad=True)))
    with pytest.raises(Stop, match="sparse gradient"):
        gradient_graph(graph, list(graph.differentiable))


def test_a_rounded_quotient_has_the_slope_zero():
    graph = lowered(trace_of(lambda w: torch.div(w, 2, rounding_mode="floor") * w, torch.ones(4, requires_grad=True)))
    gradient_graph(graph, list(graph.differentiable))


def test_a_random_call_is_taped_once_and_not_twice():
    graph = lowered(trace_of(lambda w: F.rrelu(w, training=True) * w, torch.randn(4, requires_grad=True)))
    gradient_graph(graph, list(graph.differentiable))
    with pytest.raises(Stop, match="draws random numbers"):
        gradient_graph(graph, list(graph.differentiable), again=True)
