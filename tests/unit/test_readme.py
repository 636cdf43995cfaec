"""The README's code runs, and prints what the README says it prints."""

import subprocess
import sys
from pathlib import Path

import pytest

from user_pages import BLOCK, without_figures

README = Path(__file__).resolve().parents[2] / "README.md"

blocks = [(found["code"], found["output"]) for found in BLOCK.finditer(README.read_text())]


def test_there_is_code():
    assert blocks


@pytest.mark.parametrize(("code", "output"), blocks)
def test_block_runs_and_prints_what_is_shown(code, output, tmp_path):
    script = tmp_path / "readme.py"
    script.write_text(code)
    command = [sys.executable, "-W", "error::UserWarning", script.name]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    if output is not None:
        assert without_figures(ran.stdout) == without_figures(output)
