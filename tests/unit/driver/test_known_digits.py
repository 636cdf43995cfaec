"""What a library said of digits is asked once for settings by which it chooses; other processes read it from disk."""

import pytest
import torch

from framefuse.codegen.disk_cache import DiskCache
from framefuse.driver import known_digits, winners
from framefuse.ir.whole_digits import ITSELF, SizedConvolution

FIRST = SizedConvolution("cuda:0", (1, 3, 4, 4), (2, 3, 3, 3), (1, 1), (0, 0), (1, 1), False, (0, 0), 1, ITSELF)
SECOND = FIRST.turned()


@pytest.fixture
def library(monkeypatch, tmp_path):
    """The questions that a library was asked; it keeps all digits of what is contiguous."""
    heard = []

    def answers(questions):
        heard.append(tuple(questions))
        return [not question.last for question in questions]

    monkeypatch.setattr(known_digits, "with_all_digits", answers)
    monkeypatch.setattr(known_digits, "_known", {})
    monkeypatch.setattr(winners.PROCESS, "disk", DiskCache(tmp_path))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    return heard


def test_each_question_is_asked_once(library):
    assert known_digits.asked((FIRST,), keep=False) == [True]
    assert known_digits.asked((FIRST, SECOND), keep=False) == [True, False]
    assert library == [(FIRST,), (SECOND,)]


def test_another_process_reads_it_and_other_settings_ask_anew(library, monkeypatch):
    known_digits.asked((FIRST, SECOND), keep=True)
    known_digits._known.clear()
    assert known_digits.asked((FIRST, SECOND), keep=True) == [True, False]
    assert len(library) == 1
    with torch.backends.cudnn.flags(enabled=True, benchmark=True):
        known_digits.asked((FIRST, SECOND), keep=True)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "another GPU")
    known_digits._known.clear()
    known_digits.asked((FIRST, SECOND), keep=True)
    assert len(library) == 3


def test_what_could_not_be_asked_is_asked_again(library, monkeypatch):
    monkeypatch.setattr(known_digits, "with_all_digits", lambda questions: [None] * len(questions))
    assert known_digits.asked((FIRST,), keep=True) == [None]
    assert known_digits._known == {} and not list(winners.PROCESS.disk.folder.glob("*.o"))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert known_digits.asked((FIRST,), keep=True) == [None]
