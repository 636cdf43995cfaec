"""A printed graph is Python over torch that computes what the graph computes."""

import torch
from tests.unit.lower.recording import lowered

from framefuse.ir.printer import graph_text, program


def norm(x, w):
    y = torch.nn.functional.layer_norm(x, (x.shape[-1],), w)
    return torch.cat([y.flip(0)[:, 1:], torch.nn.functional.pad(y, (1, 2))], 1), (y * 2).cumsum(0)


def test_the_text_alone_computes_the_result():
    graph = lowered(norm, torch.randn(3, 4), torch.randn(4))
    text = graph_text(graph)
    assert "constants" not in text
    space = {"torch": torch}
    exec(text, space)
    x, w = torch.randn(5, 4), torch.randn(4)
    for result, expected in zip(space["norm"](x, w), norm(x, w), strict=True):
        torch.testing.assert_close(result, expected)


def scaled(x, n, factor):
    return torch.full((n,), factor * 2.0) + x * factor


def test_numbers_that_no_input_gives_are_keywords():
    graph = lowered(scaled, torch.randn(3), 3, 0.5)
    printed = program(graph)
    assert len(printed.numbers) <= 2
    assert "*" in printed.text.split("\n")[len(graph.relations)] or not printed.numbers


def test_the_users_line_stands_above_its_operation():
    text = graph_text(lowered(norm, torch.randn(3, 4), torch.randn(4)))
    assert "y = torch.nn.functional.layer_norm(x, (x.shape[-1],), w)" in text
