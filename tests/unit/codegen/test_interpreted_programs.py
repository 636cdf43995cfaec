"""The whole compiler with Triton as its emitter, forward and backward, on the CPU's tensors by Triton's interpreter."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_programs_as_on_a_gpu():
    environment = {
        **os.environ,
        "TRITON_INTERPRET": "1",
        "FRAMEFUSE_TEST_DEVICE": "cpu",
        "FRAMEFUSE_CPU_TARGET": "triton",
        "FRAMEFUSE_CHECK": "1",
        "FRAMEFUSE_CACHE": "0",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    done = subprocess.run(
        [*command, "tests/gpu/test_programs.py"], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0 and " passed" in done.stdout and "failed" not in done.stdout, done.stdout[-6000:]
