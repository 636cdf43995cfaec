"""The loggers of the stages, and the levels that FRAMEFUSE_LOG sets."""

import logging
import os
import subprocess
import sys

import pytest
import torch

import framefuse
from framefuse.errors import UserError
from framefuse.options import LOGGERS, levels, resolve

DEBUG, INFO = logging.DEBUG, logging.INFO


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("debug", {"framefuse": DEBUG}),
        ("INFO", {"framefuse": INFO}),
        ("fuse=debug", {"framefuse.fuse": DEBUG}),
        ("info, fuse=debug,cache=info", {"framefuse": INFO, "framefuse.fuse": DEBUG, "framefuse.cache": INFO}),
        ("", {}),
        ("calls", {}),
        ("fuse", {}),
        ("fusion=debug", {}),
        ("debug,nonsense", {}),
    ],
)
def test_levels_that_are_stated(text, expected):
    assert levels(text) == expected


def test_levels_are_no_option(monkeypatch):
    monkeypatch.setenv("FRAMEFUSE_LOG", "fuse=debug")
    assert resolve(None).log == ""
    monkeypatch.setenv("FRAMEFUSE_LOG", "graphs")
    assert resolve(None).log == "graphs"
    monkeypatch.setenv("FRAMEFUSE_LOG", "fusion=debug")
    with pytest.raises(UserError, match=r"'calls'.*fuse=debug.*capture"):
        resolve(None)


def test_each_stage_tells_what_it_made(caplog):
    with caplog.at_level(DEBUG, "framefuse"):
        fast = framefuse.compile(lambda x: torch.relu(x) * 3 + 1, options={"check": False, "cache": True})
        fast(torch.randn(3)).sum()
    told = {record.name for record in caplog.records}
    assert {f"framefuse.{name}" for name in LOGGERS if name != "cache"} <= told
    assert any("recorded 3 calls" in record.getMessage() for record in caplog.records)


PROGRAM = """
import logging, sys
if "root" in sys.argv:
    logging.basicConfig(format="ours %(message)s")
import torch, framefuse
fast = framefuse.compile(lambda x: x * 2 + 1)
fast(torch.ones(3))
"""


STATED = [("debug", False), ("debug", True), ("fuse=debug", False), ("error", False)]


@pytest.mark.parametrize(("level", "root"), STATED)
def test_levels_of_the_environment(level, root):
    environment = {**os.environ, "FRAMEFUSE_LOG": level, "FRAMEFUSE_CACHE": "0"}
    command = [sys.executable, "-c", PROGRAM, *(["root"] if root else [])]
    shown = subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stderr.splitlines()
    made = [line for line in shown if "made planned" in line]
    assert len(made) == (0 if level == "error" else 1)
    if made:
        assert made[0].startswith("ours " if root else "DEBUG framefuse.fuse: ")
    assert any("framefuse.capture" in line for line in shown) == (level == "debug" and not root)
