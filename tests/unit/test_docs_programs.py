"""The programs for people who come from torch.compile run, and say at the end that all held."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAMS = sorted((Path(__file__).parents[2] / "docs" / "from_torch_compile").glob("*.py"))


def test_there_are_three():
    assert [path.stem for path in PROGRAMS] == ["diagnose", "serve", "train"]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.stem)
def test_the_program_runs(program):
    done = subprocess.run([sys.executable, "-W", "error::UserWarning", str(program)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-500:] + done.stderr[-2000:]
    last = {"diagnose": "diagnosed", "serve": "served without a later compile", "train": "trained as under eager"}
    assert done.stdout.splitlines()[-1] == last[program.stem]
