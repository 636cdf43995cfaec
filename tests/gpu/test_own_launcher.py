"""Kernels that Triton launches, as on GPUs of other vendors, give eager's results on the GPU that is here."""

from dataclasses import replace

import pytest
import torch
from tests.gpu.kernels import NEEDS_GPU
from tests.gpu.programs import FUNCTIONS
from tests.gpu.test_programs import ROWS, close, seed

import framefuse
from framefuse.api import compiled_function
from framefuse.codegen import targets

pytestmark = NEEDS_GPU
PROGRAMS = ("chain", "softmax", "norms", "mixed", "broadcast")


@pytest.fixture
def as_others(monkeypatch):
    ours, others = targets.BACKENDS["cuda"], targets.BACKENDS["xpu"]
    monkeypatch.setitem(targets.BACKENDS, "cuda", replace(others, target=ours.target, lacks=ours.lacks))


@pytest.mark.parametrize("program", [p for p in FUNCTIONS if p.name in PROGRAMS], ids=lambda program: program.name)
def test_programs(program, as_others):
    fast = framefuse.compile(program.function)
    with torch.no_grad():
        for number, rows in enumerate(ROWS):
            seed(number)
            args = program.inputs(rows, "cuda")
            close(fast(*args), program.function(*args), program.scale)
    state = compiled_function(fast)
    assert state.dispatch.hits >= len(ROWS) - 2 and not state.reasons
    codes = [code for product in state.products for code in product.stages.code.kernels.values()]
    assert codes and all(not code.code.binary for code in codes)
