"""The FX graph of a trace speaks torch's vocabulary and computes what the trace recorded, on other sizes too."""

import math
import operator

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.capture.record import record
from framefuse.runtime.fx_graph import fx_graph


def captured(function, *args):
    with torch.no_grad():
        recording = record(function, args, {})
    assert recording.trace is not None, recording.reason
    return fx_graph(recording.trace)


def test_vocabulary():
    def f(x, y):
        z = torch.sin(x) + y
        z = 2 - z
        return z[:, 0], z.T.relu(), torch.nn.functional.softmax(z, -1)

    graph = captured(f, torch.randn(3, 4), torch.randn(4)).module.graph
    nodes = [(node.op, node.target) for node in graph.nodes if node.op not in ("placeholder", "output")]
    assert ("call_function", torch.sin) in nodes
    assert ("call_function", operator.getitem) in nodes
    assert ("call_function", torch.nn.functional.softmax) in nodes
    assert ("call_method", "relu") in nodes
    assert ("call_function", getattr) in nodes
    assert [node.op for node in graph.nodes][:2] == ["placeholder", "placeholder"]
    graph.lint()


def test_sizes_are_computed_from_the_inputs():
    def f(x):
        rows, columns = x.shape
        return x.reshape(rows * columns) * (columns - 1) + x.numel() // 2

    found = captured(f, torch.randn(3, 4))
    for shape in ((3, 4), (5, 2), (1, 7)):
        x = torch.randn(shape)
        torch.testing.assert_close(found.module(x)[0], f(x))


def test_numbers_given_as_arguments_are_inputs():
    def f(x, n, scale):
        return x * n + scale

    found = captured(f, torch.randn(3), 4, 0.5)
    assert len(found.feeds) == 3
    x = torch.randn(5)
    numbers = (7, 0.25) if str(found.feeds[1]).startswith("n") else (0.25, 7)
    torch.testing.assert_close(found.module(x, *numbers)[0], f(x, 7, 0.25))


@pytest.mark.parametrize(
    ("function", "rows"),
    [
        (lambda x: torch.nn.functional.dropout(x, 0.5), (0, 1, 3, 5, 0)),
        (lambda x: x.diff(dim=0), (0, 1, 3, 5, 0)),
        (lambda x: x.diff(n=2, dim=0), (1, 0, 3, 5, 1)),
        (lambda x: x.sum_to_size(1, 40), (1, 3, 5, 1)),
        (lambda x: torch.broadcast_tensors(x, torch.ones(3, 40))[0], (3, 1, 3)),
    ],
)
def test_what_sizes_make_the_operand_itself_is_that_at_these_sizes_alone(function, rows):
    fast = framefuse.compile(function, backend="eager")
    for count in rows:
        x = torch.randn(count, 40)
        torch.manual_seed(count)
        expected = function(x)
        torch.manual_seed(count)
        found = fast(x)
        torch.testing.assert_close(found, expected)
        assert (found is x) == (expected is x)


def test_functions_of_numbers_reach_the_graph():
    def f(x, n, scale):
        return x[: int(n * scale)] * math.sin(scale) + (n & 3), math.sqrt(n) + scale // 0.3

    fast = framefuse.compile(f, backend="eager")
    for n, scale in ((4, 0.5), (4, 0.5), (7, 0.25), (9, 1.5), (16, 0.75)):
        x = torch.randn(20)
        (found, number), (expected, other) = fast(x, n, scale), f(x, n, scale)
        torch.testing.assert_close(found, expected)
        assert number == other
    assert compiled_function(fast).dispatch.hits == 4


def test_a_float_made_of_a_size_inside_the_graph():
    def f(x):
        made = x * 2 + 1
        return made, made.numel() / 4, int(made.shape[0] / 2)

    fast = framefuse.compile(f, backend="eager")
    for shape in ((2, 3), (2, 3), (5, 2), (7, 4)):
        found, expected = fast(torch.ones(shape)), f(torch.ones(shape))
        assert torch.equal(found[0], expected[0]) and found[1:] == expected[1:]
    assert compiled_function(fast).dispatch.hits == 3


@pytest.mark.parametrize(
    ("wrong", "told"), [(lambda x: x[5], "IndexError: index 5"), (lambda x: x, "a Tensor, not a tuple of 1")]
)
def test_code_of_a_backend_that_fails_is_told_once_and_such_calls_run_eagerly(wrong, told, caplog):
    def broken(gm, examples):
        failing = iter((wrong, wrong))
        return lambda x: next(failing, gm.forward)(x)

    fast = framefuse.compile(lambda x: x.tan() + 1, backend=broken)
    for value in range(4):
        torch.testing.assert_close(fast(torch.full((3,), value / 4)), torch.full((3,), value / 4).tan() + 1)
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("The code of the backend broken failed") and told in message
