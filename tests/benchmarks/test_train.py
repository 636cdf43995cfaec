import csv

import pytest

from benchmarks.__main__ import main
from benchmarks.harness.compilers import COMPILERS
from benchmarks.training import train
from benchmarks.training.contestants import Settings
from benchmarks.zoo.training_zoo import TRAININGS, Training
from benchmarks.zoo.zoo import MissingLibrary


def row(title, **figures):
    made = {"model": title, "eager_ms": 2.0, "torch_ms": 1.5, "framefuse_ms": 1.0, "framefuse_whole_ms": 1.0}
    made |= {"framefuse_times_eager": 2.0, "framefuse_whole_times_eager": 2.0, "equal": "yes"}
    made |= {"framefuse_times_torch": 1.5, "framefuse_whole_times_torch": 1.5}
    made |= {"eager_peak_mb": 4.0, "framefuse_peak_mb": 3.0, "framefuse_whole_peak_mb": 3.0}
    return made | {"framefuse_runs": "compiled", "framefuse_whole_runs": "compiled"} | figures


def test_the_command_measures_in_a_process_of_its_own_and_writes_its_files(tmp_path, capsys):
    small = ["--only", "mlp", "--no-torch", "--steps", "2", "--seconds", "0.05", "--batch", "4"]
    assert main(["train", *small, "--out", str(tmp_path)]) == 0
    assert "1 of 1 models follow eager" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"train.csv", "train.md", "train.png"}
    with (tmp_path / "train.csv").open() as file:
        (found,) = csv.DictReader(file)
    assert float(found["eager_peak_mb"]) > 0 and found["framefuse_whole_equal"] == "yes"
    assert (tmp_path / "train.md").read_text().count("| MLP |") == 2


def test_findings_name_what_is_slower_larger_or_eager():
    slow = row("B", framefuse_times_eager=0.5, framefuse_peak_mb=9.0, framefuse_runs="eager: gradient")
    said = "\n".join(train.findings([row("A"), slow]))
    assert "model compiled, geometric means: 1.00 times eager, 1.50 times torch.compile; slower than eager: B" in said
    assert "whole step compiled, geometric means: 2.00 times eager" in said and "slower than eager: none" in said
    assert "peak memory: 1.30 of eager's" in said and "more: B" in said
    assert "peak memory of whole steps above eager's: none" in said
    assert "the model is not all compiled: B (eager: gradient)" in said and "the step is not" not in said


def test_findings_tell_what_the_first_three_steps_take():
    quick = row("A", framefuse_early_s=1.0, framefuse_whole_early_s=2.0, torch_early_s=20.0)
    slow = row("B", framefuse_early_s=1.0, framefuse_whole_early_s=9.0, torch_early_s=30.0)
    eager = row("C", framefuse_early_s=1.0, framefuse_whole_early_s=9.0, torch_early_s=0.1)  # torch compiles nothing
    said = "\n".join(train.findings([quick, slow, eager]))
    assert "first three steps: at most 0.30 of torch.compile's; above 0.2: B, whole (0.30)" in said


def test_findings_without_torch_and_with_a_wrong_model():
    wrong = row("A", equal="no: losses differ by 1", framefuse_times_torch=None, framefuse_whole_times_torch=None)
    said = train.findings([wrong])
    assert said[0] == "with the model compiled, geometric means: 2.00 times eager; slower than eager: none"
    assert said[-2:] == [
        "0 of 1 models follow eager: gradients of the first step, losses of all steps",
        "  A: no: losses differ by 1",
    ]


def test_a_missing_library_leaves_a_row_that_says_so(monkeypatch):
    monkeypatch.setattr(train.sys, "executable", "/bin/false")
    with pytest.raises(RuntimeError, match="failed"):
        train.in_fresh_process("mlp", Settings(("framefuse",)), lambda step: None)

    def fails(command, **options):
        text = f"benchmarks.zoo.zoo.{MissingLibrary.__name__}: this model needs timm: pip install timm"
        return real(["/bin/sh", "-c", f"echo '{text}'; exit 1"], **options)

    real = train.subprocess.Popen
    monkeypatch.setattr(train.subprocess, "Popen", fails)
    found = train.in_fresh_process("vit", Settings(("framefuse",)), lambda step: None)
    assert found == {"model": "ViT-tiny", "equal": "not run: this model needs timm: pip install timm"}
    assert train.findings([found])[-1].endswith("not run: this model needs timm: pip install timm")


def test_steps_count_what_is_said():
    assert train.steps(["mlp", "gpt"], Settings()) == 18 and set(TRAININGS) > {"lstm", "unet", "gpt"}
    assert isinstance(TRAININGS["unet"], Training) and "framefuse" in COMPILERS


def test_the_plot_is_a_picture_also_with_gaps(tmp_path):
    train.plot([row("A"), {"model": "B", "equal": "not run"}], tmp_path / "train.png", "on a machine")
    assert (tmp_path / "train.png").read_bytes().startswith(b"\x89PNG")
