"""Logarithms that short rows have one of each are computed for many rows by one vector loop."""

import pytest
import torch
from torch.nn import functional as F

import framefuse
from framefuse.api import compiled_function
from framefuse.ir.loops import Apply, Loop, LoopKind
from framefuse.ir.loops.walk import statements, values_of
from framefuse.ir.schedule import RunKernel

PROGRAMS = {
    "log_softmax": lambda x, t: x.log_softmax(-1),
    "of a sum, scaled": lambda x, t: (x * 2 + t[:, None]).log_softmax(-1) * t[:, None],
    "a result of each row": lambda x, t: (x.logsumexp(-1), x.softmax(-1)),
    "two of one level": lambda x, t: x.exp().sum(-1, keepdim=True).log() * x + x.abs().amax(-1, keepdim=True).log1p(),
    "one behind another": lambda x, t: x.log_softmax(-1) - x.log_softmax(-1).exp().sum(-1, keepdim=True).log(),
    "a position": lambda x, t: x.log_softmax(-1).gather(1, t.long().abs()[:, None] % x.shape[1]),
    "an entropy": lambda x, t: -(x.softmax(-1) * x.log_softmax(-1)).sum(-1),
    "rows of several axes": lambda x, t: x.view(x.shape[0], 1, -1).repeat(1, 2, 1).log_softmax(-1) * 2,
    "a mean": lambda x, t: x.log_softmax(-1).mean(),
}
SIZES = ((100, 20), (100, 20), (63, 17), (64, 33), (65, 60), (7, 24), (1, 18), (129, 16), (200, 1), (130, 200))
LEAST = {torch.float32: 2e-6, torch.bfloat16: 1e-2, torch.float64: 1e-13}


def inputs(rows, points, dtype):
    return torch.randn(rows, points).to(dtype), torch.randn(rows).to(dtype)


@pytest.mark.parametrize("dtype", LEAST, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_rows_of_any_number(name, dtype):
    program = PROGRAMS[name]
    fast = framefuse.compile(program)
    torch.manual_seed(0)
    for sizes in SIZES:
        x, t = inputs(*sizes, dtype)
        found, eager, exact = fast(x, t), program(x, t), program(x.double(), t.double())
        as_tuples = ((each,) if isinstance(each, torch.Tensor) else each for each in (found, eager, exact))
        for mine, other, true in zip(*as_tuples, strict=True):
            assert mine.dtype is other.dtype and mine.stride() == other.stride()
            bound = 2 * (other.double() - true).abs().max() + LEAST[dtype] * true.abs().max().clamp(min=1)
            assert (mine.double() - true).abs().max() <= bound
    assert fast.hits >= len(SIZES) - 2


def test_rows_without_a_finite_largest_element():
    fast = framefuse.compile(PROGRAMS["log_softmax"])
    t = torch.zeros(70)
    for _ in range(3):
        x = torch.randn(70, 24)
        x[3], x[64], x[69, 5], x[7, 2] = -torch.inf, torch.nan, torch.inf, -torch.inf
        torch.testing.assert_close(fast(x, t), x.log_softmax(-1), equal_nan=True)
    assert fast.hits


@pytest.mark.parametrize("threads", [1, 2])
def test_gradients_of_a_loss(threads):
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        fast = framefuse.compile(lambda x, t: F.nll_loss(x.log_softmax(-1), t))
        for rows in (100, 100, 37, 3000):
            x, t = torch.randn(rows, 40, requires_grad=True), torch.randint(0, 40, (rows,))
            ours, theirs = fast(x, t), F.nll_loss(x.log_softmax(-1), t)
            torch.testing.assert_close(ours, theirs)
            torch.testing.assert_close(*(torch.autograd.grad(each, x)[0] for each in (ours, theirs)))
    finally:
        torch.set_num_threads(before)
    assert fast.hits


def test_one_vector_loop_has_the_logarithms():
    fast = framefuse.compile(PROGRAMS["log_softmax"])
    for _ in range(2):
        fast(*inputs(100, 20, torch.float32))
    (product,) = compiled_function(fast).products
    (item,) = [item for item in product.stages.code.schedule.items if isinstance(item, RunKernel)]
    loops = [each for each in statements(item.kernel.body) if isinstance(each, Loop) and each.kind is LoopKind.VECTOR]
    logs = [[v for v in values_of(loop.body) if isinstance(v, Apply) and v.op == "log"] for loop in loops]
    assert [len(each) for each in logs] == [0, 0, 1, 0]
