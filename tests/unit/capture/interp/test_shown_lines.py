"""Breaks and graphs name a line at which a user knows where he is, and what is called by its own name."""

import contextlib
import io

import torch
from torch import nn

import framefuse
from framefuse.capture.program import leaves
from framefuse.runtime.function import compiled_function


def test_a_manager_of_the_standard_library_is_shown_at_the_users_with():
    log = io.StringIO()

    def program(x):
        y = x.sin()
        with contextlib.redirect_stdout(log):
            y = y * 2
        return y

    fast = framefuse.compile(program)
    for n in (3, 3, 4):
        x = torch.randn(n)
        torch.testing.assert_close(fast(x), program(x))
    breaks = framefuse.explain(fast).breaks
    assert breaks
    assert {each.line.file for each in breaks} == {__file__}


def test_the_layers_of_a_compiled_sequence_are_shown_at_their_own_forward():
    model = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.GELU()), nn.Linear(8, 4))
    fast = framefuse.compile(model)
    for n in (3, 5):
        x = torch.randn(n, 4)
        torch.testing.assert_close(fast(x), model(x))
    lines = {node.line.function for node in compiled_function(fast).products[0].stages.graph.nodes if node.line}
    assert lines == {"Linear.forward", "GELU.forward"}


def test_a_method_of_pybind_is_named_without_the_class_that_pybind_keeps_it_in():
    name = leaves.title(torch._C.Graph().addInput)
    assert name.endswith(".addInput")
    assert "record" not in name
