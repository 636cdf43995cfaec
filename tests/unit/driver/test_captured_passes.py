"""Passes of users over captured graphs: what they give is recorded in the place of the trace, checked and run."""

import operator
from collections.abc import Callable

import pytest
import torch

import framefuse
from framefuse.errors import UserError
from framefuse.runtime.function import compiled_function

F = torch.nn.functional


def changing(target: Callable, change: Callable) -> Callable:
    """A pass that does something to each node that calls ``target``."""

    def run(gm: torch.fx.GraphModule) -> None:
        for node in list(gm.graph.nodes):
            if node.target is target:
                change(gm, node)

    return run


def as_product(gm, node):
    x, weight, bias = node.args
    with gm.graph.inserting_before(node):
        product = gm.graph.call_function(torch.matmul, (x, gm.graph.call_method("t", (weight,))))
        node.replace_all_uses_with(gm.graph.call_function(operator.add, (product, bias)))
    gm.graph.erase_node(node)


class Net(torch.nn.Module):
    """Sizes and numbers of a run, an effect, a view among the results."""

    def __init__(self):
        super().__init__()
        self.inner, self.norm = torch.nn.Linear(6, 8), torch.nn.BatchNorm1d(8)
        self.calls = 0

    def forward(self, x, scale):
        self.calls += 1
        self.last = self.norm(self.inner(x) * scale)
        folded = F.gelu(self.last.reshape(x.shape[0] * 2, -1))
        return folded.sum(-1), x.shape[0], folded[:1], x


def fresh() -> tuple[Net, Net]:
    torch.manual_seed(0)
    net, twin = Net(), Net()
    twin.load_state_dict(net.state_dict())
    return net, twin


@pytest.mark.parametrize("backend", ["native", "aot_eager"])
def test_what_a_pass_gives_is_compiled_with_sizes_numbers_effects_and_gradients(backend):
    net, twin = fresh()
    with framefuse.register_pass("captured", changing(torch._C._nn.linear, as_product)):
        fast = framefuse.compile(net, backend=backend)
        for n, scale in ((4, 0.5), (7, 1.5), (9, 2.0)):
            x = torch.randn(n, 6, requires_grad=True)
            given, expected = fast(x, scale), twin(x, scale)
            assert given[1] == expected[1] and given[3] is x and net.calls == twin.calls
            torch.testing.assert_close(
                [given[0], given[2], net.last, *net.buffers()], [expected[0], expected[2], twin.last, *twin.buffers()]
            )
            grads = [torch.autograd.grad(out[0].sum() + out[2].sum(), x)[0] for out in (given, expected)]
            torch.testing.assert_close(*grads)
    state = compiled_function(fast)
    assert len(state.products) == 1 and state.dispatch.hits == 2
    assert "linear" not in str(framefuse.graphs(fast)[0].captured)
    assert {call.line.file for call in state.products[0].stages.trace.calls} == {__file__}


def test_a_checked_pass_may_change_no_number_and_an_unchecked_one_may():
    def approximate(gm, node):
        node.kwargs = {"approximate": "tanh"}

    slip = changing(torch._C._nn.gelu, approximate)
    with framefuse.register_pass("captured", slip, name="slip"):
        with pytest.raises(UserError, match="the pass 'slip' changes what the program computes: output 0"):
            framefuse.compile(lambda x: F.gelu(x))(torch.randn(20))
    with framefuse.register_pass("captured", slip, check=False):
        fast = framefuse.compile(lambda x: F.gelu(x), options={"check": False})
        fast(torch.randn(20))
        x = torch.randn(30)
        torch.testing.assert_close(fast(x), F.gelu(x, approximate="tanh"))


def test_gradients_are_compared_too():
    def without_history(gm, node):
        with gm.graph.inserting_before(node):
            node.args = (gm.graph.call_method("detach", node.args),)

    with framefuse.register_pass("captured", changing(torch.exp, without_history), name="cut"):
        with pytest.raises(UserError, match="the pass 'cut' changes what the program computes: gradient 0"):
            framefuse.compile(lambda x: torch.exp(x) + x)(torch.randn(5, requires_grad=True))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda gm: 3, "gave an int"),
        (lambda gm: 1 / 0, "raised ZeroDivisionError"),
        (lambda gm: gm.graph.placeholder("more") and None, "gave other inputs"),
        (changing(torch.sin, lambda gm, node: setattr(node, "target", torch.sum)), "gave output 0 as torch.float32"),
        (changing(torch.sin, lambda gm, node: setattr(node, "target", torch.linalg.inv)), "gave raised"),
    ],
)
def test_a_graph_that_does_not_fit_is_an_error_that_names_the_pass(change, text):
    with framefuse.register_pass("captured", change, name="wrong", check=False):
        with pytest.raises(UserError, match=f"the pass 'wrong' {text}"):
            framefuse.compile(lambda x: torch.sin(x))(torch.randn(3))


def test_before_and_after_are_written(tmp_path):
    net, _ = fresh()
    with framefuse.register_pass("captured", changing(torch._C._nn.linear, as_product), name="products"):
        framefuse.compile(net, options={"report": str(tmp_path)})(torch.randn(4, 6), 0.5)
    (text,) = [path.read_text() for path in tmp_path.rglob("3_pass_01_products.txt")]
    before, after = text.split("# after")
    assert "linear(" in before and "linear(" not in after and "matmul(" in after


def test_tools_of_torch_find_operators_as_they_are_written():
    def twice(gm):
        torch.fx.replace_pattern(gm, lambda x, y: 1 / (x + y), lambda x, y: torch.reciprocal(x + y))

    with framefuse.register_pass("captured", twice):
        fast = framefuse.compile(lambda x, y: 1 / (x + y) - y)
        for n in (3, 5):
            x, y = torch.rand(2, n)
            torch.testing.assert_close(fast(x, y), 1 / (x + y) - y)
    assert "torch.reciprocal" in str(framefuse.graphs(fast)[0].captured)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 3


def test_random_numbers_are_eagers_and_custom_autograd_functions_are_left_alone():
    inner = torch.nn.Linear(4, 4)
    for f in (lambda x: F.dropout(inner(x)).tanh(), lambda x: Doubled.apply(inner(x)).tanh()):
        with framefuse.register_pass("captured", changing(torch._C._nn.linear, as_product)):
            fast = framefuse.compile(f)
            for n in (2, 3, 5):
                sides = []
                x = torch.randn(n, 4)
                for each in (fast, f):
                    torch.manual_seed(n)
                    result = each(x)
                    sides.append([result, *torch.autograd.grad(result.sum(), inner.weight)])
                torch.testing.assert_close(*sides)
