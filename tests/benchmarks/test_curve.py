import math

import pytest

from benchmarks.calls import curve
from benchmarks.harness.compilers import COMPILERS


def rows(**columns):
    return [
        {"statements": n, **{f"{name}_us": values[i] for name, values in columns.items()}}
        for i, n in enumerate((1, 5, 10))
    ]


def test_inputs_are_those_of_the_experiment():
    assert {tuple(x.shape) for (x,) in curve.static_inputs(7)} == {(8, 16)}
    assert [tuple(x.shape) for (x,) in curve.dynamic_inputs(12)] == [(i % 10 + 4, 16) for i in range(12)]
    assert curve.COUNTS == (1, 5, 10, 15, 20, 25, 30) and curve.INPUTS == 300


def test_crossover_lies_where_the_drawn_lines_meet():
    measured = rows(eager=(2.0, 8.0, 32.0), torch_static=(4.0, 4.0, 4.0), framefuse_static=(1.0, 1.0, 1.0))
    assert curve.crossover(measured, "eager_us", "torch_static_us") == pytest.approx(3.0)  # halfway from 2 to 8 in logs
    assert curve.crossover(measured, "eager_us", "framefuse_static_us") == 1
    assert curve.crossover(measured, "framefuse_static_us", "eager_us") is None


def test_findings_say_who_pays_from_where():
    measured = rows(eager=(2.0, 8.0, 32.0), torch_static=(4.0, 4.0, 4.0), framefuse_static=(1.0, 1.0, 1.0))
    assert curve.findings(measured) == [
        "framefuse: faster than eager from n = 1, no loss zone",
        "torch.compile: slower than eager below n = 3.0",
    ]
    slow = rows(eager=(2.0, 8.0, 32.0), framefuse_static=(9.0, 9.0, 40.0))
    assert curve.findings(slow) == ["framefuse: slower than eager at every n measured"]


def test_one_row_has_every_column(monkeypatch):
    seen = []

    def plain(function, dynamic):
        seen.append((function, dynamic))
        return function

    monkeypatch.setitem(COMPILERS, "framefuse", plain)
    said = []
    row = curve.measure(5, ["framefuse"], inputs=12, passes=3, device="cpu", say=said.append)
    assert [dynamic for _, dynamic in seen] == [False, True]
    assert seen[0][0].__code__ is not seen[1][0].__code__
    assert {"eager_us", "framefuse_static_us", "framefuse_dynamic_us", "framefuse_dynamic_first_ms"} <= set(row)
    assert all(value is None or math.isfinite(value) for value in row.values())
    assert len(said) == curve.steps([5], ["framefuse"])


def test_a_wrong_result_is_not_timed(monkeypatch):
    monkeypatch.setitem(COMPILERS, "framefuse", lambda function, dynamic: lambda x: function(x) + 1)
    with pytest.raises(AssertionError):
        curve.measure(1, ["framefuse"], inputs=3, passes=1, device="cpu", say=lambda step: None)


@pytest.mark.parametrize("with_torch", [True, False])
def test_the_plot_is_a_picture(tmp_path, with_torch):
    lines = {"eager": (2.0, 8.0, 32.0), "framefuse_static": (1.0, 1.0, 1.0), "framefuse_dynamic": (1.0, 1.1, 1.2)}
    if with_torch:
        lines |= {"torch_static": (4.0, 4.0, 4.0), "torch_dynamic": (5.0, 5.0, 5.0)}
    curve.plot(rows(**lines), tmp_path / "curve.png", "on a machine")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
