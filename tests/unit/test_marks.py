"""What the user says of sizes and functions is obeyed: sizes vary or not, functions stay whole, break or are eager."""

import pytest
import torch

import framefuse
from framefuse.api import compiled_function


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def traces(compiled):
    return len(compiled_function(compiled).products)


def test_a_dynamic_size_compiles_once_where_sizes_are_constants():
    compiled = framefuse.compile(lambda x: torch.softmax(x * 2, -1), dynamic=False)
    for size in (3, 4, 5):
        x = torch.randn(size, 7)
        framefuse.mark_dynamic(x, 0)
        torch.testing.assert_close(compiled(x), torch.softmax(x * 2, -1))
    assert traces(compiled) == 1
    x = torch.randn(3, 8)
    framefuse.mark_dynamic(x, -2)
    torch.testing.assert_close(compiled(x), torch.softmax(x * 2, -1))
    assert traces(compiled) == 2  # the other size is a constant still


def test_a_static_size_is_a_constant_of_the_code():
    compiled = framefuse.compile(lambda x: x.sum(1) * 2)
    for size in (3, 4, 3):
        x = torch.randn(2, size)
        framefuse.mark_static(x, 1)
        torch.testing.assert_close(compiled(x), x.sum(1) * 2)
    assert traces(compiled) == 2
    everything = framefuse.compile(lambda x: x + 1)
    for size in (3, 4):
        x = torch.randn(size, size)
        framefuse.mark_static(x)
        torch.testing.assert_close(everything(x), x + 1)
    assert traces(everything) == 2


def test_marks_of_what_is_no_dimension():
    with pytest.raises(framefuse.UserError, match="dimension 3"):
        framefuse.mark_dynamic(torch.randn(2), 3)
    with pytest.raises(framefuse.UserError, match="no dimensions"):
        framefuse.mark_static([1, 2])


def test_an_allowed_function_is_one_call_of_the_graph():
    seen = []

    @framefuse.allow_in_graph
    def odd(x, scale):
        seen.append(type(x))
        table = {round(v): v for v in (0.5, 2.0)}  # whatever Python it has
        return x * scale + table[2]

    def f(x, n):
        return torch.relu(odd(x + 1, n * 2.0)) * 2

    compiled = framefuse.compile(f, fullgraph=True)
    for n in (1.0, 2.0, -3.0):
        x = torch.randn(4)
        torch.testing.assert_close(compiled(x, n), f(x, n))
    assert traces(compiled) == 1
    assert "kept odd()" in [work.title for work in framefuse.explain(compiled).graphs[0].work]
    assert len(seen) == 6  # it runs at each call, ours and eager's
    assert set(seen) == {torch.Tensor}


def test_a_constant_result_is_taken_once():
    calls = []

    @framefuse.assume_constant_result
    def settings(name):
        calls.append(name)
        return {"scale": 3.0, "shift": torch.ones(2)}

    def f(x):
        return x * settings("a")["scale"] + settings("a")["shift"]

    compiled = framefuse.compile(f, fullgraph=True)
    x = torch.randn(2)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), x * 3 + 1)
    assert len(calls) == 2  # both while the first call was recorded


def test_a_break_that_is_asked_for():
    def f(x):
        y = x + 1
        framefuse.graph_break()
        return y * 2

    framefuse.graph_break()  # nothing, here
    compiled = framefuse.compile(f)
    for _ in range(3):
        x = torch.randn(2)
        torch.testing.assert_close(compiled(x), f(x))
    assert traces(compiled) == 2
    assert "graph-break" in str(framefuse.explain(compiled))
    with pytest.raises(framefuse.UserError, match="graph_break"):
        framefuse.compile(f, fullgraph=True)(torch.randn(2))


def test_a_disabled_function_runs_eagerly_between_two_graphs():
    seen = []

    @framefuse.disable
    def eager(x):
        seen.append(framefuse.is_compiling())
        return x * 3

    def f(x):
        return torch.sin(eager(x + 1)) - 1

    compiled = framefuse.compile(f)
    for _ in range(3):
        x = torch.randn(2)
        torch.testing.assert_close(compiled(x), torch.sin((x + 1) * 3) - 1)
    assert traces(compiled) == 2
    assert seen == [False] * 3
    assert "eager runs eagerly: it is marked so" in str(framefuse.explain(compiled))
