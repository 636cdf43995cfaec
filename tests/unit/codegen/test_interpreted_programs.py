"""The whole compiler with Triton as its emitter, forward and backward, on the CPU's tensors by Triton's interpreter."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]


PROGRAMS = "tests/gpu/test_programs.py"
PRIMITIVES = "tests/gpu/test_rows.py"
SUMS = "tests/gpu/test_scatter.py"
LAYOUTS = "tests/gpu/test_layouts.py"
NORMS = "tests/gpu/test_norms_of_batches.py"
PICTURES = "tests/gpu/test_sums_of_pictures.py"
PADDED = "tests/gpu/test_aligned_products.py"
MOVES = "tests/gpu/test_moves.py"
PIECES = "tests/gpu/test_pieces_together.py"
EINSUM = "tests/gpu/test_einsum.py"
STENCILS = "tests/gpu/test_stencils.py"
WINDOWS = "tests/gpu/test_overlapping_windows.py"
BESIDE = "tests/gpu/test_beside_reductions.py"
POINTS = "tests/gpu/test_points.py"
GROWN = "tests/gpu/test_growing_features.py"
QUANTILES = "tests/gpu/test_quantiles.py"
GROUPS = "tests/gpu/test_norms_of_groups.py"
SOFTMAXES = "tests/gpu/test_parts_of_softmaxes.py"
COLUMNS = "tests/gpu/test_short_columns.py"
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def passes(command: list[str], **more: str) -> str:
    """Runs a command in which Triton interprets; its output says that tests passed."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "FRAMEFUSE_CHECK": "1", "FRAMEFUSE_CACHE": "0", **more}
    environment |= {"FRAMEFUSE_TEST_DEVICE": "cpu", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280
    )
    assert done.returncode == 0 and " passed" in done.stdout and "failed" not in done.stdout, done.stdout[-6000:]
    return done.stdout


def test_programs_as_on_a_gpu():
    flags = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    files = [PROGRAMS, PRIMITIVES, SUMS, LAYOUTS, NORMS, PICTURES, PADDED, MOVES, PIECES]
    passes(["-m", "pytest", *flags, *files], FRAMEFUSE_CPU_TARGET="triton")


def test_products_as_on_a_gpu():
    flags = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    passes(["-m", "pytest", *flags, EINSUM, POINTS], FRAMEFUSE_CPU_TARGET="triton")


def test_stencils_and_quantiles_as_on_a_gpu():
    flags = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    passes(["-m", "pytest", *flags, STENCILS, QUANTILES], FRAMEFUSE_CPU_TARGET="triton")


def test_short_columns_as_on_a_gpu():
    flags = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    passes(["-m", "pytest", *flags, COLUMNS], FRAMEFUSE_CPU_TARGET="triton")


def test_parts_of_softmaxes_as_on_a_gpu():
    flags = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    passes(["-m", "pytest", *flags, SOFTMAXES], FRAMEFUSE_CPU_TARGET="triton")


def test_norms_of_groups_as_on_a_gpu():
    flags = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    passes(["-m", "pytest", *flags, GROUPS], FRAMEFUSE_CPU_TARGET="triton")


def test_windows_and_results_beside_reductions_as_on_a_gpu():
    flags = ["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist"]
    passes(["-m", "pytest", *flags, WINDOWS, BESIDE, GROWN], FRAMEFUSE_CPU_TARGET="triton")


def test_programs_by_launch_steps():
    """The plan's launch steps with their arguments and memory, through a driver that has Triton interpret them."""
    parts = "aligned chosen viewed softmax writes product mixed long_sum scalar anywhere AdamW"
    chosen = " or ".join(parts.split())
    said = passes(["tests/unit/codegen/launched_programs.py", PROGRAMS, "-k", chosen])
    assert " launches, " in said
