import csv
from dataclasses import replace

import pytest

from benchmarks import demo, run
from benchmarks.__main__ import main, parser
from benchmarks.calls import guards
from benchmarks.harness import compilers
from benchmarks.large import kernels


@pytest.fixture
def plain(monkeypatch):
    """A framefuse that compiles nothing and a torch.compile that cannot run, so that only the harness is tested."""

    def broken(function, dynamic):
        raise RuntimeError("no compiler here")

    monkeypatch.setitem(compilers.COMPILERS, "framefuse", lambda function, dynamic, mode=None: function)
    monkeypatch.setitem(compilers.COMPILERS, "torch", broken)


def test_a_benchmark_writes_its_files_and_names_them(plain, tmp_path, capsys):
    arguments = ["models", "--only", "mlp", "--seconds", "0.05", "--out", str(tmp_path)]
    assert main(arguments) == 0
    shown = capsys.readouterr().out
    assert "torch.compile is left out, since it does not run here: RuntimeError: no compiler here" in shown
    assert "1 of 1 models give eager's results" in shown
    assert all(name in shown for name in ("models.csv", "models.md", "models.png"))
    assert {path.name for path in tmp_path.iterdir()} == {"models.csv", "models.md", "models.png"}


def test_wrong_results_fail_the_command(plain, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(
        compilers.COMPILERS,
        "framefuse",
        lambda function, dynamic, mode=None: lambda *arguments: function(*arguments) + 1,
    )
    arguments = ["models", "--only", "mlp", "--no-torch", "--seconds", "0.05", "--out", str(tmp_path)]
    assert main(arguments) == 1
    assert "MLP: no: Tensor-likes are not close" in capsys.readouterr().out


def test_the_curve_in_small(plain, tmp_path):
    small = ["--statements", "1", "5", "--inputs", "12", "--passes", "1"]
    assert main(["curve", "--no-torch", *small, "--out", str(tmp_path)]) == 0
    with (tmp_path / "curve.csv").open() as file:
        assert [row["statements"] for row in csv.DictReader(file)] == ["1", "5"]
    assert (tmp_path / "curve.png").exists()


def test_kernels_in_small(plain):
    said = []
    case = kernels.Kernel("softmax", kernels.softmax, (4, 16), 2)
    row = kernels.measure(case, ["framefuse"], passes=1, say=said.append)
    assert row["shape"] == "4 x 16" and row["gigabytes"] > 0 and row["times_torch"] is None and len(said) == 2


@pytest.mark.parametrize("case", kernels.ON_GPU, ids=lambda case: case.name)
def test_the_kernels_of_a_gpu_in_small(plain, case):
    case = replace(case, shape=(48,) * len(case.shape))
    row = kernels.measure(case, ["framefuse"], passes=1, say=str)
    assert row["times_eager"] > 0 and ("of_copy" in row) is (case.moves > 0)


def test_answer_only_computes_once():
    calls = []
    backend = guards.answer_only(lambda x: calls.append(x) or [x], [])
    assert backend(1) == [1] and backend(2) == [1] and calls == [1]


def test_steps_agree_with_what_is_said(plain, monkeypatch):
    options = parser().parse_args(["kernels", "--no-torch"])
    small = tuple(kernels.Kernel(case.name, case.function, (4, 16), 1) for case in kernels.KERNELS)
    monkeypatch.setattr(kernels, "KERNELS", small)
    said = []
    rows = run.BY_NAME["kernels"].measure(said.append, options, ["framefuse"])
    assert len(rows) == 4 and len(said) == run.BY_NAME["kernels"].steps(options, ["framefuse"])


def test_the_demo_ends_with_the_plots(plain, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(demo.SETTINGS, "statements", (1, 2))
    monkeypatch.setitem(demo.SETTINGS, "only", ("mlp",))
    monkeypatch.setitem(demo.SETTINGS, "seconds", 0.05)
    assert main(["demo", "--no-torch", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"plots: {tmp_path / 'curve.png'} {tmp_path / 'models.png'}"
