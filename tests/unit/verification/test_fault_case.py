"""The folder of a fault holds a program that shows it, without the user's values; `minify` makes it smaller."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import framefuse
from framefuse.codegen.llvm import pointwise
from framefuse.driver import faults
from framefuse.errors import UserError


def _net(x: torch.Tensor, y: torch.Tensor, scale: float, rows: torch.Tensor) -> torch.Tensor:
    return (((x.exp() * scale)[rows] - y).tanh() * 2).sum(-1)


def _fails(*given: object) -> None:
    raise KeyError("planted")


def test_a_folder_is_made_smaller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(faults, "_reported", {})
    monkeypatch.setitem(pointwise.FLOAT, "sub", _fails)
    fast = framefuse.compile(_net, options={"check": False, "report": str(tmp_path)})
    x = torch.full((40, 3), 123.25, requires_grad=True)
    fast(x, torch.rand(5, 3), 0.5, torch.arange(5))
    (folder,) = tmp_path.glob("fault_*")
    assert "123.25" not in (folder / "case.py").read_text()
    found = framefuse.minify(folder, path=tmp_path / "small.py")
    assert found.call == "sub" and found.case is not None and len(found.case.graph.nodes) == 4
    again = framefuse.minify(str(tmp_path / "small.py"))  # a file of its own is one to begin with as well
    assert again.call == "sub" and len(again.text.splitlines()) == len(found.text.splitlines())


def test_a_path_that_holds_no_program(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Give the folder of a fault"):
        framefuse.minify(tmp_path)
    (tmp_path / "other.py").write_text("x = 1\n")
    with pytest.raises(UserError, match="compares nothing"):
        framefuse.minify(tmp_path / "other.py")
