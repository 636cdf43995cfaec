import math

import pytest
import torch

from benchmarks.calls import gradients
from benchmarks.harness.compilers import COMPILERS


def test_one_row_has_every_column(monkeypatch):
    monkeypatch.setitem(COMPILERS, "torch", lambda function, dynamic: function)
    said = []
    row = gradients.measure("relu(x * w)", ["framefuse", "torch"], 6, 3, said.append)
    assert set(row) == {field.key for field in gradients.FIELDS}
    assert all(math.isfinite(value) for key, value in row.items() if key != "function")
    assert len(said) * len(gradients.FUNCTIONS) == gradients.steps(["framefuse", "torch"])


@pytest.mark.parametrize("name", gradients.FUNCTIONS)
def test_each_function_has_gradients_for_all_arguments(name):
    make, shapes = gradients.FUNCTIONS[name]
    (arguments,) = gradients.arguments_of(shapes, 1)
    found = gradients.both(make(), make()(*arguments))(*arguments)
    assert [g.shape for g in found] == [a.shape for a in arguments]
    assert any(bool(g.any()) for g in found)


def test_wrong_gradients_are_not_timed(monkeypatch):
    def wrong(function, dynamic):
        return lambda *arguments: function(*arguments) + 0 * arguments[0].sum() + (arguments[0] - arguments[0].detach())

    monkeypatch.setitem(COMPILERS, "framefuse", wrong)
    with pytest.raises(AssertionError):
        gradients.measure("relu(x * w)", ["framefuse"], 3, 1, lambda step: None)
    assert torch.is_grad_enabled()
