"""Values kept of weights (``options={"freeze": True}``): results are eager's whatever happens to weights between."""

import copy
import gc
import weakref

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import framefuse
from framefuse.ir import costs

DEVICE = "cpu"


@pytest.fixture(autouse=True)
def small_ones_are_packed(monkeypatch):
    for name in ("PACKED_POINTS", "PACKED_WINDOWS", "PACKED_PRODUCT"):
        monkeypatch.setattr(costs, name, 0)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(32)
        self.wide, self.back = nn.Linear(32, 96), nn.Linear(32, 32)
        self.register_buffer("table", torch.randn(32))

    def forward(self, x):
        q, k, v = self.wide(self.norm(x) + self.table.sin()).chunk(3, -1)
        return self.back(F.scaled_dot_product_attention(q, k, v)) + x


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(8, 8, 3, padding=1, bias=False), nn.Conv2d(8, 8, 1)
        self.norms = nn.ModuleList([nn.BatchNorm2d(8), nn.BatchNorm2d(8, affine=False)])

    def forward(self, x):
        first = self.norms[0](self.one(x))
        return F.relu(first + self.norms[1](self.two(x))), first.mean((2, 3))


class Shared(nn.Module):
    """One convolution read twice, once behind a norm, and a weight that is a result."""

    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(8, 8, 3, padding=1, groups=2), nn.BatchNorm2d(8)

    def forward(self, x):
        y = self.conv(x)
        return self.norm(y) + y, self.conv.weight.exp(), self.norm.running_var.view(2, 4)


class Turned(nn.Module):
    """Weights through a norm of their own, and a transposed convolution."""

    def __init__(self):
        super().__init__()
        self.line = nn.utils.parametrizations.weight_norm(nn.Conv1d(8, 8, 3, padding=1))
        self.up, self.norm = nn.ConvTranspose2d(8, 4, 2, stride=2), nn.BatchNorm2d(4)

    def forward(self, x):
        return self.norm(self.up(x)), self.line(x.flatten(2)) * self.line.bias.softmax(0)[:, None]


def pictures(*sizes):
    x = torch.randn(*sizes, device=DEVICE)
    return x.to(memory_format=torch.channels_last) if len(sizes) == 4 and sizes[0] % 2 else x


NETS = {
    "attention": (Attention, lambda n: torch.randn(n, 5, 32, device=DEVICE)),
    "residual": (Residual, lambda n: pictures(n, 8, 9, 9)),
    "shared": (Shared, lambda n: pictures(n, 8, 6, 6)),
    "turned": (Turned, lambda n: pictures(n, 8, 6, 6)),
    "large": (lambda: nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)),
              lambda n: torch.randn(40 + n, 256, device=DEVICE)),
    "stem": (lambda: nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.SiLU(), nn.Flatten()),
             lambda n: pictures(n, 3, 16, 16)),
}  # fmt: skip


def stepped(model, x):
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    torch.optim.SGD(model.parameters(), 0.1).step()


def loaded(model, x):
    model.load_state_dict({name: value * 1.5 for name, value in model.state_dict().items()})


def copied(model, x):
    with torch.no_grad():
        for value in (*model.parameters(), *model.buffers()):
            value.copy_(value * 1.25)


def given(model, x):
    for parameter in model.parameters():
        parameter.data = parameter.data * 1.25


def twice(model, x):
    """The second data may come to lie where the first lay."""
    for parameter in model.parameters():
        other = parameter.data * 1.25
        parameter.data = torch.empty(0, dtype=parameter.dtype, device=parameter.device)
        parameter.data = other


def replaced(model, x):
    for module in model.modules():
        for name, parameter in tuple(module._parameters.items()):
            if parameter is not None:
                module._parameters[name] = nn.Parameter(parameter.detach() * 1.25)


def seen(model, x):
    """Statistics move in training."""
    model.train()
    with torch.no_grad():
        model(x)
    model.eval()


def hidden(model, x):
    for parameter in model.parameters():
        parameter.data.mul_(1.25)
    framefuse.refresh(model)


CHANGES = (stepped, loaded, copied, given, twice, replaced, seen, hidden)


def made(name):
    torch.manual_seed(0)
    make, inputs = NETS[name]
    model = make().to(DEVICE).eval()
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            if module.affine:
                nn.init.normal_(module.weight), nn.init.normal_(module.bias)
    return model, inputs


def same(found, expected):
    for one, other in zip(*((value if isinstance(value, tuple) else (value,)) for value in (found, expected))):
        assert (one.dtype, one.stride(), one.requires_grad) == (other.dtype, other.stride(), other.requires_grad)
        torch.testing.assert_close(one, other, rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", NETS)
def test_results_are_those_of_the_weights_of_now(name, change):
    model, inputs = made(name)
    fast = framefuse.compile(model, options={"freeze": True})
    with torch.no_grad():
        for batch in (2, 3, 2):
            x = inputs(batch)
            same(fast(x), model(x))
    before = sum(graph.derived.times for graph in framefuse.explain(fast).graphs if graph.derived)
    assert before > 0
    for batch in (2, 3):
        change(model, inputs(4))
        for _ in range(2):
            x = inputs(batch)
            with torch.no_grad():
                same(fast(x), model(x))
    assert framefuse.explain(fast).hits >= 3


@pytest.mark.parametrize("name", NETS)
def test_gradients_are_asked_of_the_same_function(name):
    model, inputs = made(name)
    fast = framefuse.compile(model, options={"freeze": True})
    for grad in (False, True, False, True, False, True):
        x = inputs(2)
        with torch.set_grad_enabled(grad):
            found, expected = fast(x), model(x)
        same(found, expected)
        if grad:
            values = (*model.parameters(),)
            losses = [sum(v.square().sum() for v in (r if isinstance(r, tuple) else (r,))) for r in (found, expected)]
            for one, other in zip(*(torch.autograd.grad(loss, values, allow_unused=True) for loss in losses)):
                torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["attention", "residual", "large", "stem"])
def test_other_dtypes(name, dtype):
    model, inputs = made(name)
    model = model.to(dtype)
    exact = copy.deepcopy(model).double()
    fast = framefuse.compile(model, options={"freeze": True})
    with torch.no_grad():
        for batch in (2, 2, 2):
            x = inputs(batch).to(dtype)
            results = [fast(x), model(x), exact(x.double())]
            found, eager, true = ((r if isinstance(r, tuple) else (r,)) for r in results)
            for one, other, reference in zip(found, eager, true):
                assert one.dtype is other.dtype
                own = (other.double() - reference).abs().max()
                assert (one.double() - reference).abs().max() <= 2 * own + 1e-9


def test_casts_under_autocast_are_kept():
    model, inputs = made("large")
    fast = framefuse.compile(model, options={"freeze": True})
    for change in (None, None, copied, None):
        if change is not None:
            change(model, None)  # outside of autocast, which keeps casts of its own as long as it is on
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16):
            x = inputs(2)
            torch.testing.assert_close(fast(x), model(x), rtol=2e-2, atol=2e-2)
    (graph,) = framefuse.explain(fast).graphs
    assert graph.derived.bytes >= 2 * 256 * 512 * 2 and graph.derived.times == 2


def test_layers_that_share_a_compiled_function_keep_their_own():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64)).to(DEVICE).eval() for _ in range(5)]
    for layer in layers:
        layer[1].running_mean.normal_()

    @framefuse.compile(options={"freeze": True})
    def run(layer, x):
        return F.linear(x, layer[0].weight.exp(), layer[0].bias.sin()) + layer[1].running_mean.cos()

    with torch.no_grad():
        for _ in range(4):
            for layer in layers:
                x = torch.randn(3, 64, device=DEVICE)
                expected = F.linear(x, layer[0].weight.exp(), layer[0].bias.sin()) + layer[1].running_mean.cos()
                torch.testing.assert_close(run(layer, x), expected)
    (graph,) = framefuse.explain(run).graphs
    assert graph.derived.times <= len(layers) and graph.derived.spared >= 2 * len(layers)


def test_buffers_that_the_program_writes_are_not_kept():
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.ones(16, device=DEVICE))

        def forward(self, x):
            self.seen.mul_(1.5)
            return x * self.seen.exp().log()

    model = Counting()
    twin = copy.deepcopy(model)
    fast = framefuse.compile(model, options={"freeze": True})
    with torch.no_grad():
        for _ in range(5):
            x = torch.randn(3, 16, device=DEVICE)
            torch.testing.assert_close(fast(x), twin(x))
    assert all(graph.derived is None for graph in framefuse.explain(fast).graphs)


def test_what_is_kept_goes_with_the_model():
    model, inputs = made("residual")
    fast = framefuse.compile(model, options={"freeze": True})
    with torch.no_grad():
        for _ in range(3):
            fast(inputs(2))
    gone = [weakref.ref(parameter) for parameter in model.parameters()]
    del model, fast
    gc.collect()
    assert all(reference() is None for reference in gone)


def test_a_model_made_under_inference_mode_counts_no_writes():
    with torch.inference_mode():
        model, inputs = made("stem")
        fast = framefuse.compile(model, options={"freeze": True})
        for _ in range(3):
            x = inputs(2)
            same(fast(x), model(x))
            for parameter in model.parameters():
                parameter.mul_(1.25)
        same(fast(x), model(x))


def test_what_a_copy_keeps_is_its_own():
    model, inputs = made("stem")
    fast = framefuse.compile(model, options={"freeze": True})
    with torch.no_grad():
        for _ in range(2):
            fast(inputs(2))
        other = copy.deepcopy(fast)
        copied(other, None)
        for _ in range(3):
            x = inputs(2)
            same(fast(x), model(x))
            with torch.no_grad():
                assert not torch.allclose(other(x), model(x))


def test_refresh_takes_modules():
    framefuse.refresh()
    with pytest.raises(framefuse.UserError, match="Give a module"):
        framefuse.refresh(torch.ones(3))


def test_pictures_of_other_kinds_after_the_recorded_one():
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(8, 16, 3, padding="same", dilation=2), nn.BatchNorm2d(16), nn.Conv2d(16, 30, 1, (2, 1))
    )
    model = model.to(DEVICE).eval()
    fast = framefuse.compile(model, options={"freeze": True})
    kinds = [
        pictures(2, 8, 9, 9), pictures(4, 8, 12, 9), pictures(2, 8, 9, 9).to(memory_format=torch.channels_last),
        pictures(2, 8, 18, 18)[:, :, ::2, ::2], pictures(2, 16, 9, 9)[:, ::2], pictures(2, 8, 9, 11).transpose(2, 3),
        pictures(1, 8, 9, 9).expand(4, 8, 9, 9), pictures(2, 1, 9, 9).expand(2, 8, 9, 9), pictures(2, 8, 1, 1),
        pictures(2, 8, 1, 1).to(memory_format=torch.channels_last), pictures(4, 8, 9, 9)[:0], pictures(4, 8, 9, 9)[1:],
    ]  # fmt: skip
    with torch.no_grad():
        for _ in range(3):
            for x in kinds:
                same(fast(x), model(x))
                fast(x).zero_()  # nobody else has the result


def test_checks_of_weights_raise_in_each_call():
    class Checked(nn.Module):
        def __init__(self):
            super().__init__()
            self.scale, self.rows = nn.Parameter(torch.ones(4)), nn.Parameter(torch.randn(5, 4))
            self.register_buffer("place", torch.tensor([1, 3]))

        def forward(self, x):
            torch._assert_async((self.scale.sin() > 0).all(), "negative")
            return x * self.scale.sin() + self.rows[self.place].exp()

    model = Checked().to(DEVICE)
    fast = framefuse.compile(model, options={"freeze": True})
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 4, device=DEVICE)
            torch.testing.assert_close(fast(x), model(x))
        model.scale.neg_()
        for _ in range(2):
            with pytest.raises(RuntimeError, match="negative"):
                fast(x)
        model.scale.neg_()
        torch.testing.assert_close(fast(x), model(x))
        model.place.fill_(7)
        for _ in range(2):
            with pytest.raises(IndexError):
                fast(x)
