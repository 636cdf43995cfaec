"""A trace becomes a graph that computes what eager computes, on the recorded and on other sizes."""

import torch
from tests.unit.lower.recording import check, ops
from torch.nn import functional as F


def chain(x):
    x = torch.sin(x + 0.1) * 1.1
    x = torch.relu(x - 0.2)
    return torch.sigmoid(torch.exp(x * 0.5)).sum()


def test_a_chain_serves_every_size():
    graph = check(chain, torch.randn(8, 16), others=[(torch.randn(4, 16),), (torch.randn(0, 3),), (torch.randn(1, 1),)])
    assert ops(graph) == ["add", "sin", "mul", "sub", "maximum", "mul", "exp", "sigmoid", "sum"]
    assert not graph.relations


def test_the_scale_of_an_rms_norm_is_one_number_of_a_row():
    graph = check(lambda x: F.rms_norm(x, (6,)), torch.randn(5, 6), others=[(torch.randn(9, 6),)])
    (scale,) = (node for node in graph.nodes if node.op == "rsqrt")
    assert scale.shape[1].constant == 1
