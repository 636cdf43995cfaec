"""Fifty steps of training with compiled code follow eager's losses and end with eager's weights."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.unit.training.training_models import SETTINGS, classes, mlp, rows, sgd
from torch import nn
from torch.nn import functional as F

import framefuse
from framefuse.explain.report import describe
from framefuse.runtime.function import compiled_function

STEPS = 50
# Every step but the first ones must run what was compiled.
HITS = 40

def plain(function):
    return function


def make(setting):
    torch.manual_seed(0)
    return setting.make().train()


def make_step(model, loss, optimizer):
    def step(*batch):
        optimizer.zero_grad()
        value = loss(model, *batch)
        value.backward()
        optimizer.step()
        return value.detach()

    return step


def run(step, batch):
    """The losses of all steps; each step draws the same random numbers in every run."""
    losses = []
    for turn in range(STEPS):
        torch.manual_seed(turn)
        losses.append(float(step(*batch(turn))))
    return losses


def assert_follows(losses, expected, model, reference):
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(expected), rtol=1e-3, atol=1e-4)
    for (name, found), wanted in zip(model.named_parameters(), reference.parameters(), strict=True):
        difference = (found - wanted).norm() / wanted.norm().clamp(min=0.1)
        assert difference < 5e-3, f"{name} differs by {difference}"


def assert_ran(compiled):
    """Compiled code ran in nearly every step, forward and backward."""
    state = compiled_function(compiled)
    found = describe(state)
    assert found.hits >= HITS, str(found)
    places = [place for product in state.products for place in product.stages.derivatives]
    assert sum(place.backward.dispatch.hits for place in places) >= HITS
    assert not any(reason.code == "gradient" for reason, _ in found.stops), str(found)


@pytest.mark.parametrize("setting", SETTINGS, ids=lambda setting: setting.name)
@pytest.mark.parametrize("what", ["model", "loss", "step"])
def test_a_run_follows_eager(setting, what):
    reference = make(setting)
    expected = run(make_step(reference, setting.loss, setting.optimizer(reference.parameters())), setting.batch)
    assert expected[-1] < 0.9 * expected[0]
    model = make(setting)
    optimizer = setting.optimizer(model.parameters())
    if what == "model":
        compiled = framefuse.compile(model)
        step = make_step(compiled, setting.loss, optimizer)
    elif what == "loss":
        compiled = framefuse.compile(lambda *batch: setting.loss(model, *batch))
        step = make_step(model, lambda _, *batch: compiled(*batch), optimizer)
    else:
        compiled = step = framefuse.compile(make_step(model, setting.loss, optimizer))
    losses = run(step, setting.batch)
    assert_follows(losses, expected, model, reference)
    assert_ran(compiled)


def distillation(teacher):
    """The loss of a student that learns what a frozen teacher says, at a temperature of 2, and the labels."""

    def loss(model, x, labels):
        logits = model(x)
        soft = F.kl_div(F.log_softmax(logits / 2, -1), F.softmax(teacher(x) / 2, -1), reduction="batchmean") * 4
        return 0.5 * soft + 0.5 * F.cross_entropy(logits, labels)

    return loss


@pytest.mark.parametrize("how", ["no_grad", "requires_grad_"])
def test_a_student_follows_a_frozen_teacher(how):
    torch.manual_seed(1)
    teacher = nn.Sequential(nn.Linear(12, 20), nn.Tanh(), nn.Linear(20, 3)).eval()
    if how == "requires_grad_":
        teacher.requires_grad_(False)
        ask = teacher
    else:
        ask = torch.no_grad()(teacher.forward)
    before = copy.deepcopy(teacher.state_dict())
    models, losses = [], []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = mlp()
        step = make_step(model, distillation(ask), sgd(model.parameters()))
        step = framefuse.compile(step) if compiled else step
        losses.append(run(step, rows))
        models.append(model)
    assert_follows(losses[1], losses[0], models[1], models[0])
    assert_ran(step)
    assert losses[0][-1] < losses[0][0]
    assert all(p.grad is None for p in teacher.parameters())
    torch.testing.assert_close(teacher.state_dict(), before, rtol=0, atol=0)


def test_accumulated_gradients_are_eagers():
    """Two backward passes before one step, gradients clipped, a rate that changes at each step."""

    def train(wrap):
        torch.manual_seed(0)
        model = mlp()
        compiled = wrap(model)
        optimizer = sgd(model.parameters())
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)

        def step(x, labels):
            optimizer.zero_grad()
            value = 0.0
            for half in range(2):
                part = classes(compiled, x[half::2], labels[half::2]) / 2
                part.backward()
                value += part.detach()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            schedule.step()
            return value

        return model, compiled, run(step, rows)

    reference, _, expected = train(plain)
    model, compiled, losses = train(framefuse.compile)
    assert_follows(losses, expected, model, reference)
    assert_ran(compiled)
