"""Machine code that is loaded works wherever the process has room for it."""

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = Path(__file__).with_name("scattered_program.py")


@pytest.mark.skipif(sys.platform != "linux", reason="fills the address space by Linux' mmap")
def test_sections_of_one_kernel_stay_together_in_a_scattered_address_space() -> None:
    done = subprocess.run([sys.executable, str(PROGRAM)], capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout) == (0, "equal\n"), done.stderr[-2000:]
