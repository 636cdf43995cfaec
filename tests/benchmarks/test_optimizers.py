"""The benchmark of optimizers steps the parameters of a transformer, and every column ends at the same ones."""

from __future__ import annotations

import pytest

from benchmarks.training import optimizers


def test_two_hundred_parameters() -> None:
    sizes = optimizers.transformer(128)
    assert len(sizes) == 200 and max(max(size) for size in sizes) == 512


@pytest.mark.parametrize("name", ["SGD, momentum", "AdamW"])
def test_a_row(name: str) -> None:
    said: list[str] = []
    row = optimizers.measure(name, 8, 1, said.append, layers=1)
    assert row["equal"] == "yes" and row["parameters"] == 20 and len(said) == 2
    assert row["times_fused"] and row["times_loop"]
    assert name in optimizers.findings([row])[0]
