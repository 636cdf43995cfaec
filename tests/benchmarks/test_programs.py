from dataclasses import replace

import pytest
import torch

from benchmarks.__main__ import main
from benchmarks.harness import compilers
from benchmarks.large.matrix import nested
from benchmarks.programs import measuring
from benchmarks.programs.measuring import LEVELS, Chosen
from benchmarks.programs.program import PROGRAMS, Program


def named(name):
    return next(one for one in PROGRAMS if one.name == name)


@pytest.fixture
def plain(monkeypatch):
    """A framefuse that compiles nothing, so that only the harness is tested."""
    monkeypatch.setitem(compilers.COMPILERS, "framefuse", lambda module, dynamic, mode=None: module)


def test_names_are_unique_and_each_level_has_many():
    names = [one.name for one in PROGRAMS]
    assert len(set(names)) == len(names) >= 200
    assert all(len(Chosen(levels=[level]).programs()) > 40 for level in LEVELS)
    parts = [one for part in ("1/3", "2/3", "3/3") for one in Chosen(part=part).programs()]
    assert len(parts) == len(names)
    assert {one.name for one in Chosen(only=["chunked", "gpt"]).programs()} == {
        f"{name}{dtype}" for name in ("chunked rotary", "gpt") for dtype in ("", " bfloat16")
    }


@pytest.mark.parametrize("program", PROGRAMS[::9], ids=lambda program: program.name)
def test_programs_run_with_inputs_of_their_own(program):
    function, *inputs = program.function("cpu"), program.arguments("cpu", 1), program.arguments("cpu", 2)
    with torch.no_grad():
        one, other = (nested(function(*given)) for given in inputs)
    assert all(a.shape == b.shape for a, b in zip(one, other, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("name", ["chunked rotary", "linear mish twice", "narrow perceptron", "feed forward bfloat16"])
def test_programs_of_each_level_are_compiled(name):
    row = measuring.timed(measuring.prepare(named(name), ["framefuse"], "cpu", str), "cpu")
    assert row["equal"] == "yes" and row["times_eager"] > 0 and row["first_s"] > 0


def test_what_is_further_from_float64_than_eager_is_wrong(monkeypatch):
    monkeypatch.setitem(
        compilers.COMPILERS, "framefuse", lambda module, dynamic, mode=None: lambda *given: module(*given) * 1.001
    )
    row = measuring.timed(measuring.prepare(named("softmax"), ["framefuse"], "cpu", str), "cpu")
    assert str(row["equal"]).startswith("no: 100")
    assert any("softmax is wrong" in line for line in measuring.findings([row]))


def test_infinities_are_no_distance():
    exact = torch.tensor([1.0, -torch.inf], dtype=torch.float64)
    assert measuring.apart(torch.tensor([1.0, -torch.inf]), exact) == 0
    assert not measuring.apart(torch.tensor([1.0, 2.0]), exact) < 1


def test_a_program_that_fails_is_a_row(monkeypatch):
    def failing(x):
        raise ValueError("not here")

    monkeypatch.setitem(compilers.COMPILERS, "framefuse", lambda module, dynamic, mode=None: failing)
    row = measuring.timed(measuring.prepare(named("relu"), ["framefuse"], "cpu", str), "cpu")
    assert row["equal"] == "no: ValueError: not here"
    assert measuring.findings([row]) == ["relu is wrong: no: ValueError: not here"]


def test_arguments_have_the_dtype_of_the_program():
    program = Program("p", 1, torch.add, lambda n: [torch.ones(n(9, 2)), torch.ones(2, dtype=torch.int64), 3])
    one, whole, number = replace(program, dtype=torch.bfloat16).arguments("cpu", 0)
    assert (one.dtype, len(one), whole.dtype, number) == (torch.bfloat16, 2, torch.int64, 3)


def test_findings_have_the_means_of_levels_and_every_loss():
    rows = [
        {"program": f"p{place}", "level": 2, "equal": "yes", "times_eager": times, "times_torch": 1.0}
        for place, times in enumerate((4.0, 0.25, 8.0))
    ]
    assert measuring.findings(rows) == [
        "level 2, short chains: 2.00 of eager; behind it 1 of 3",
        "  0.25  p1",
        "level 2, short chains: 1.00 of torch.compile; behind it 0 of 3",
    ]


@pytest.mark.parametrize("jobs", [1, 2])
def test_the_command_writes_a_table(plain, tmp_path, capsys, jobs):
    arguments = ["--only", "hardtanh", "swish", "selu", "--jobs", str(jobs), "--out", str(tmp_path)]
    assert main(["programs", "--no-torch", *arguments]) == 0
    assert "level 1, single operators" in capsys.readouterr().out
    assert {path.name for path in tmp_path.iterdir()} == {"programs.csv", "programs.md"}
    assert len((tmp_path / "programs.csv").read_text().splitlines()) == 4
