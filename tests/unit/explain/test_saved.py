"""Explaining says how much a compiled graph keeps for its backward pass, and how much eager keeps."""

import torch
import torch.nn.functional as F
from torch.utils.checkpoint import checkpoint

import framefuse
from framefuse.explain.report import describe
from framefuse.runtime.function import compiled_function

X = torch.randn(64, 256)
W, V = torch.randn(256, 1024), torch.randn(1024, 256)


def explained(function, *args):
    compiled = framefuse.compile(function)
    for _ in range(2):
        compiled(*args)
    found = describe(compiled_function(compiled))
    (graph,) = found.graphs
    return graph, str(found)


def test_an_activation_is_computed_again():
    def block(x, w, v):
        return F.gelu(x @ w) @ v

    graph, text = explained(block, X, W.clone().requires_grad_(), V.clone().requires_grad_())
    one = 64 * 1024 * 4
    assert graph.saved == (one, 2 * one)
    assert "keeps 262.1 kB for backward, eager 524.3 kB" in text


def test_what_backward_reads_of_inputs_is_nobodys_memory():
    graph, text = explained(lambda x, w: (x * w).sum(), X, X.clone().requires_grad_())
    assert graph.saved == (0, 0)
    assert "keeps 0 bytes for backward, eager 0 bytes" in text


def test_what_a_checkpoint_reads_again_of_inputs_is_nobodys_memory():
    def block(x, w):
        return F.gelu(checkpoint(lambda x: F.gelu(x @ w), x, use_reentrant=False)).sum()

    graph, _ = explained(block, X.clone().requires_grad_(), W)
    assert graph.saved[0] <= 64 * 1024 * 4


def test_a_mask_of_dropout():
    graph, _ = explained(lambda x: F.dropout(x.sin() * 2, 0.5), X.clone().requires_grad_())
    ours, eager = graph.saved
    assert ours == 64 * 256 and eager >= 64 * 256


def test_inference_keeps_nothing():
    graph, text = explained(lambda x, w: (x @ w).relu(), X, W)
    assert graph.saved is None and "for backward" not in text
