"""A trace becomes a graph that computes what eager computes, on the recorded and on other sizes."""

import torch
from tests.unit.lower.recording import check, ops


def chain(x):
    x = torch.sin(x + 0.1) * 1.1
    x = torch.relu(x - 0.2)
    return torch.sigmoid(torch.exp(x * 0.5)).sum()


def test_a_chain_serves_every_size():
    graph = check(chain, torch.randn(8, 16), others=[(torch.randn(4, 16),), (torch.randn(0, 3),), (torch.randn(1, 1),)])
    assert ops(graph) == ["add", "sin", "mul", "sub", "maximum", "mul", "exp", "sigmoid", "sum"]
    assert not graph.relations
