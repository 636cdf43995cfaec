"""Backends in training: ours that leave out a stage train as eager does, and a user's takes part in autograd."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import framefuse
from framefuse.api import compiled_function


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.last = nn.Linear(6, 12), nn.LayerNorm(6), nn.Linear(12, 6)

    def forward(self, x):
        return x + self.last(F.dropout(F.gelu(self.first(self.norm(x))), 0.25, self.training))


def trained(model, call, sizes):
    """Outputs and gradients of steps that draw the same random numbers each time."""
    found = []
    for turn, rows in enumerate(sizes):
        torch.manual_seed(turn)
        x = torch.randn(rows, 6, requires_grad=True)
        model.zero_grad()
        out = call(x)
        out.square().sum().backward()
        found += [out.detach(), x.grad, *(one.grad.clone() for one in model.parameters())]
    return found


def aot_backend(made):
    """Torch's own backend of two compilers, which keeps the graphs that these get."""
    from functorch.compile import make_boxed_func
    from torch._dynamo.backends.common import aot_autograd

    def keeping(name):
        def compiler(gm, examples):
            made.append((name, gm))
            return make_boxed_func(gm.forward)

        return compiler

    return aot_autograd(fw_compiler=keeping("fw"), bw_compiler=keeping("bw"))


def hits(compiled):
    return compiled_function(compiled).dispatch.hits


@pytest.mark.parametrize("backend", ["native", "python", "aot_eager", "eager"])
def test_each_backend_of_ours_trains_as_eager_does(backend):
    model = Block()
    compiled = framefuse.compile(model, backend=backend)
    torch.testing.assert_close(trained(model, compiled, (2, 2, 5, 3)), trained(model, model, (2, 2, 5, 3)))
    assert hits(compiled) == 3
    (product,) = compiled_function(compiled).products
    cases = [case for derivative in product.stages.derivatives for case in derivative.cases]
    assert len(cases) == (0 if backend == "eager" else 1)
    codes = [made.stages.code for made in (product, *cases)]
    kernels = [] if backend == "eager" else [kernel for code in codes for kernel in code.kernels.values()]
    assert {type(kernel).__name__ for kernel in kernels} == {
        "native": {"NativeCode"}, "python": {"PythonCode"}, "aot_eager": set(), "eager": set()
    }[backend]  # fmt: skip


def test_a_callable_is_called_in_training_with_tensors_that_require_grad():
    seen = []

    def mine(gm, examples):
        assert isinstance(gm, torch.fx.GraphModule)
        seen.append(([tuple(one.shape) for one in examples], [one.requires_grad for one in examples]))
        return gm.forward

    model = Block().eval()
    compiled = framefuse.compile(model, backend=mine)
    torch.testing.assert_close(trained(model, compiled, (2, 2, 3, 3)), trained(model, model, (2, 2, 3, 3)))
    assert [shapes[0] for shapes, _ in seen] == [(2, 6), (3, 6)]  # a graph for each size, hit once each
    assert all(all(asking) and len(asking) == 7 for _, asking in seen)
    assert hits(compiled) == 2


def test_aot_autograd_of_torch_gets_forward_and_backward_graphs():
    made = []

    model = Block().eval()
    compiled = framefuse.compile(model, backend=aot_backend(made))
    torch.testing.assert_close(trained(model, compiled, (2, 2, 2)), trained(model, model, (2, 2, 2)))
    assert [name for name, _ in made] == ["fw", "bw"]
    targets = {name: {str(node.target) for node in gm.graph.nodes} for name, gm in made}
    assert "aten.native_layer_norm.default" in targets["fw"]
    assert "aten.native_layer_norm_backward.default" in targets["bw"]
    assert hits(compiled) == 2


def test_a_backend_whose_results_have_no_gradients_is_not_used(caplog):
    def forgetful(gm, examples):
        return lambda *args: tuple(part.detach() for part in gm(*args))

    model = Block().eval()
    compiled = framefuse.compile(model, backend=forgetful)
    torch.testing.assert_close(trained(model, compiled, (2, 2, 2)), trained(model, model, (2, 2, 2)))
    assert sum("does not require grad" in record.getMessage() for record in caplog.records) == 1


def test_a_tracked_write_to_an_argument_stays_eager_under_another_backend():
    weight = torch.randn(4, requires_grad=True)

    def f(x):
        x.mul_(weight)
        return x.sum()

    compiled = framefuse.compile(f, backend="eager")
    for seed in range(3):
        torch.manual_seed(seed)
        x, y = (torch.ones(4) * (seed + 1) for _ in range(2))
        weight.grad = None
        compiled(x).backward()
        found, weight.grad = weight.grad, None
        f(y).backward()
        torch.testing.assert_close((x, found), (y, weight.grad))
    assert hits(compiled) == 0


def test_modes_and_updates_inside_a_step():
    """What a program does without gradients, or to parameters, is the same under another backend."""
    weight = torch.randn(4, requires_grad=True)

    def f(x):
        with torch.no_grad():
            scale = (x * weight).sum()
        return (x * weight).relu() * scale, x.detach() * 2

    for backend in ("eager", "aot_eager", "python"):
        compiled = framefuse.compile(f, backend=backend)
        for _ in range(3):
            x = torch.randn(4)
            weight.grad = None
            out, other = compiled(x)
            out.sum().backward()
            found, weight.grad = weight.grad, None
            expected, rest = f(x)
            expected.sum().backward()
            torch.testing.assert_close((out, other, found), (expected, rest, weight.grad))
            assert not other.requires_grad
        assert hits(compiled) == 2


def whole_steps(backend, kind, turns=5):
    """Losses and parameters of whole steps of training in one compiled function, and how many calls ran its code."""
    torch.manual_seed(7)
    model = Block().eval()
    optimizer = getattr(torch.optim, kind)(model.parameters(), lr=0.01)

    def step(x, scale):
        optimizer.zero_grad()
        loss = (model(x).square().mean() * scale).log1p()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach(), loss.item() + 1

    call = step if backend is None else framefuse.compile(step, backend=backend)
    found = []
    for turn in range(turns):
        torch.manual_seed(turn)
        found.append(call(torch.randn(3, 6), 2.0))
    return [found, *(one.detach() for one in model.parameters())], 0 if backend is None else hits(call)


@pytest.mark.parametrize("kind", ["SGD", "AdamW"])
@pytest.mark.parametrize("backend", ["eager", "aot", "plain"])
def test_a_whole_step_of_training_has_its_graphs(backend, kind):
    made = []

    def plain(gm, examples):
        made.append(("plain", gm))
        return gm.forward

    chosen = {"aot": aot_backend(made), "plain": plain}
    found, count = whole_steps(chosen.get(backend, backend), kind)
    torch.testing.assert_close(found, whole_steps(None, kind)[0])
    assert count >= 2
    names = {name for name, _ in made}
    assert names == {"eager": set(), "aot": {"fw", "bw"}, "plain": {"plain"}}[backend]


def test_parameters_have_the_names_under_which_they_are_saved():
    names = []

    def mine(gm, examples):
        names.extend(node.name for node in gm.graph.nodes if node.op == "placeholder")
        return gm.forward

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.kept = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)), {"_parameters": torch.ones(3)}
            self.kept_ = torch.ones(3)

        def forward(self, x):
            return self.inner(x) * self.kept["_parameters"] + self.kept_

    compiled, x = framefuse.compile(Two(), backend=mine), torch.randn(4, 3)
    for _ in range(3):
        compiled(x)
    assert "two_inner_0_weight" in names and "two_inner_1_running_mean" in names
    assert len(set(names)) == len(names) and hits(compiled) == 2


OPTIMIZERS = {
    "AdamW": lambda given: torch.optim.AdamW(given, lr=0.1),
    "AdamW foreach": lambda given: torch.optim.AdamW(given, lr=0.1, foreach=True),
    "NAdam": lambda given: torch.optim.NAdam(given, lr=0.1),
    "SGD": lambda given: torch.optim.SGD(given, lr=0.1, momentum=0.9),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_users_backend_compiles_no_step_for_its_number(name):
    nets, made = [], []
    for compiled in (True, False):
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(6, 4), nn.Tanh(), nn.Linear(4, 3))
        optimizer = OPTIMIZERS[name](net.parameters())
        scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

        def step(x, net=net, optimizer=optimizer):
            optimizer.zero_grad()
            net(x).square().mean().backward()
            optimizer.step()

        nets.append((net, framefuse.compile(step, backend=aot_backend(made)) if compiled else step, scheduler))
    counts = []
    for turn in range(9):
        for _, step, scheduler in nets:
            step(torch.randn(2, 6, generator=torch.Generator().manual_seed(turn)))
            scheduler.step()
        counts.append(len(made))
    assert counts[-1] == counts[3] <= 5, counts
    torch.testing.assert_close(*([*net.parameters()] for net, _, _ in nets))


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("numbers", [(0.1, 0.2, 0.3), (1, 2, 3)])
def test_what_torchs_backends_make_holds_no_number_of_another_call(numbers, dynamic):
    compiled = framefuse.compile(lambda x, r: x * r * x.shape[0], backend=aot_backend([]), dynamic=dynamic)
    for rows, rate in enumerate(numbers, 2):
        for _ in range(2):
            torch.testing.assert_close(compiled(torch.ones(rows), rate), torch.ones(rows) * rate * rows)


@pytest.mark.parametrize(
    ("function", "x"),
    [
        (lambda x, r: (x * r).add(x, alpha=r).sub(x, alpha=2 * r) / r + r - x.pow(r) + (r - x) + r / x, [1.0, 2.0]),
        (lambda x, r: torch.addcmul(x, x, x, value=r).addcdiv_(x, x + 1, value=-r).mul_(r), [1.0, 2.0]),
        (lambda x, r: x * r, [1, 2]),
        (lambda x, r: (x * r).sum() * r, [1.0, 2.0]),
        (lambda x, r: x.clamp(r, 1 - r) * r, [0.1, 0.7]),
        (lambda x, r: x * r if r > 0.25 else x + r, [0.1, 0.7]),
        (lambda x, r: x[: int(r * 10)] * r, [0.1, 0.7, 1.0, 2.0, 3.0]),
        (lambda x, r: (torch.full((2,), r), x.sum() / r, r * 2), [0.1, 0.7]),
    ],
)
def test_a_users_backend_gets_floats_that_change_as_tensors_or_not_at_all(function, x):
    made = []
    compiled = framefuse.compile(function, backend=aot_backend(made))
    for rate in (0.1, 0.2, 0.3, 0.45):
        for _ in range(2):
            given = torch.tensor(x)
            torch.testing.assert_close(compiled(given, rate), function(torch.tensor(x), rate))
    assert len(made) <= 3 and hits(compiled) >= 3
