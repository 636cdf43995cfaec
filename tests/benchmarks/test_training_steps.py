import pytest
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.harness.compilers import COMPILERS
from benchmarks.training import contestants
from benchmarks.training import training_steps as ts
from benchmarks.zoo import training_zoo
from benchmarks.zoo.training_zoo import TRAININGS, Training

COLUMNS = {"compilers": ("framefuse",), "steps": 3, "seconds": 0.05}


def small(loss=training_zoo.classes):
    return Training(
        "small", "Small", lambda: nn.Linear(256, 10), training_zoo.labelled_features, loss, training_zoo.sgd
    )


@pytest.mark.parametrize("name", TRAININGS)
def test_every_model_learns_and_is_the_same_each_time(name):
    row = TRAININGS[name]
    assert row.build().training
    losses = []
    for _ in range(2):
        model = row.build()
        torch.manual_seed(0)
        step = row.step(model)
        losses.append([float(step(*row.batches(0, 2, 8)).detach()) for _ in range(3)])
        assert all(p.grad is not None for p in model.parameters()) or name == "bert"
    assert losses[0] == losses[1] and losses[0][2] < losses[0][0]


def test_batches_follow_seed_and_sizes():
    for row in TRAININGS.values():
        assert len(row.batches(0, 3, 8)[0]) == 3
        assert torch.equal(row.batches(5)[0], row.batches(5)[0]) and not torch.equal(
            row.batches(5)[0], row.batches(6)[0]
        )
    assert training_zoo.tokens(0, 2, 9)[0].shape == (2, 9)


def test_one_row_has_every_column():
    said = []
    settings = contestants.Settings(**COLUMNS)
    row = ts.measure(small(), settings, said.append)
    assert row["equal"] == "yes" and row["framefuse_loss_difference"] < 1e-5
    assert row["eager_ms"] > 0 and row["framefuse_whole_ms"] > 0
    assert row["framefuse_times_torch"] is None and len(said) == 1 + len(settings.columns())
    assert row["compiled"] in ("both", "model", "step", "no")


def test_torch_compiles_whole_steps_only_when_asked():
    assert contestants.Settings().columns() == ["eager", "framefuse", "framefuse_whole", "torch"]
    assert contestants.Settings(whole=True).columns()[-1] == "torch_whole"


class Detached(nn.Module):
    """Gives the results of `inner` without their gradients for the weight."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return F.linear(x, self.inner.weight.detach(), self.inner.bias)


def test_wrong_gradients_are_reported(monkeypatch):
    monkeypatch.setitem(COMPILERS, "framefuse", lambda f, dynamic: Detached(f) if isinstance(f, nn.Module) else f)
    row = ts.measure(small(), contestants.Settings(**COLUMNS), lambda step: None)
    assert row["equal"] == "no: gradients of the first step differ by inf"
    assert row["framefuse_whole_equal"] == "yes"


def test_wrong_losses_are_reported():
    eager = ts.Curve([1.0, 0.5], [torch.ones(2), None], [0.1, 0.1])

    def verdict(*found, own=0.0):
        return ts.verdict(ts.Curve(*found), eager, lambda: own)

    assert verdict(eager.losses, eager.gradients, []) == "yes"
    told = "no: losses differ by 2.0e-01, eager's own after a rounding by 1.0e-01"
    assert verdict([1.0, 0.6], eager.gradients, [], own=0.1) == told
    assert verdict([1.0, 0.6], eager.gradients, [], own=0.3) == "yes"
    assert verdict([1.0, float("nan")], eager.gradients, [], own=0.3).startswith("no: losses")
    assert verdict([1.0, 0.5], [torch.full((2,), 1.1), None], [], own=9.0).startswith("no: gradients")
    assert verdict([1.0, 0.5], [torch.full((2,), torch.nan), None], []).startswith("no: gradients")


def test_weights_are_disturbed_by_one_rounding():
    start = {"weight": torch.randn(5, 7), "steps": torch.tensor(3)}
    moved = ts.disturbed(start, 0)
    assert torch.equal(moved["steps"], start["steps"]) and not torch.equal(moved["weight"], start["weight"])
    torch.testing.assert_close(moved["weight"], start["weight"], rtol=3e-7, atol=0)
    assert not torch.equal(ts.disturbed(start, 1)["weight"], moved["weight"])


def test_columns_start_from_the_same_weights():
    training = small()
    model = training.build()
    start = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    batches = [training.batches(seed) for seed in range(2)]
    curves = [ts.curve(ts.contestant("eager", training, model).step, model, start, batches, 4) for _ in range(2)]
    assert curves[0].losses == curves[1].losses and len(set(curves[0].losses)) == 4


def test_a_function_that_framefuse_did_not_compile_runs_eagerly():
    assert ts.how(lambda x: x) == "eager"
    compiled = COMPILERS["framefuse"](lambda x: x + 1, None)
    for _ in range(3):
        compiled(torch.ones(3))
    assert ts.how(compiled) == "compiled"
