"""Models that one process ran are found by the next: it records nothing and imports no stage of the compiler."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.zoo.zoo import MissingLibrary, optional

ROOT = Path(__file__).parents[4]
SCRIPT = Path(__file__).with_name("models_in_a_process.py")
# Of transformers, our own, and layers whose recordings look at what others do not: caches that say a thing
# once, validators of fields, weak references.
NAMES = ("bart", "mamba", "mlp", "lstm", "gru", "transformer")


def run(folder):
    """What a process recorded, the stages that it imported, and what it told its user."""
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder), "PYTHONPATH": str(ROOT)}
    environment |= {"FRAMEFUSE_CACHE": "1", "FRAMEFUSE_CHECK": "0"}
    command = [sys.executable, str(SCRIPT), *NAMES]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stderr
    return *[line.split()[1:] for line in answer.stdout.splitlines()[-2:]], answer.stderr


def test_the_second_process_records_nothing_and_imports_no_stage(tmp_path):
    try:
        for library in ("transformers", "timm"):
            optional(library)
    except MissingLibrary as missing:
        pytest.skip(str(missing))
    recorded, imported, told = run(tmp_path)
    assert recorded == list(NAMES) and "lower" in imported and "mamba_inner_fn" in told
    assert run(tmp_path) == ([], [], told)
