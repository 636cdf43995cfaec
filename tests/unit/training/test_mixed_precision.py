"""Training under autocast follows eager within the digits of 16-bit floats, with and without a scaler."""

import pytest
import torch
from tests.unit.training.training_models import SETTINGS, mlp, rows, sgd
from torch import nn
from torch.nn import functional as F

import framefuse
from framefuse.runtime import derivative
from framefuse.runtime.function import compiled_function

STEPS = 12
NAMES = {setting.name: setting for setting in SETTINGS if "dropout" not in setting.name}
LOW = [torch.bfloat16, torch.float16]


def _has_narrow_lstm() -> bool:
    """Whether the library trains an LSTM of bfloat16 on this processor: where not, eager raises."""
    try:
        with torch.autocast("cpu", torch.bfloat16):
            torch.nn.LSTM(2, 2)(torch.ones(1, 1, 2))
    except RuntimeError:
        return False
    return True


# Eager has no LSTM of float16, and one of bfloat16 on some processors.
LSTMS = [torch.bfloat16] if _has_narrow_lstm() else []
CASES = [(name, low) for name in NAMES for low in (LSTMS if name == "lstm" else LOW)]


def make(setting):
    torch.manual_seed(0)
    return setting.make().train()


def amp_loss(setting, model, low):
    def loss(*batch):
        with torch.autocast("cpu", low, enabled=low is not None):
            return setting.loss(model, *batch)

    return loss


def make_step(loss, optimizer, scaler):
    def step(*batch):
        optimizer.zero_grad()
        value = loss(*batch)
        scaler.scale(value).backward()
        scaler.step(optimizer)
        scaler.update()
        return value.detach()

    return step


def train(setting, low, what, scaled=False, options=None, steps=STEPS):
    """Losses and the last gradients; and what was compiled."""
    model = make(setting)
    optimizer = setting.optimizer(model.parameters())
    scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=256.0, growth_interval=4)
    compiled = None
    used = model
    if what == "model":
        compiled = used = framefuse.compile(model, options=options)
    loss = amp_loss(setting, used, low)
    if what == "loss":
        compiled = loss = framefuse.compile(loss, options=options)
    step = make_step(loss, optimizer, scaler)
    if what == "step":
        compiled = step = framefuse.compile(step, options=options)
    losses = []
    for turn in range(steps):
        torch.manual_seed(turn)
        losses.append(step(*setting.batch(turn)))
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    return losses, gradients, scaler.get_scale(), compiled


def distance(found, expected):
    """Between gradients taken as one vector, relative to it."""
    total = sum(float(g.double().square().sum()) for g in expected.values()) ** 0.5
    return sum(float((found[n].double() - g.double()).square().sum()) for n, g in expected.items()) ** 0.5 / total


@pytest.mark.parametrize("what", ["model", "loss", "step"])
@pytest.mark.parametrize(("name", "low"), CASES)
def test_a_run_follows_eager(name, low, what, monkeypatch):
    """The loss of each step is as near to eager's as that is to float32's; every backward runs compiled."""
    monkeypatch.setattr(derivative._Side, "run", lambda side, *values: pytest.fail("a backward ran uncompiled"))
    setting, scaled = NAMES[name], low is torch.float16
    expected, gradients, scale, _ = train(setting, low, None, scaled)
    exact, _, _, _ = train(setting, None, None)
    losses, found, found_scale, compiled = train(setting, low, what, scaled)
    assert [value.dtype for value in losses] == [value.dtype for value in expected]
    error = max(abs(float(a) - float(b)) for a, b in zip(expected, exact, strict=True))
    for mine, eager in zip(losses, expected, strict=True):
        assert abs(float(mine) - float(eager)) <= max(1.5 * error, 2e-3)
    assert {n: g.dtype for n, g in found.items()} == {n: g.dtype for n, g in gradients.items()}
    assert found_scale == scale
    held = compiled_function(compiled)
    assert held.dispatch.hits >= STEPS - 4, held.reasons


@pytest.mark.parametrize(("name", "low"), CASES)
def test_gradients_of_one_step_are_near_eagers(name, low):
    setting = NAMES[name]
    _, exact, _, _ = train(setting, None, None, steps=1)
    _, gradients, _, _ = train(setting, low, None, steps=1)
    model = make(setting)
    compiled = framefuse.compile(amp_loss(setting, model, low))
    for _ in range(2):
        model.zero_grad()
        torch.manual_seed(0)
        compiled(*setting.batch(0)).backward()
    found = {n: p.grad for n, p in model.named_parameters()}
    assert compiled_function(compiled).dispatch.hits == 1
    assert distance(found, gradients) <= distance(gradients, exact) * 1.5
    assert distance(found, exact) <= distance(gradients, exact) * 1.5


def test_states_inside_a_loss():
    """Part of the forward in float32, a weight used twice, and one that nothing casts."""
    torch.manual_seed(0)
    first, second, scale = (nn.Parameter(torch.randn(sizes)) for sizes in ((6, 6), (6, 6), (6,)))

    def loss(x):
        with torch.autocast("cpu", torch.bfloat16):
            y = torch.tanh(x @ first) @ first
            with torch.autocast("cpu", enabled=False):
                z = y.float() @ second
            return F.mse_loss(z @ second * scale, x), y, z

    def gradients(function):
        found = []
        for seed in range(3):
            x = torch.randn(5, 6, generator=torch.Generator().manual_seed(seed)).requires_grad_()
            value, y, z = function(x)
            leaves = (x, first, second, scale)
            grads = torch.autograd.grad(value + y.float().sum(), leaves)
            found.append((value.dtype, y.dtype, z.dtype, *grads))
        return found

    compiled = framefuse.compile(loss)
    for mine, eager in zip(gradients(compiled), gradients(loss), strict=True):
        assert mine[:3] == eager[:3]
        for a, b in zip(mine[3:], eager[3:], strict=True):
            assert a.dtype is b.dtype
            torch.testing.assert_close(a, b, rtol=0.05, atol=0.02 * float(b.abs().max()))
    assert compiled_function(compiled).dispatch.hits == 2


@pytest.mark.parametrize("what", ["loss", "step"])
def test_a_scaler_skips_steps_whose_gradients_overflow(what):
    """Scale, weights and the count of good steps are eager's, step for step; gradients are unscaled and clipped."""

    def run(wrap):
        torch.manual_seed(0)
        model = mlp()
        optimizer = sgd(model.parameters())
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**17, growth_interval=3, backoff_factor=0.25)

        def loss(x, labels):
            with torch.autocast("cpu", torch.float16):
                return F.cross_entropy(model(x), labels)

        loss = wrap(loss) if what == "loss" else loss

        def step(x, labels):
            optimizer.zero_grad(set_to_none=True)
            value = loss(x, labels)
            scaler.scale(value).backward()
            scaler.unscale_(optimizer)
            norm = nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            scaler.step(optimizer)
            scaler.update()
            return value.detach(), norm

        step = wrap(step) if what == "step" else step
        found = []
        for turn in range(12):
            x, labels = rows(turn)
            value, norm = step(x * 1e30 if turn in (4, 5) else x, labels)
            weight, tracker = next(model.parameters()).detach().clone(), scaler._get_growth_tracker()
            found.append((float(value), bool(norm.isfinite()), scaler.get_scale(), tracker, weight))
        return found, step if what == "step" else loss

    expected, _ = run(lambda function: function)
    found, compiled = run(framefuse.compile)
    assert {each[1] for each in expected} == {True, False} and len({each[2] for each in expected}) > 2
    for mine, eager in zip(found, expected, strict=True):
        assert mine[1:4] == eager[1:4]
        torch.testing.assert_close(mine[0], eager[0], rtol=2e-2, atol=1e-3, equal_nan=True)
        torch.testing.assert_close(mine[4], eager[4], rtol=2e-2, atol=2e-3)
    assert compiled_function(compiled).dispatch.hits >= 6


def test_numerics_eager_trains_nearer_to_eager():
    setting = NAMES["mlp"]
    expected, _, _, _ = train(setting, torch.bfloat16, None)
    found, _, _, compiled = train(setting, torch.bfloat16, "loss", options={"numerics": "eager"})
    torch.testing.assert_close(torch.stack(found), torch.stack(expected), rtol=5e-3, atol=1e-3)
    assert compiled_function(compiled).dispatch.hits >= STEPS - 2


def test_evaluation_inside_a_region_leaves_gradients_alone():
    """What autocast keeps of a run without gradients is not taken for one with them."""
    model = framefuse.compile(mlp())
    for _ in range(2):
        with torch.autocast("cpu", torch.bfloat16):
            with torch.no_grad():
                model(rows(0)[0])
            value = model(rows(0)[0]).float().square().sum()
        value.backward()
        assert all(p.grad is not None and p.grad.dtype is torch.float32 for p in model.parameters())
        model.zero_grad()


class Product(torch.autograd.Function):
    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.float32)
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight

    @staticmethod
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, g):
        x, weight = ctx.saved_tensors
        return g @ weight.t(), x.t() @ g


@pytest.mark.parametrize("grad", [False, True])
def test_a_custom_function_that_says_its_dtype(grad):
    weight = nn.Parameter(torch.randn(4, 4, generator=torch.Generator().manual_seed(0)))

    def function(x):
        with torch.autocast("cpu", torch.bfloat16):
            return torch.relu(Product.apply(x * 2, weight)) @ weight

    torch.testing.assert_close(weight, weight)  # its first call imports what registers abstract classes
    compiled = framefuse.compile(function)
    for seed in range(3):
        x, found = torch.randn(3, 4, generator=torch.Generator().manual_seed(seed)), []
        for run in (compiled, function):
            with torch.set_grad_enabled(grad):
                out = run(x)
            found.append((out, torch.autograd.grad(out.float().sum(), weight)[0] if grad else out))
        (out, gradient), (expected, wanted) = found
        assert out.dtype is expected.dtype and torch.equal(out, expected) and gradient.dtype is wanted.dtype
        torch.testing.assert_close(gradient, wanted, rtol=0.02, atol=0.02)
    assert compiled_function(compiled).dispatch.hits == 2
