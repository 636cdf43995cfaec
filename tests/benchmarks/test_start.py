"""The benchmark of starts: a second process finds what the first has compiled, and imports are measured."""

from __future__ import annotations

import argparse

import pytest
import torch
from rich.console import Console

from benchmarks import run
from benchmarks.harness.report import number
from benchmarks.starting import shipped, start


def test_a_warm_process_is_faster_than_a_cold_one() -> None:
    said: list[str] = []
    row = start.measure("chain:30", said.append, ["framefuse"], 1)
    assert said == ["chain:30, framefuse, cold", "chain:30, framefuse, warm"]
    assert number(row, "framefuse_warm_ms") < number(row, "framefuse_cold_ms") / 3
    assert number(row, "eager_ms") > 0 and "torch_warm_ms" not in row
    assert 0 < number(row, "framefuse_mb") < 2000


def test_findings_name_what_is_over_the_limit(monkeypatch) -> None:
    monkeypatch.setattr(start, "imported", lambda compiler: {"seconds": 0.5, "bytes": 2e6})
    rows = [{"model": "a", "framefuse_warm_ms": 51.0, "missing": "onnx (no)"}, {"model": "b", "framefuse_warm_ms": 9.0}]
    assert start.findings(rows) == [
        "importing framefuse and framefuse.driver.tree beyond torch: 0.50 s, 2 MB",
        "a without onnx (no)",
        "warm first calls more than 50 ms above eager's: a 51",
    ]


def test_rows_are_saved_as_they_are_measured(monkeypatch, tmp_path) -> None:
    def measure(target, *given):
        if target != "mlp":
            raise KeyboardInterrupt
        return {"model": target, "framefuse_warm_ms": 3.0}

    monkeypatch.setattr(start, "measure", measure)
    monkeypatch.setattr(start, "exports", lambda *given: {})
    options = argparse.Namespace(only=["mlp", "bert"], threads=1, out=tmp_path)
    with pytest.raises(KeyboardInterrupt):
        run.present(run.BY_NAME["start"], options, ["framefuse"], Console(quiet=True))
    assert (tmp_path / "start.csv").read_text().splitlines()[1].startswith("mlp,3.0,")


def test_dimensions_of_several_sizes_are_told() -> None:
    calls = [(torch.ones(rows, 3), torch.ones(2)) for rows in (1, 2, 2)]
    assert shipped.changing(calls) == ({0: torch.export.Dim.DYNAMIC}, {})
    assert shipped.changing(calls[1:]) is None


def test_what_imports_cost() -> None:
    found = start.imported("framefuse")
    assert 0 < found["seconds"] < 30 and found["bytes"] < 1e9


def test_an_exported_program_is_timed_beside_the_others(monkeypatch) -> None:
    def broken(function, inputs, folder):
        raise ModuleNotFoundError("no such library\nmore")

    monkeypatch.setitem(shipped.CONTESTANTS, "onnx", broken)
    found = shipped.shipped("chain:3", ["exported", "compiled", "onnx"])
    assert found.pop("missing") == {"onnx": "ModuleNotFoundError: no such library"}
    assert set(found) == {"bytes", "load_s", "eager_s", "exported_s", "compiled_s"} and min(found.values()) > 0
    monkeypatch.setattr(shipped, "in_fresh_process", lambda *given: {**found, "missing": {}})
    row = start.exports("chain:3", lambda text: None, ["framefuse"], 1)
    assert row["missing"] is None and number(row, "call_exported_ms") == pytest.approx(1e3 * found["exported_s"])
    assert number(row, "exported_mb") == found["bytes"] / 1e6 and "call_torch_ms" not in row
