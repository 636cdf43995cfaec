"""A short soak: no model differs, and what it draws is compiled and hit."""

from tests.soak.models import FAMILIES
from tests.soak.run import Faults, Soak, line


def test_some_rounds():
    soak = Soak(seed=7)
    for _ in range(8):
        soak.round()
    soak.sample()
    assert not soak.wrong, soak.wrong
    assert soak.count["hits"] > soak.rounds and len(FAMILIES) == 6
    assert "8 models" in line(soak, Faults(), 60.0)


def test_a_wrong_result_is_told(monkeypatch):
    monkeypatch.setattr("tests.soak.run.tensors", lambda found: [])  # no loss: the step of training raises
    soak = Soak(seed=7)
    for _ in range(8):
        soak.round()
    assert soak.wrong and "round" in soak.wrong[0]
