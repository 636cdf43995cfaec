"""The benchmark of starts: a second process finds what the first has compiled, and imports are measured."""

from __future__ import annotations

from benchmarks import start
from benchmarks.report import number


def test_a_warm_process_is_faster_than_a_cold_one() -> None:
    said: list[str] = []
    row = start.measure("chain:30", said.append, ["framefuse"], 1)
    assert said == ["chain:30, framefuse, cold", "chain:30, framefuse, warm"]
    assert number(row, "framefuse_warm_ms") < number(row, "framefuse_cold_ms")
    assert number(row, "eager_ms") > 0 and "torch_warm_ms" not in row


def test_findings_name_what_is_over_the_limit(monkeypatch) -> None:
    monkeypatch.setattr(start, "imported", lambda compiler: {"seconds": 0.5, "bytes": 2e6})
    said = start.findings([{"model": "a", "framefuse_warm_ms": 51.0}, {"model": "b", "framefuse_warm_ms": 9.0}])
    assert said == [
        "importing framefuse beyond torch: 0.50 s, 2 MB",
        "warm first calls more than 50 ms above eager's: a 51",
    ]


def test_what_imports_cost() -> None:
    found = start.imported("framefuse")
    assert 0 < found["seconds"] < 30 and found["bytes"] < 1e9
