"""Launches of Triton kernels by its interpreter, on the CPU; and what a kernel writes, as its source says."""

import importlib.util

import pytest
from tests.unit.codegen.test_interpreted_programs import passes

pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def test_programs_with_kernels_of_their_own():
    passes(["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "tests/gpu/test_own_kernels.py"])
