"""The public interface: what compile accepts, what it gives back, and that a compiled module stays what it was."""

import copy
import functools
import inspect
import io
import pickle
import re
import types
import warnings
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.attention.flex_attention import flex_attention

import framefuse
from framefuse.api import compiled_function
from framefuse.driver import passes, tree


class Net(nn.Module):
    """Two layers and a setting that decides control flow."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.second = nn.Linear(16, 4)
        self.double = False

    def forward(self, x):
        y = self.second(torch.relu(self.first(x)))
        return y * 2 if self.double else y


def chain(x):
    """A chain of light operations."""
    return (torch.sin(x + 0.1) * 1.5).relu()


def hits(compiled) -> int:
    return compiled_function(compiled).dispatch.hits


@pytest.fixture
def net():
    return Net().eval()


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


def test_function_call_decorator_and_decorator_with_arguments():
    x = torch.randn(4, 8)

    @framefuse.compile
    def plain(x):
        return chain(x)

    @framefuse.compile(dynamic=False)
    def static(x):
        return chain(x)

    for compiled in (framefuse.compile(chain), plain, static):
        for _ in range(3):
            torch.testing.assert_close(compiled(x), chain(x))
        assert hits(compiled) == 2, compiled_function(compiled).reasons
    assert framefuse.compile(chain).__name__ == "chain"
    assert framefuse.compile(chain).__doc__ == chain.__doc__


def test_methods_bound_to_an_instance_and_in_a_class_body():
    class Scale:
        def __init__(self, factor):
            self.factor = factor

        def apply(self, x):
            return x * self.factor + 1

        @framefuse.compile
        def compiled(self, x):
            return x * self.factor - 1

        def __call__(self, x):
            return x * self.factor

    scale, x = Scale(3.0), torch.randn(5)
    bound = framefuse.compile(scale.apply)
    called = framefuse.compile(scale)
    for _ in range(3):
        torch.testing.assert_close(bound(x), x * 3 + 1)
        torch.testing.assert_close(scale.compiled(x), x * 3 - 1)
        torch.testing.assert_close(called(x), x * 3)
    scale.factor = 4.0
    torch.testing.assert_close(bound(x), x * 4 + 1)
    torch.testing.assert_close(called(x), x * 4)
    torch.testing.assert_close(Scale(5.0).compiled(x), x * 5 - 1)


def test_a_partial_and_a_bound_method_of_a_compiled_function_are_looked_at_as_it_is():
    class Model:
        scale = 3

        @framefuse.compile
        def forward(self, x):
            return x.relu() * self.scale

    model, x = Model(), torch.randn(4)
    for bound in (model.forward, functools.partial(Model.forward, model)):
        for _ in range(3):
            bound(x)
        assert "call     graph 1" in str(framefuse.explain(bound, x))
        assert len(framefuse.graphs(bound)) == 1
        assert framefuse.verify(bound, x)
        with framefuse.assert_compiles(0, bound):
            bound(x)


def test_the_steps_that_lightnings_loop_calls_are_compiled_with_the_module():
    base = type("LightningModule", (torch.nn.Module,), {"__module__": "lightning.core", "test_step": lambda self: None})

    class Net(base):
        def __init__(self):
            super().__init__()
            self.net = torch.nn.Linear(4, 2)

        def training_step(self, batch, index):
            return self.net(batch).square().mean()

    model = framefuse.compile(Net())
    twin = copy.deepcopy(model)
    for _ in range(4):
        x = torch.randn(8, 4)
        losses = [each.training_step(x, 0) for each in (model, twin)]
        torch.testing.assert_close(losses, [model.net(x).square().mean()] * 2)
    assert type(model).test_step is base.test_step
    assert "see explain(model.training_step)" in str(framefuse.explain(model))
    assert all(each.training_step.__framefuse__.dispatch.hits == 3 for each in (model, twin))
    assert "Net.training_step" in str(framefuse.explain(model.training_step))


def test_a_compiled_module_is_its_module(net):
    fast = framefuse.compile(net)
    x = torch.randn(3, 8)
    for _ in range(3):
        torch.testing.assert_close(fast(x), net(x))
    assert hits(fast) == 2, compiled_function(fast).reasons
    assert isinstance(fast, Net)
    assert type(fast).__name__ == "Net"
    assert list(fast.state_dict()) == list(net.state_dict())
    assert [name for name, _ in fast.named_parameters()] == [name for name, _ in net.named_parameters()]
    assert fast.first is net.first
    fast.train()
    assert net.training
    assert net.first.training
    fast.eval()
    fast.second = nn.Linear(16, 2)
    assert net.second is fast.second
    assert fast(x).shape == (3, 2)
    fast.double = True
    torch.testing.assert_close(fast(x), net(x))
    fast.load_state_dict({name: torch.zeros_like(value) for name, value in net.state_dict().items()})
    torch.testing.assert_close(fast(x), torch.zeros(3, 2))
    assert "Net(" in repr(fast)


def test_copies_and_pickles_of_a_compiled_module_are_compiled_and_apart(net):
    fast = framefuse.compile(net, dynamic=False)
    x = torch.randn(3, 8)
    fast(x)
    buffer = io.BytesIO()
    torch.save(fast, buffer)
    buffer.seek(0)
    others = [copy.deepcopy(fast), pickle.loads(pickle.dumps(fast)), torch.load(buffer, weights_only=False)]
    for other in others:
        assert isinstance(other, Net)
        assert compiled_function(other) is not compiled_function(fast)
        assert compiled_function(other).options.dynamic is False
        torch.testing.assert_close(other(x), net(x))
        other.first.weight.data.zero_()
        torch.testing.assert_close(other(x), other.second(torch.relu(other.first(x))))
        assert net.first.weight.abs().sum() > 0


def test_hooks_and_replaced_methods_are_seen(net):
    fast = framefuse.compile(net)
    x = torch.randn(3, 8)
    fast(x), fast(x)
    handle = net.first.register_forward_hook(lambda module, args, out: out * 0)
    torch.testing.assert_close(fast(x), net(x))
    handle.remove()
    torch.testing.assert_close(fast(x), net(x))
    net.second.forward = lambda y: y.sum()
    torch.testing.assert_close(fast(x), net(x))


def test_wrong_arguments_name_the_choices(net):
    for arguments in ({"backend": "inductor9"}, {"mode": "quick"}, {"options": {"nothing": 1}}, {"backend": 3}):
        with pytest.raises(framefuse.UserError, match=r"Choose|Give"):
            framefuse.compile(net, **arguments)
    with pytest.raises(framefuse.UserError, match="callable"):
        framefuse.compile(3)
    with pytest.raises(framefuse.UserError, match="compiled by framefuse"):
        framefuse.explain(chain)


def test_disable_returns_the_model_itself(net):
    assert framefuse.compile(net, disable=True) is net
    fast = framefuse.compile(chain)
    assert framefuse.disable(fast) is chain


def test_a_disabled_function_runs_eagerly():
    seen = []

    @framefuse.disable
    def eager(x):
        seen.append(framefuse.is_compiling())
        return x + 1

    @framefuse.compile
    def f(x):
        return eager(x) * 2

    x = torch.randn(4)
    for _ in range(3):
        torch.testing.assert_close(f(x), (x + 1) * 2)
    assert len(seen) == 3


def test_is_compiling_while_recording_only():
    seen = []

    @framefuse.compile
    def f(x):
        if torch.compiler.is_compiling() and framefuse.is_compiling():
            return x + 1
        return x - 1

    x = torch.zeros(3)
    assert not framefuse.is_compiling()
    seen = [f(x) for _ in range(3)]
    assert all(torch.equal(value, x + 1) for value in seen)
    assert not torch.compiler.is_compiling()


def test_backends():
    assert {"native", "eager"} <= set(framefuse.list_backends())
    graphs = []

    @framefuse.register_backend(name="recorder")
    def recorder(gm, example_inputs):
        assert all(isinstance(value, torch.Tensor) for value in example_inputs)
        graphs.append(gm)
        return gm.forward

    x = torch.randn(4, 8)
    for backend, dynamic, made in (("eager", None, 0), ("recorder", True, 1), (recorder, True, 1), (recorder, None, 2)):
        graphs.clear()
        compiled = framefuse.compile(chain, backend=backend, dynamic=dynamic)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), chain(x))
        torch.testing.assert_close(compiled(x[:2]), chain(x[:2]))
        assert len(graphs) == made
        assert hits(compiled) == (2 if made == 2 else 3)  # a user's backend may go by the sizes of its examples
    assert "recorder" in framefuse.list_backends()
    targets = [node.target for node in graphs[0].graph.nodes if node.op != "placeholder"]
    assert torch.sin in targets
    assert "relu" in targets


def test_reset_drops_compiled_code():
    compiled = framefuse.compile(chain)
    x = torch.randn(4)
    compiled(x), compiled(x)
    state = compiled_function(compiled)
    assert len(state.products) == 1
    framefuse.reset()
    assert not state.products
    torch.testing.assert_close(compiled(x), chain(x))
    assert len(state.products) == 1


def test_explain_answers_on_one_screen(net):
    fast = framefuse.compile(net)
    x = torch.randn(3, 8)
    before = str(framefuse.explain(fast))
    assert "not been called" in before
    fast(x), fast(x)
    report = framefuse.explain(fast, x, time=True)
    text = str(report)
    assert "1 graph" in text
    assert "compile" in text
    assert len(text.splitlines()) <= 24
    assert report.timing is not None
    assert 0 < report.timing.guards < 1e-3 and report.timing.words > 5 and report.timing.dicts > 5
    assert f"{report.timing.words} words and {report.timing.dicts} dicts compared" in text

    @framefuse.compile
    def stopped(x):
        return x + 1 if x.sum().item() > 0 else x - 1

    stopped(x)
    text = str(framefuse.explain(stopped))
    assert "test_api.py" in text
    assert "item" in text


def test_nothing_keeps_inputs_or_modules_alive():
    compiled = framefuse.compile(chain)
    x = torch.randn(4)
    for _ in range(3):
        y = compiled(x)
    gone = [weakref.ref(x), weakref.ref(y)]
    del x, y
    assert [ref() for ref in gone] == [None, None]

    import gc

    module = Net().eval()
    fast = framefuse.compile(module)
    fast(torch.randn(2, 8)), fast(torch.randn(2, 8))
    dead = weakref.ref(module.first.weight)
    del module, fast
    gc.collect()
    assert dead() is None


def test_fullgraph_raises_where_a_call_would_stay_eager():
    @framefuse.compile(fullgraph=True)
    def f(x):
        return x + 1 if x.sum() > 0 else x - 1

    with pytest.raises(framefuse.UserError, match=r"test_api.py") as caught:
        f(torch.ones(3))
    assert "torch.where" in str(caught.value)


def test_a_backend_that_fails_is_named():
    def broken(gm, example_inputs):
        raise ValueError("no such target")

    with pytest.raises(framefuse.UserError, match=r"broken raised ValueError: no such target"):
        framefuse.compile(chain, backend=broken)(torch.ones(3))


def test_a_fault_of_ours_leaves_the_call_right_and_is_logged_once(monkeypatch, caplog):
    def fail(trace, options):
        raise IndexError("a slip")

    monkeypatch.setenv("FRAMEFUSE_CHECK", "0")
    broken = tree.compiler((passes.Pass("lower", fail, "graph"),))
    monkeypatch.setattr("framefuse.backends.registry.own", lambda name: broken)
    compiled = framefuse.compile(chain)
    x = torch.randn(4)
    for _ in range(3):
        torch.testing.assert_close(compiled(x), chain(x))
    messages = [record.getMessage() for record in caplog.records if record.name == "framefuse"]
    assert len(messages) == 1
    assert "test_api.py" in messages[0]
    assert "a slip" in messages[0]


def offset(score, batch, head, query, key):
    return score + (query - key) * 0.1


@pytest.mark.parametrize(
    ("function", "sizes", "keywords"),
    [
        (flex_attention, ((1, 2, 16, 8),) * 3, {"score_mod": offset}),
        (F.normalize, ((5, 7),), {"dim": 0}),
        (F.layer_norm, ((5, 7),), {"normalized_shape": (7,), "eps": 1e-3}),
        (F.mse_loss, ((5, 7), (5, 7)), {"reduction": "sum"}),
        (F.max_pool2d, ((2, 3, 8, 8),), {"kernel_size": 2}),
        (torch.cdist, ((5, 3), (4, 3)), {}),
        (torch.softmax, ((5, 7),), {"dim": -1}),
        (torch.exp, ((5, 7),), {}),
        (F.gelu, ((5, 7),), {"approximate": "tanh"}),
        (F.scaled_dot_product_attention, ((1, 2, 16, 8),) * 3, {"is_causal": True}),
        (torch.linalg.vector_norm, ((5, 7),), {"dim": 0}),
        (torch.fft.rfft, ((5, 8),), {}),
        (torch.special.expit, ((5, 7),), {}),
        (torch.Tensor.softmax, ((5, 7),), {"dim": 0}),
        (torch.ops.aten.gelu, ((5, 7),), {}),
        (torch.ops.aten.add.Tensor, ((5, 7), (7,)), {"alpha": 2}),
    ],
    ids=lambda part: getattr(part, "__name__", None),
)
def test_functions_of_torch_are_compiled_alone(function, sizes, keywords):
    fast = framefuse.compile(function)
    for _ in range(3):
        given = [torch.randn(size) for size in sizes]
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # eager flex_attention says that it is slow
            torch.testing.assert_close(fast(*given, **keywords), function(*given, **keywords))
    state = compiled_function(fast)
    assert state.dispatch.hits == 2 and state.function.__name__ == function.__name__
    report = framefuse.explain(fast)
    assert not report.breaks and len(report.graphs) == 1 and str(report).startswith(function.__name__)
    if isinstance(function, types.FunctionType):
        assert inspect.signature(fast) == inspect.signature(function)


def test_functions_of_torch_that_draw_write_or_take_gradients_alone():
    x = torch.randn(4, 5)
    draw, write, act = (framefuse.compile(f) for f in (torch.bernoulli, torch.Tensor.add_, F.silu))
    for seed in range(3):
        torch.manual_seed(seed)
        expected = torch.bernoulli(x.sigmoid())
        torch.manual_seed(seed)
        assert torch.equal(draw(x.sigmoid()), expected)
        y, z = torch.randn(4, 5), torch.randn(5, requires_grad=True)
        assert write(given := y.clone(), 2) is given and torch.equal(given, y + 2)
        with torch.enable_grad():
            act(z).sum().backward()
            torch.testing.assert_close(z.grad, torch.autograd.grad(F.silu(z).sum(), z)[0])


def test_builtins_that_are_none_of_torch_stay_what_they_are():
    x = torch.ones(2)
    assert framefuse.compile(len) is len and (add := x.add) is framefuse.compile(add)


def test_wrong_arguments_of_a_function_of_torch_are_its_own_error():
    with pytest.raises(TypeError) as eager:
        F.layer_norm(torch.randn(3), sizes=(3,))
    with pytest.raises(TypeError, match=re.escape(str(eager.value))):
        framefuse.compile(F.layer_norm)(torch.randn(3), sizes=(3,))


def test_what_a_decorator_of_torch_made_is_the_users():
    @torch.no_grad()
    def f(x):
        return x * 2

    assert compiled_function(framefuse.compile(f)).function is f
