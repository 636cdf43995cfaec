"""Exports for a GPU: run on one that is not there, and compiled for one where there is no driver."""

import ctypes
import importlib.util
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.unit.native import fake_driver

import framefuse
from framefuse.codegen import targets
from framefuse.codegen.specialisation import at_once
from framefuse.ir.plan import MatmulStep
from framefuse.runtime.item_steps import ByLibrary

ROOT = Path(__file__).resolve().parents[3]
pytestmark = pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")


def test_libraries_launch_what_the_interpreter_runs():
    environment = {**os.environ, "TRITON_INTERPRET": "1", "FRAMEFUSE_CACHE": "0", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "tests/unit/aot/exported_for_gpu.py"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-6000:]


def has_driver():
    try:
        return bool(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        return False


@pytest.fixture
def for_gpu(monkeypatch):
    """Exports of tensors on the CPU compile real code for a GPU, which nothing launches."""

    def compiled(kernel, special, place):
        made = targets.BACKENDS["cuda"].compile(kernel, special, replace(place, load=None)).finish()
        return replace(made, code=replace(made.code, function=1))

    target = replace(targets.BACKENDS["cpu by triton"].target, library=False, products=True)
    own = {"compile": at_once(compiled), "choices": None}
    backend = replace(targets.BACKENDS["cuda"], target=target, lacks=lambda: None, **own)
    monkeypatch.setitem(targets.BACKENDS, "cpu alone", backend)
    with fake_driver.fake_driver():
        yield


@pytest.mark.skipif(has_driver(), reason="there is a CUDA driver")
def test_a_library_says_that_there_is_no_driver(for_gpu, tmp_path):
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32)).eval()
    written = framefuse.export(model, (torch.randn(8, 16),), tmp_path / "program.so")
    assert len(written.weights) == 4
    whole = (tmp_path / "program.so").read_bytes()
    assert whole.count(b"\x7fELF") > 1
    with pytest.raises(framefuse.UserError, match=r"there is no CUDA driver: libcuda\.so\.1"):
        framefuse.load(tmp_path / "program.so")


def test_a_product_by_the_library_is_that_of_its_step():
    a, c, out = torch.randn(3, 4, 5), torch.randn(5, 6), torch.zeros(3, 4, 6)
    product = ByLibrary(MatmulStep(2, 0, 1, 0, 0, 0, 0, (0, 0, 0), (0, 0, 0), (0, 0, 0)))
    product(out, a, c, (3, 4, 6, 5), (20, 5, 1), (0, 6, 1), (24, 6, 1))
    torch.testing.assert_close(out, a @ c)


def test_examples_lie_on_one_device():
    meta = torch.empty(3, device="meta")
    with pytest.raises(framefuse.UserError, match=r"on meta\. Export is for the CPU and for CUDA"):
        framefuse.export(torch.relu, (meta,), "never.so")
