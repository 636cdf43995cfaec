"""A fault of any stage costs the compile only: it is logged once, with a folder that tells all that is known."""

import importlib
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

import framefuse
from framefuse.api import compiled_function
from framefuse.driver import faults as driver_faults
from framefuse.driver import passes, tree
from framefuse.explain import faults, files

STAGES = {  # what fails: the products that were there
    "lower": ("trace",),
    "fuse": ("trace", "lowered", "graph", "chosen"),
    "compile_kernels": ("trace", "lowered", "graph", "chosen", "planned"),
    "build": ("trace", "lowered", "graph", "chosen", "planned", "code", "assumptions"),
    "assemble": ("trace", "lowered", "graph", "chosen", "planned", "code", "assumptions", "guards"),
    "record": (),
}
FILES = {"trace": "1_captured.txt", "graph": "3_graph.py", "guards": "2_guards.txt"}


def f(x):
    y = x * 2 + 1
    return y.sum(0), y


def broken(*args: Any, **kwargs: Any) -> Any:
    raise KeyError("a stage\nis broken")


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("own_folder", [True, False])
def test_a_fault_leaves_a_folder(
    stage: str, own_folder: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driver_faults, "_reported", {})
    if stage == "record":
        monkeypatch.setattr(importlib.import_module("framefuse.capture.record"), "Trace", broken)
    else:
        monkeypatch.setattr(passes, stage, broken)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    base = tmp_path / "own" if own_folder else tmp_path / "cache" / "framefuse" / "faults"
    fast = framefuse.compile(f, options={"check": False, "report": str(base) if own_folder else ""})
    x = torch.arange(6.0).reshape(2, 3)
    with caplog.at_level(logging.WARNING, logger="framefuse"):
        for _ in range(4):
            for given, expected in zip(fast(x), f(x), strict=True):
                torch.testing.assert_close(given, expected)
        again = framefuse.compile(f, options={"check": False, "report": str(base) if own_folder else ""})
        again(x)
    (folder,) = base.glob("fault_*")
    (line,) = [record.getMessage() for record in caplog.records if record.name == "framefuse"]
    assert str(folder) in line and "\n" not in line and "KeyError" in line and __file__ in line
    state = compiled_function(fast)
    assert state is not None and not state.products and state.eager_calls == 4
    (reason,) = state.reasons
    assert reason.code == "fault" and str(folder) in reason.advice

    texts = {path.name: path.read_text() for path in folder.iterdir()}
    assert "KeyError" in texts["error.txt"] and "in broken" in texts["error.txt"]
    assert torch.__version__ in texts["versions.txt"] and "python 3." in texts["versions.txt"]
    assert "def f(x):" in texts["program.txt"]
    there = texts["stages.txt"].split()
    assert [name for name in there if name != "bound"] == list(STAGES[stage]) or not STAGES[stage]
    assert {FILES[name] for name in STAGES[stage] if name in FILES} == set(texts) & set(FILES.values())
    if "trace" in STAGES[stage]:
        assert "mul" in texts["1_captured.txt"]


def test_what_cannot_be_printed_or_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(driver_faults, "_reported", {})
    monkeypatch.setattr(passes, "fuse", broken)
    monkeypatch.setattr(files, "graph_text", broken)
    framefuse.compile(f, options={"check": False, "report": str(tmp_path)})(torch.ones(2))
    (folder,) = tmp_path.glob("fault_*")
    assert "cannot be printed: KeyError" in (folder / "3_graph.py").read_text()
    monkeypatch.setattr(driver_faults, "_reported", {})
    monkeypatch.setattr(faults, "write_fault", broken)
    monkeypatch.setattr(driver_faults, "write_fault", broken)
    with caplog.at_level(logging.WARNING, logger="framefuse"):
        torch.testing.assert_close(
            framefuse.compile(f, options={"check": False})(torch.ones(2))[1], torch.full((2,), 3.0)
        )
    assert "no report was written" in caplog.records[-1].getMessage()


def test_a_report_that_cannot_be_written_is_no_error_of_the_call(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    fast = framefuse.compile(f, options={"check": False, "report": str(blocked)})
    with caplog.at_level(logging.WARNING, logger="framefuse"):
        for _ in range(3):
            torch.testing.assert_close(fast(torch.ones(2))[1], torch.full((2,), 3.0))
    assert fast.hits == 2 and "could not be written" in caplog.records[0].getMessage()


def test_a_fault_before_the_call_begins_leaves_the_call_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(driver_faults, "_reported", {})
    fast = framefuse.compile(f, options={"check": False, "report": str(tmp_path)})
    fast(torch.ones(2, 3))
    monkeypatch.setattr(tree, "moving", broken)
    x = torch.ones(2, 3, dtype=torch.float64)
    torch.testing.assert_close(fast(x)[1], f(x)[1])
    assert list(tmp_path.glob("fault_*"))


def test_stages_that_cannot_be_imported_leave_the_call_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As under a torch that they do not know."""
    monkeypatch.setattr(tree, "load_stages", broken)
    ran: list[int] = []

    def counted(x: torch.Tensor) -> torch.Tensor:
        ran.append(1)
        return x * 2

    fast = framefuse.compile(counted, options={"check": False, "report": str(tmp_path)})
    x = torch.randn(3)
    for number in range(3):
        torch.testing.assert_close(fast(x), x * 2)
        assert len(ran) == number + 1
    ((reason, count),) = framefuse.explain(fast).stops
    assert (reason.code, count) == ("fault", 1) and "KeyError" in reason.fact
