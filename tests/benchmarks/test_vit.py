import csv
import json

import pytest
import torch
from torch import nn

from benchmarks.__main__ import main
from benchmarks.harness.compilers import COMPILERS
from benchmarks.harness.processes import Failed, Process, reason
from benchmarks.training import contestants, vit, vit_steps, vit_turns
from benchmarks.zoo.training_zoo import Training, classes, labelled_features, sgd

SMALL = vit_steps.Settings("test_vit", 1)
FAST = ["vit", "--device", "cpu", "--model", "test_vit", "--batch", "1", "--seconds", "0"]


class Here:
    """Stands for a process: answers in this one, what would go through JSON through JSON."""

    there: list["Here"] = []

    def __init__(self, module, arguments, environment=None):
        name, _, settings = arguments
        self.name, self.settings = name, vit_steps.Settings(**json.loads(settings))
        self.closed = False
        Here.there.append(self)

    def answer(self):
        try:
            self.commands = vit_steps.prepare(self.name, self.settings)
        except Exception as error:
            raise Failed(reason(error)) from error

    def ask(self, command, *arguments):
        try:
            return json.loads(json.dumps(self.commands[command](*arguments)))
        except Exception as error:
            raise Failed(reason(error)) from error

    def dismiss(self):
        pass

    def close(self):
        self.closed = True


@pytest.fixture
def here(monkeypatch):
    """The benchmark in one process, and quick."""
    monkeypatch.setattr(vit_turns, "Process", Here)
    monkeypatch.setattr(vit_steps, "peak_of", lambda *arguments: 2**28)
    monkeypatch.setattr(vit_steps, "FIRST", 6)
    monkeypatch.setattr(vit_steps, "DISTURBED", 1)
    monkeypatch.setattr(vit_turns, "COUNT", 1)
    monkeypatch.setattr(vit_turns, "LEAST", 2)
    monkeypatch.setattr(Here, "there", [])


def settings(*modes, **others):
    return vit_turns.Settings(("framefuse",), ("float32",), modes or ("default",), steps=SMALL, seconds=0, **others)


def test_the_command_writes_its_files_and_every_part_follows_eager(here, tmp_path, capsys):
    arguments = [*FAST, "--no-torch", "--modes", "default", "--dtype", "bfloat16", "--out", str(tmp_path)]
    assert main(arguments) == 0
    assert "3 of 3 follow eager" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"vit.csv", "vit.md", "vit.png"}
    with (tmp_path / "vit.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["part"] for row in rows] == ["", "model", "loss", "step"]
    assert all(float(row["step_ms"]) > 0 and float(row["first_s"]) > 0 for row in rows)
    assert all(row["peak_gib"] == "0.25" and row["equal"] == "yes" for row in rows)
    assert [row["runs"] for row in rows[1:]] == ["compiled"] * 3
    assert all(process.closed for process in Here.there)


def test_steps_count_what_is_said_and_figures_are_beside_the_same_mode(here, monkeypatch):
    monkeypatch.setitem(COMPILERS, "framefuse", lambda function, dynamic, mode: function)
    monkeypatch.setitem(COMPILERS, "torch", lambda function, dynamic, mode: function)
    asked = settings("default", "reduce-overhead", only=("model", "step"))
    asked = vit_turns.replace(asked, compilers=("framefuse", "torch"))
    said = []
    rows = vit_turns.vit(said.append, asked)
    assert len(said) == vit_turns.steps(asked)
    together = [("framefuse", "model"), ("framefuse", "step"), ("torch", "model")]
    assert [(row["compiler"], row["mode"], row["part"]) for row in rows] == [
        ("eager", None, None),
        *((compiler, mode, part) for mode in asked.modes for compiler, part in together),
    ]
    assert all(row["equal"] == "yes" for row in rows)
    with_torch = {(row["compiler"], row["mode"], row["part"]) for row in rows if row.get("times_torch") is not None}
    assert with_torch == {("framefuse", m, "model") for m in asked.modes} | {("torch", "reduce-overhead", "model")}


def test_only_and_whole_choose_contestants():
    both = vit_turns.Settings()
    assert both.contestants() == ["framefuse", "framefuse_loss", "framefuse_whole", "torch", "torch_loss"]
    assert vit_turns.Settings(only=("loss",)).contestants() == ["framefuse_loss", "torch_loss"]
    assert vit_turns.Settings(only=("torch", "step"), whole=True).contestants() == ["torch_whole"]
    assert vit_turns.Settings(("framefuse",), only=("torch", "model")).contestants() == ["framefuse"]


def test_a_contestant_that_fails_is_a_row_with_the_reason(here, monkeypatch):
    def fails(function, dynamic, mode):
        if isinstance(function, nn.Module):
            raise RuntimeError("cannot be compiled\nbecause")

        def late(*arguments):
            raise MemoryError("no memory")

        return late

    monkeypatch.setitem(COMPILERS, "framefuse", fails)
    eager, model, loss = vit_turns.vit(str, settings(only=("model", "loss")))
    assert eager["equal"] == "yes" and eager["step_ms"] > 0
    assert model["equal"] == "not run: RuntimeError: cannot be compiled" and loss["follows"] == "not run"
    said = vit.findings([eager, model, loss])
    assert said == [
        "0 of 0 follow eager: losses of 5 steps, norms of the third one's gradients",
        "  float32, framefuse, default, model: not run: RuntimeError: cannot be compiled",
        "  float32, framefuse, default, loss: not run: MemoryError: no memory",
    ]


def test_without_a_model_every_row_says_so(here):
    asked = settings(only=("model",))
    rows = vit_turns.vit(str, vit_turns.replace(asked, steps=vit_steps.Settings("no_such_model")))
    assert all("no_such_model" in row["equal"] for row in rows) and len(rows) == 2 and vit.findings(rows)


class Doubled(nn.Module):
    """Gives the results of `inner`, and twice their gradients: Adam alone would not notice."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        result = self.inner(x)
        return result + (result - result.detach())


def test_wrong_gradients_fail_the_command(here, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(COMPILERS, "framefuse", lambda function, dynamic, mode: Doubled(function))
    only = ["--only", "model", "--dtype", "float32", "--modes", "default", "--no-torch", "--out", str(tmp_path)]
    assert main([*FAST, *only]) == 1
    assert "no: gradients of the third step differ by" in capsys.readouterr().out


def test_losses_are_held_to_what_a_rounding_does_to_eager():
    eager = {"losses": [1.0, 0.5], "norms": [2.0, None], "seconds": [1.0, 1.0]}
    eager["disturbed"] = [{"losses": [1.0, 0.51], "norms": [2.02, None]}]
    assert vit_turns.follows({"losses": [1.0, 0.505], "norms": [2.01, None]}, eager) == "yes"
    assert vit_turns.follows({"losses": [1.0, 0.52], "norms": [2.0, None]}, eager).startswith("no: losses")
    assert vit_turns.follows({"losses": [1.0, 0.5], "norms": [2.1, None]}, eager).startswith("no: gradients")
    assert vit_turns.follows({"losses": [1.0, 0.5], "norms": [2.0, 0.0]}, eager).startswith("no: gradients")
    assert vit_turns.follows({"losses": [1.0, float("nan")], "norms": [2.0, None]}, eager).startswith("no: losses")


def test_steps_are_steady_after_the_last_slow_one():
    assert vit_steps.steady_after([9.0, 1.0, 4.0, 1.0, 1.0, 1.1, 1.0, 1.0]) == 3
    assert vit_steps.steady_after([1.0] * 8) == 0


class LaterDoubled(Doubled):
    """Wrong only in later steps, as a compiler is whose first call is eager's own."""

    calls = 0

    def forward(self, x):
        self.calls += 1
        return super().forward(x) if self.calls > 1 else self.inner(x)


def test_gradients_that_only_compiled_steps_get_wrong_are_seen(here, monkeypatch):
    monkeypatch.setitem(COMPILERS, "framefuse", lambda function, dynamic, mode: LaterDoubled(function))
    _, row = vit_turns.vit(str, settings(only=("model",)))
    assert row["equal"].startswith("no: gradients of the third step differ by")


def test_a_process_measures_one_contestant():
    process = Process("benchmarks.training.vit_steps", vit_steps.arguments("eager", SMALL))
    try:
        process.answer()
        first = process.ask("first")
        assert len(first["seconds"]) == vit_steps.FIRST and len(first["losses"]) == vit_steps.LOSSES
        assert len(first["disturbed"]) == 3 and first["runs"] is None and first["losses"][4] < first["losses"][0]
        assert len(process.ask("turn", 3)) == 3
        assert 0 < process.ask("peak")["peak_gib"] < 1
    finally:
        process.close()


def test_the_loss_is_compiled_with_the_model_and_the_mode_is_told(monkeypatch):
    told = []

    def compiles(function, dynamic, mode=None):
        told.append((function, mode))
        return function

    monkeypatch.setitem(COMPILERS, "torch", compiles)
    training = Training("small", "Small", lambda: nn.Linear(256, 10), labelled_features, classes, sgd)
    marks = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(0))
    losses = []
    for name, mode in (("eager", None), ("torch", "default"), ("torch_loss", "reduce-overhead"), ("torch_whole", None)):
        step = contestants.contestant(name, training, training.build(), mode).step
        losses.append([float(step(*training.batches(0)).detach()) for _ in range(2)])
    assert all(found == losses[0] for found in losses) and losses[0][0] != losses[0][1]
    assert [mode for _, mode in told] == ["default", "reduce-overhead", None] and len(marks) == 2
    assert isinstance(told[0][0], nn.Linear) and told[1][0].__name__ == "model_and_loss"


def row(**figures):
    made = {"dtype": "bfloat16", "compiler": "framefuse", "mode": "default", "part": "model", "equal": "yes"}
    made |= {"step_ms": 20.0, "eager_ms": 30.0, "times_eager": 1.5, "times_torch": 1.1, "first_s": 1.0, "second_s": 0.5}
    return made | {"peak_gib": 4.0, "runs": "compiled"} | figures


def test_findings_say_what_is_behind_or_late_or_eager():
    eager = {"dtype": "bfloat16", "compiler": "eager", "mode": None, "part": None, "equal": "yes", "peak_gib": 5.0}
    slow = row(part="step", times_torch=0.9, second_s=2.5, runs="eager: gradient", peak_gib=6.0)
    good, bad, runs, equal = vit.findings([eager, row(), slow])
    assert good == (
        "bfloat16, framefuse, default, model: 1.50 times eager; 1.10 times torch.compile's default; "
        "first and second step 1.0 and 0.5 s; peak memory 0.80 of eager's"
    )
    assert "0.90 times torch.compile's default, behind it; first and second step 1.0 and 2.5 s, together above 3" in bad
    assert runs == "not all compiled: bfloat16, framefuse, default, step (eager: gradient)"
    assert equal.startswith("2 of 2 follow eager")


def test_the_plot_is_a_picture_also_with_gaps(tmp_path):
    failed = {"dtype": "float32", "compiler": "torch", "mode": "default", "part": "model", "equal": "not run: x"}
    vit.plot([row(), row(part="step"), failed], tmp_path / "vit.png", "on a machine")
    assert (tmp_path / "vit.png").read_bytes().startswith(b"\x89PNG")
