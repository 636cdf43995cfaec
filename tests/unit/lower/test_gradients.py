"""Where gradients flow in a lowered graph, and where eager cut them."""

import torch

from framefuse.capture.record import record
from framefuse.ir.graph import Graph
from framefuse.lower import lower


def lowered(function, *args) -> Graph:
    trace = record(function, args, {}, owner=None).trace
    assert trace is not None
    return lower(trace)


def leaf(*sizes):
    return torch.randn(*sizes, requires_grad=True)


def test_results_say_whether_they_require_grad():
    def function(x, w):
        y = x * w
        with torch.no_grad():
            z = w * 2
        return y, z, x + 1, y > 0, y.detach()

    graph = lowered(function, torch.randn(3), leaf(3))
    assert [graph.inputs[place].attr("index") for place in graph.differentiable] == [1]
    assert [output.requires_grad for output in graph.outputs] == [True, False, False, False]
    assert graph.trains and [(late.name, late.requires_grad) for late in graph.late] == [("detach", False)]


def test_a_gradient_is_cut_where_eager_cut_it():
    graph = lowered(lambda w: (w * 2).detach() + w, leaf(3))
    (total,) = (output.node for output in graph.outputs)
    assert [operand.op for operand in total.inputs] == ["detach", "input"]
    inside = lowered(lambda w: w * 2, torch.randn(3))
    assert not inside.trains and not inside.differentiable


def test_views_and_writes_that_require_grad_come_last():
    def function(x, w):
        y = x + w
        view = y.view(-1)[1:]
        x.mul_(w)
        return view, x.t(), y

    x = leaf(2, 3) * 1
    graph = lowered(function, x, leaf(2, 3))
    assert [late.name for late in graph.late] == ["copy_", "view", "__getitem__", "t"]
    assert [(output.value < 0, output.requires_grad) for output in graph.outputs] == [(True, True), (False, True)]
    assert not graph.writes


def test_a_write_behind_autograd_is_no_gradient():
    def function(w):
        with torch.no_grad():
            w.add_(1)
        return w + 0

    graph = lowered(function, leaf(3))
    (output,), (write,) = graph.outputs, graph.writes
    kept = output.node.inputs[0]
    assert output.requires_grad and not graph.late
    assert (kept.op, kept.attr("name"), kept.inputs) == ("derived", "kept", (write.node, graph.inputs[0]))


def test_a_write_that_autograd_does_not_see_keeps_the_history():
    def function(w):
        hidden = w * 2
        with torch.no_grad():
            hidden.mul_(3)
        return hidden * w

    (output,) = lowered(function, leaf(3)).outputs
    kept = next(node for node in output.node.inputs if node.op == "derived")
    value, history = kept.inputs
    assert kept.attr("name") == "kept" and value.inputs[0] is history


def test_a_write_through_a_detached_alias_is_in_no_other_history():
    def function(w, x):
        y = w * 2
        alias = y.detach()
        alias.mul_(x)
        return y

    (y,) = lowered(function, leaf(3), torch.randn(3)).outputs
    assert y.requires_grad and (y.node.op, y.node.attr("name")) == ("derived", "kept") and y.version == 1
