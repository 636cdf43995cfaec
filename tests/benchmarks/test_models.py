import torch
from torch import nn

from benchmarks.calls import models
from benchmarks.harness.compilers import COMPILERS
from benchmarks.zoo.zoo import MissingLibrary, Model


def test_difference_sees_values_types_and_nesting():
    x = torch.ones(3)
    assert models.difference({"a": [x, x]}, {"a": [x, x]}) == "yes"
    assert models.difference([x], [x + 1]).startswith("no: Tensor-likes are not close")
    assert models.difference([x], (x,)) == "no: list instead of tuple"
    assert models.difference([x, x], [x]).startswith("no: ")


def test_a_copy_shares_its_tensors_and_keeps_ties():
    layer = nn.Linear(3, 3)
    copied = models.same_weights(nn.ModuleList([layer, layer]))
    assert copied[0] is not layer and copied[0] is copied[1] and copied[0].weight is layer.weight


def test_one_row_has_every_column(monkeypatch):
    monkeypatch.setitem(COMPILERS, "framefuse", lambda function, dynamic, mode=None: function)
    said = []
    (row,) = models.models(said.append, ["mlp"], ["framefuse"], seconds=0.05)
    assert row["model"] == "MLP" and row["equal"] == "yes" and row["times_torch"] is None
    assert row["eager_ms"] > 0 and row["framefuse_ms"] > 0 and "framefuse_first_s" in row
    assert len(said) == models.steps(["mlp"], ["framefuse"])


def test_a_wrong_result_is_reported(monkeypatch):
    class Wrong(nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner = inner

        def forward(self, x):
            return self.inner(x) + 1

    monkeypatch.setitem(COMPILERS, "framefuse", lambda function, dynamic, mode=None: Wrong(function))
    rows = models.models(lambda step: None, ["mlp"], ["framefuse"], seconds=0.05)
    assert str(rows[0]["equal"]).startswith("no: ")
    assert models.findings(rows)[0].startswith("0 of 1 models")


def test_a_missing_library_leaves_a_row_that_says_so(monkeypatch):
    def make():
        raise MissingLibrary("this model needs x: pip install x")

    monkeypatch.setitem(models.MODELS, "vit", Model("vit", "ViT-tiny", make, models.MODELS["vit"].inputs))
    rows = models.models(lambda step: None, ["vit"], ["framefuse"])
    assert rows == [{"model": "ViT-tiny", "equal": "not run: this model needs x: pip install x"}]
    assert "ViT-tiny: not run" in "\n".join(models.findings(rows))


def test_the_plot_is_a_picture_also_with_gaps(tmp_path):
    rows = [
        {"model": "A", "eager_ms": 2.0, "framefuse_ms": 1.0, "torch_ms": 1.5, "equal": "yes"},
        {"model": "B", "equal": "not run"},
    ]
    models.plot(rows, tmp_path / "models.png", "on a machine")
    assert (tmp_path / "models.png").read_bytes().startswith(b"\x89PNG")
