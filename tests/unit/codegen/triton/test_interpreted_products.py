"""Kernels that are products compute what the oracle computes, in tiles of any shape, by Triton's interpreter."""

import pytest
import tests.unit.fuse.graphs as machine
import torch
from tests.unit.codegen.triton import interpreted
from tests.unit.codegen.triton.product_kernels import K, M, N, linear_relu
from tests.unit.fuse.grouping.test_fused_products import *  # noqa: F403

from framefuse.codegen.specialisation import Choice, Place, Specialisation
from framefuse.codegen.triton import by_interpreter
from framefuse.codegen.triton.products import choices
from framefuse.ir.dtypes import BFLOAT16, FLOAT16, FLOAT32

LOOSE = {FLOAT32: (1e-5, 1e-4), FLOAT16: (2e-3, 4e-3), BFLOAT16: (2e-2, 2e-2)}


@pytest.fixture(autouse=True)
def the_triton_way(monkeypatch):
    """The tests of fuse's products run here with Triton's interpreter in place of the oracle."""
    monkeypatch.setattr(machine, "interpret", interpreted.run)


@pytest.mark.parametrize("dtype", [FLOAT32, FLOAT16, BFLOAT16], ids=str)
@pytest.mark.parametrize("sizes", [(7, 9, 33), (64, 48, 32), (1, 1, 1), (34, 17, 70)], ids=str)
@pytest.mark.parametrize("lie", ["nn", "nt", "tn", "tt"])
def test_odd_sizes_and_transposed_operands(dtype, sizes, lie):
    m, n, k = sizes
    hints = {M: m, N: n, K: k}
    a, c = ((torch.randn(shape) / 2).to(dtype.torch) for shape in ((m, k), (k, n)))
    bias = torch.randn(n).to(dtype.torch)
    wanted = torch.relu(a.double() @ c.double() + bias.double())
    given = [x.t().contiguous() if letter == "t" else x for x, letter in zip((a, c), lie, strict=True)]
    relative, absolute = LOOSE[dtype]
    for static in (None, sizes):
        kernel = linear_relu(dtype, lie, static)
        for choice in (None, Choice(16, 16, 4, 3, 16), Choice(32, 64, 4, 3, 32)):
            code = by_interpreter(kernel, Specialisation(hints, choice=choice), Place("cpu"))
            out = torch.full((m, n), 7.0, dtype=dtype.torch)
            buffers = [*(x.flatten() for x in given), bias, out.view(-1)]
            numbers = () if static else sizes
            assert code.run(buffers, numbers, code.code.programs.evaluate(hints)) == 0
            torch.testing.assert_close(out.double(), wanted, rtol=relative, atol=absolute)


def test_one_code_for_all_sizes():
    kernel = linear_relu(BFLOAT16, "nt", None)
    hints = {M: 64, N: 64, K: 64}
    code = by_interpreter(kernel, Specialisation(hints, choice=Choice(32, 32, 4, 3, 32)), Place("cpu"))
    for m, n, k in ((64, 64, 64), (64, 64, 96), (64, 64, 80), (5, 64, 64), (64, 65, 64), (33, 31, 1)):
        a, w, bias = ((torch.randn(shape) / 4).to(torch.bfloat16) for shape in ((m, k), (n, k), (n,)))
        out = torch.full((m, n), 7.0, dtype=torch.bfloat16)
        programs = code.code.programs.evaluate({M: m, N: n, K: k})
        assert code.run([a.flatten(), w.flatten(), bias, out.view(-1)], (m, n, k), programs) == 0
        wanted = torch.relu(a.double() @ w.double().t() + bias.double())
        torch.testing.assert_close(out.double(), wanted, rtol=2e-2, atol=2e-2)


def test_choices_fit_the_sizes():
    kernel = linear_relu(BFLOAT16, "nn", None)
    large = choices(kernel, {M: 8192, N: 4096, K: 4096})
    small = choices(kernel, {M: 20, N: 20, K: 20})
    assert 5 <= len(large) <= 8 and large[0].points >= 128 and large[0].width >= 128
    assert small and all(c.points <= 64 and c.width <= 64 for c in small)
