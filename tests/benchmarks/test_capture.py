import pytest
import torch
from torch import nn

import framefuse
from benchmarks.__main__ import main
from benchmarks.breadth import capture
from benchmarks.zoo import timm_models, transformers_models


def test_fifty_classes_and_a_hundred_models_are_listed_once():
    classes = [sample.cls for sample in transformers_models.CLASSES]
    assert len(classes) == len(set(classes)) == 50
    assert len(timm_models.NAMES) == len(set(timm_models.NAMES)) == 100
    assert len(transformers_models.SAMPLES) == 50 + len(transformers_models.VARIANTS)


def test_names_stand_for_models_and_libraries_for_all_of_theirs():
    assert capture.names_of(["bert", "timm", "bert"]) == ("bert", *timm_models.NAMES)
    assert len(capture.names_of(None)) == len(transformers_models.SAMPLES) + 100


def test_difference_sees_values_names_numbers_and_objects():
    class Holder:
        def __init__(self, value):
            self.value = value

    x = torch.ones(3)
    assert capture.difference({"a": Holder(x)}, {"a": Holder(x + 1e-5)}) == "yes"
    far = capture.difference({"a": Holder(x)}, {"a": Holder(x + 1e-3)})
    assert far.startswith(f"{capture.FAR} result['a'].value: ")
    assert capture.difference([x, 3], [x, 4]) == "no: result[1] is 3 instead of 4"
    assert capture.difference([x.long()], [x.long() + 1]).startswith("no: result[0]: ")
    assert capture.difference([x], [x, x]).startswith("no: 1 values instead of 2")
    assert capture.difference([x / 0 * 0], [x / 0 * 0]).startswith("no: eager gives NaN")


def test_noise_reaches_every_weight():
    module = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    nn.init.zeros_(module[1].weight)
    capture.stir(module)
    assert all(weight.abs().min() > 0 for weight in module.parameters())


MODELS = "bert gpt2 vit resnet10t"


@pytest.mark.parametrize("name", MODELS.split())
def test_models_are_captured_whole_hit_and_equal_eager(name):
    row = capture.capture(lambda step: None, [name])[0]
    if "graphs" not in row:
        pytest.skip(str(row["equal"]))
    assert row["equal"] == "yes" and row["hit"] == "yes" and capture.whole(row), row
    assert row["nodes"] > 40 and row["opcodes"] > 1000


def test_what_is_not_whole_says_why(monkeypatch):
    class Prints(nn.Module):
        def forward(self, x):
            return x * 2 if x.sum() > 0 else x - 2

    made = capture.Subject("bert", Prints(), lambda seed, batch: ((torch.ones(batch, 3) * (1 - seed),), {}))
    monkeypatch.setattr(capture, "subject", lambda name: made)
    rows = capture.capture(lambda step: None, ["bert"])
    assert not capture.whole(rows[0]) and rows[0]["equal"] == "yes"
    said = "0 of 1 classes of transformers are captured whole and hit at once, 1 equal eager"
    assert capture.findings(rows)[0] == said


def test_a_wrong_result_is_reported(monkeypatch):
    class Wrong(nn.Module):
        def forward(self, x):
            return x + (0 if framefuse.is_compiling() else 1)

    made = capture.Subject("wrong", Wrong(), lambda seed, batch: ((torch.ones(batch, 3),), {}))
    monkeypatch.setattr(capture, "subject", lambda name: made)
    assert capture.capture(lambda step: None, ["bert"])[0]["equal"].startswith("no: ")


class Spreads(nn.Module):
    """Rounding its weights moves its result by far more than rounding."""

    def __init__(self, wrong):
        super().__init__()
        self.weight, self.wrong = nn.Parameter(torch.tensor([1000.0, 2000.0])), wrong

    def forward(self, x):
        ours = framefuse.is_compiling()
        weight = self.weight * (1 + 2**-23) if ours else self.weight
        off = 0.5 if ours and self.wrong == "values" else 0.0
        return (x * weight).sin() + off, torch.arange(3) + int(ours and self.wrong == "integers")


def test_rounding_that_a_model_spreads_is_no_difference(monkeypatch):
    rows = {}
    for wrong in ("rounded", "values", "integers"):
        made = capture.Subject("bert", Spreads(wrong), lambda seed, batch: ((torch.ones(batch, 2) * 7,), {}))
        monkeypatch.setattr(capture, "subject", lambda name, made=made: made)
        (rows[wrong],) = capture.capture(lambda step: None, ["bert"])
    assert rows["rounded"]["equal"] == "yes" and 1e-4 < rows["rounded"]["spread"] < 1e-1
    assert "moves eager's own result" in capture.findings([rows["rounded"]])[-1]
    assert rows["values"]["equal"].startswith(capture.FAR) and rows["values"]["spread"] is None
    assert rows["integers"]["equal"].startswith("no: ") and rows["integers"]["spread"] is None


def test_speed_records_and_compiles_nothing(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(capture, "bert_base", lambda: (nn.Linear(3, 3), (torch.ones(2, 3),)))
    rows = capture.speed(lambda step: None, passes=1)
    assert [row["nodes"] for row in rows] == [3, 1] and all(row["graphs"] == 1 for row in rows)
    monkeypatch.setattr(capture, "speed", lambda say: rows)
    assert main(["capture", "--speed", "--out", str(tmp_path)]) == 0
    assert "capture.csv" in capsys.readouterr().out
