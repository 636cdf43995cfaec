"""framefuse.graphs: the graphs of a compiled function print, run on other inputs, and are FX modules."""

import pytest
import torch
from torch import nn

import framefuse


def trained(backend="native"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.Tanh())
    compiled = framefuse.compile(model, backend=backend)
    for rows in (2, 5):
        compiled(torch.randn(rows, 4)).sum().backward()
    return model, compiled


@pytest.mark.parametrize("backend", ["native", "aot_eager", "python"])
def test_forward_and_backward_run_as_eager_does(backend):
    model, compiled = trained(backend)
    (found,) = framefuse.graphs(compiled)
    weight, bias = model[0].weight, model[0].bias
    x = torch.randn(7, 4)
    expected = model(x)
    tangent = torch.randn_like(expected)
    gradients = torch.autograd.grad(expected, (weight, bias), tangent)
    torch.testing.assert_close(found.captured(x, weight, bias)[0], expected)
    with torch.no_grad():
        forward = found.forward(x, weight, bias)
        torch.testing.assert_close(forward[0], expected)
        (backward,) = found.backward
        given = {tuple(one.shape): one for one in (x, expected)}  # what is saved: the operand and the result
        inputs = [node for node in backward.module.graph.nodes if node.op == "placeholder"]
        saved = [given[(7, 4)], given[(7, 3)]][: len(inputs) - 1]
        torch.testing.assert_close(backward(*saved, tangent), gradients)


def test_graphs_print_with_the_lines_they_came_from():
    _, compiled = trained()
    (found,) = framefuse.graphs(compiled)
    assert "torch._C._nn.linear(" in str(found.captured)
    assert "torch.tanh(" in str(found.forward) and "activation.py" in str(found.forward)
    assert "torch.matmul(" in str(found.backward[0])
    assert all(str(part) in str(found) for part in (found.captured, found.forward, *found.backward))


def test_each_graph_is_an_fx_module_that_torchs_tools_take():
    _, compiled = trained()
    (found,) = framefuse.graphs(compiled)
    for graph in (found.captured, found.forward, *found.backward):
        assert isinstance(graph.module, torch.fx.GraphModule)
        graph.module.graph.lint()
    again = torch.fx.symbolic_trace(found.forward.module)
    x, weight, bias = torch.randn(3, 4), torch.randn(3, 4), torch.randn(3)
    torch.testing.assert_close(again(x, weight, bias), found.forward(x, weight, bias))


def test_random_calls_numbers_and_breaks():
    def f(x, scale):
        y = torch.nn.functional.dropout(x * scale, 0.5)
        framefuse.graph_break()
        return torch.cat([y, y[: x.shape[0] // 2]]).sum(0)

    compiled = framefuse.compile(f)
    for scale in (0.5, 1.5):
        compiled(torch.randn(4, 3), scale)
    first, second = framefuse.graphs(compiled)
    names = [node.name for node in first.forward.module.graph.nodes if node.op == "placeholder"]
    assert len(names) == 2  # the tensor and the number
    x = torch.randn(6, 3)
    torch.manual_seed(1)
    (found,) = first.forward(x, 2.0)
    torch.manual_seed(1)
    torch.testing.assert_close(found, torch.nn.functional.dropout(x * 2.0, 0.5))
    assert not first.backward and "cat" in str(second.captured)


def test_what_is_not_compiled_has_no_graphs():
    with pytest.raises(framefuse.UserError, match="has no graphs"):
        framefuse.graphs(len)
    assert framefuse.graphs(framefuse.compile(lambda x: x)) == []
