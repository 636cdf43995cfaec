"""Programs compiled for a GPU and launched by the native plan: their kernels are run by Triton's interpreter."""

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
# The large model says nothing that the others do not; a wrong index ends the use of a real GPU.
LEFT_OUT = "not block and not index_out_of_range"


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_programs_are_launched():
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "FRAMEFUSE_TEST_DEVICE": "cpu",
        "FRAMEFUSE_CPU_TARGET": "triton",
        "FRAMEFUSE_CHECK": "1",
        "FRAMEFUSE_CACHE": "0",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-s", "-p", "no:cacheprovider", "-p", "no:xdist"]
    command += ["-p", "tests.unit.native.launched_programs", "-k", LEFT_OUT, "tests/gpu/test_programs.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0 and " passed" in done.stdout and "failed" not in done.stdout, done.stdout[-6000:]
    count = re.search(r"(\d+) launches", done.stdout)
    assert count and int(count[1]) > 200, done.stdout[-2000:]
