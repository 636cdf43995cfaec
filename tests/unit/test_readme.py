"""The README's code runs, and prints what the README says it prints."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
# A block of Python; a block of text right after it is what it prints.
BLOCK = re.compile(r"^```python\n(?P<code>.*?)^```\n(?:\n*```text\n(?P<output>.*?)^```$)?", re.MULTILINE | re.DOTALL)
FIGURE = re.compile(r"\d+(?:\.\d*)?(?: (?:us|ms|s)\b)?")

blocks = [(found["code"], found["output"]) for found in BLOCK.finditer(README.read_text())]


def without_figures(text: str) -> list[list[str]]:
    """The words of each line, a figure with its unit as # : times differ from run to run, what is said must not."""
    return [FIGURE.sub("#", line).split() for line in text.strip().splitlines()]


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
