"""Rows that lie across memory are turned some at a time, and then gone along in whole vectors."""

import pytest
import torch
from torch.nn import functional as F

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.loops import Load, Loop, LoopKind, Scratch
from framefuse.ir.loops.walk import statements, values_of
from framefuse.ir.schedule import RunKernel

PROGRAMS = {
    "a norm": lambda x, y: F.layer_norm(x, x.shape[-1:]),
    "a softmax": lambda x, y: x.softmax(-1) * 2,
    "with what lies in order": lambda x, y: F.layer_norm(x + y, x.shape[-1:]) * y,
    "several results": lambda x, y: (x - x.mean(-1, keepdim=True), x.amax(-1), (x * y).sum(-1)),
    "two across": lambda x, y: (x * y.roll(1, -1).mT.contiguous().mT).log_softmax(-1),
    "a scaled integer": lambda x, y: (x / x.abs().amax(-1, keepdim=True) * 127).round().to(torch.int8),
    "a place": lambda x, y: x.argmax(-1) + (x * y).argmin(-1),
}
SIZES = ((3, 37, 64), (3, 37, 64), (1, 16, 20), (2, 5, 33), (2, 4, 17), (1, 1, 40), (4, 100, 1), (2, 50, 3000))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_across_memory(name, dtype):
    program = PROGRAMS[name]
    fast = framefuse.compile(program)
    torch.manual_seed(0)
    loose = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    for sizes in SIZES:
        x, y = (torch.randn(sizes[0], *order).to(dtype) for order in (sizes[:0:-1], sizes[1:]))
        mine, other = fast(x.mT, y), program(x.mT, y)
        if name == "a scaled integer":
            assert (mine.int() - other.int()).abs().max() <= 1
        elif dtype is torch.float32 and sizes[2] > 1000:  # long sums: eager's own are further from what is true
            true = program(x.mT.double(), y.double())
            mine, other, true = (each if isinstance(each, tuple) else (each,) for each in (mine, other, true))
            for ours, eagers, exact in zip(mine, other, true, strict=True):
                assert (ours - exact).abs().max() <= 2 * (eagers - exact).abs().max() + 1e-5
        else:
            torch.testing.assert_close(mine, other, **loose)
    assert fast.hits >= 4


@pytest.mark.parametrize("threads", [1, 2])
def test_gradients_of_a_norm_over_channels(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    norm = torch.nn.LayerNorm(48)

    def step(x, g):
        y = norm(x.flatten(2).transpose(1, 2))
        return torch.autograd.grad((y * g).sum(), (x, *norm.parameters()))

    fast = framefuse.compile(step)
    for batch in (4, 4, 3, 40):
        x, g = torch.randn(batch, 48, 14, 14, requires_grad=True), torch.randn(batch, 196, 48)
        torch.testing.assert_close(fast(x, g), step(x, g), rtol=1e-4, atol=1e-4)
    assert fast.hits >= 2
    torch.set_num_threads(before)


def test_vectors_go_along_rows_that_were_turned():
    fast = framefuse.compile(PROGRAMS["a norm"])
    for _ in range(2):
        fast(torch.randn(64, 100).mT, None)
    (product,) = compiled_function(fast).products
    (kernel,) = (item.kernel for item in product.stages.code.schedule.items if isinstance(item, RunKernel))
    parts = list(statements(kernel.body))
    assert any(isinstance(part, Scratch) for part in parts)
    *_, last = (part for part in parts if isinstance(part, Loop) and part.kind is LoopKind.VECTOR)
    loads = [part for part in values_of(last.body) if isinstance(part, Load)]
    assert [load.index.coefficient(last.axis).constant for load in loads] == [1] * len(loads)
