"""A product and the gelu that alone reads it become one call of the library, where a target says that it can."""

import math

import pytest
import torch
import torch.nn.functional as F
from tests.unit.autodiff import gradient_graphs
from tests.unit.fuse.graphs import Builder, check, evaluate, run, symbol
from tests.unit.lower.recording import trace_of
from torch import nn

from framefuse.autodiff import halves, without_marks
from framefuse.fuse import fuse
from framefuse.fuse.grouping import epilogues
from framefuse.fuse.verify import problems
from framefuse.ir.dtypes import BFLOAT16, FLOAT16, FLOAT32
from framefuse.ir.loops.key import key_of
from framefuse.ir.schedule import RunCall, RunKernel
from framefuse.ir.target import Target
from framefuse.lower import lower

LIBRARY = Target("cpu", "triton", 2500.0, products=False, scratch=False, epilogues=True)
LOOSE = {"rtol": 3e-2, "atol": 3e-2}


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


def fused(graph, target=LIBRARY, **options):
    return fuse(graph, targets=lambda device: target, **options)


def steps(schedule):
    """The library's calls by name, and how many kernels there are."""
    items = schedule.items
    called = [item.node.attr("name") for item in items if isinstance(item, RunCall)]
    return called, sum(isinstance(item, RunKernel) for item in items)


def layer(dtype=BFLOAT16, rows=(5,), bias=(16,), **hints):
    """A builder, the product of an input with a weight plus a bias, and the tensors behind them."""
    b = Builder(**hints)
    sizes = tuple(symbol(name) if name in hints else size for name, size in zip("mp", rows, strict=False))
    x, w, c = b.input((*sizes, 20), dtype), b.input((16, 20), dtype), b.input(bias, dtype)
    tensors = [(torch.randn(shape) / 2).to(dtype.torch) for shape in ((*rows, 20), (16, 20), bias)]
    return b, b.library(F.linear, [x, w, c], (*sizes, 16), dtype), tensors


def gelu(b, x):
    """By tanh, as lowering writes it."""
    a = b.cast(x, dtype=FLOAT32) if x.dtype is not FLOAT32 else x
    inner = b.mul(0.7978845608028654, b.fma(b.mul(b.mul(a, a), a), 0.044715, a))
    result = b.mul(b.mul(0.5, a), b.add(1.0, b.tanh(inner)))
    return b.cast(result, dtype=x.dtype) if x.dtype is not FLOAT32 else result


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16])
@pytest.mark.parametrize("dynamic", [False, True])
def test_a_linear_layer_and_gelu(dtype, dynamic):
    """On the CPU the call's gelu is the one by erf, which is as near as 16-bit floats tell."""
    b, y, tensors = layer(dtype, **({"m": 5} if dynamic else {}))
    graph = b.graph(gelu(b, y))
    schedule = fused(graph)
    assert steps(schedule) == (["linear_gelu_tanh"], 0)
    for rows in (5, 9, 1, 0) if dynamic else (5,):
        check(graph, schedule, torch.randn(rows, 20).to(dtype.torch), *tensors[1:], **LOOSE)
    assert steps(fused(graph, exact=True)) == (["linear"], 1)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("use", ["output", "call", "call and kernel"])
def test_rows_of_several_dimensions(use, dynamic):
    """The call gives a matrix: what reads it sees it with its own dimensions."""
    b, y, tensors = layer(rows=(5, 3), **({"m": 5, "p": 3} if dynamic else {}))
    z = result = gelu(b, y)
    if use != "output":
        result = b.library(torch.Tensor.matmul, [z, b.input((16, 16), BFLOAT16)], y.shape, BFLOAT16)
        tensors.append(torch.randn(16, 16).bfloat16())
    if use == "call and kernel":  # which has more to read than a product
        wide = (b.cast(node, dtype=FLOAT32) for node in (result, z))
        result = b.cast(b.neg(b.add(*wide)), dtype=BFLOAT16)
    graph = b.graph(result)
    schedule = fused(graph)
    called, kernels = steps(schedule)
    assert called == ["linear_gelu_tanh", "as_strided" if use == "output" else "matmul"]
    assert kernels == (use == "call and kernel")
    check(graph, schedule, *tensors, **LOOSE)


def test_a_feature_that_lies_behind_others():
    """It has a place in their memory, which a call does not write."""
    b = Builder()
    x, w, c = b.input((5, 20), BFLOAT16), b.input((20, 20), BFLOAT16), b.input((20,), BFLOAT16)
    features, read = [x], []
    for number in range(6):
        scaled = b.library(torch.mul, [x], (5, 20), BFLOAT16, args=(0.25 * number,))
        features.append(gelu(b, b.library(F.linear, [scaled, w, c], (5, 20), BFLOAT16)))
        joined = b.cast(b.cat(features, 0), dtype=FLOAT32)
        read.append(b.reduce("sum", b.tanh(joined), 0))
    graph = b.graph(*read)
    schedule = fused(graph, check=True)
    assert any(memory.place == "view" and memory.offset is not None for memory in schedule.memories)
    tensors = ((torch.randn(shape) / 2).bfloat16() for shape in ((5, 20), (20, 20), (20,)))
    check(graph, schedule, *tensors, rtol=3e-2, atol=5e-2)


def test_a_result_that_a_call_may_keep():
    b, y, tensors = layer(rows=(5, 3))
    kept = b.library(torch.Tensor.reshape, [gelu(b, y)], (15, 16), BFLOAT16, args=((15, 16),))
    schedule = fused(b.graph(kept))
    assert steps(schedule) == (["linear_gelu_tanh", "as_strided", "reshape"], 0)
    check(b.graph(kept), schedule, *tensors, **LOOSE)


@pytest.mark.parametrize("bias", [(16,), (1, 16)])
def test_addmm_and_its_result_under_another_shape(bias):
    b = Builder()
    c, x, w = b.input(bias, BFLOAT16), b.input((12, 20), BFLOAT16), b.input((20, 16), BFLOAT16)
    y = b.library(torch.addmm, [c, x, w], (12, 16), BFLOAT16)
    graph = b.graph(gelu(b, b.reshape(y, 4, 3, 16)))
    schedule = fused(graph)
    assert steps(schedule) == (["addmm_gelu_tanh", "as_strided"], 0)
    check(graph, schedule, *((torch.randn(shape) / 2).bfloat16() for shape in (bias, (12, 20), (20, 16))), **LOOSE)


def test_operands_that_are_views():
    b = Builder()
    x, w, c = b.input((6, 60), BFLOAT16), b.input((20, 25), BFLOAT16), b.input((40,), BFLOAT16)
    left, right, bias = b.slice(x, (0, 5), (6, 20)), b.slice(w, (2, 1), (16, 20)), b.slice(c, (3,), (16,))
    graph = b.graph(gelu(b, b.library(F.linear, [left, right, bias], (6, 16), BFLOAT16)))
    schedule = fused(graph)
    assert steps(schedule) == (["linear_gelu_tanh"], 0)
    check(graph, schedule, *((torch.randn(shape) / 2).bfloat16() for shape in ((6, 60), (20, 25), (40,))), **LOOSE)


REFUSED = {
    "no bias": lambda b, y, x: gelu(b, b.library(F.linear, list(y.inputs[0].inputs[:2]), y.shape, y.dtype)),
    "relu": lambda b, y, x: b.maximum(0.0, y),
    "the product alone": lambda b, y, x: b.cast(b.cast(y, dtype=FLOAT32), dtype=BFLOAT16),
    "more in the kernel": lambda b, y, x: b.add(gelu(b, y), x),
    "a result that is transposed": lambda b, y, x: b.permute(gelu(b, y), 1, 0),
    "a reduction": lambda b, y, x: b.reduce("amax", gelu(b, y), 0),
    "another dtype": lambda b, y, x: gelu(b, b.cast(y, dtype=FLOAT32)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_stays_two_steps(name):
    b, y, tensors = layer()
    x = b.input((5, 16), BFLOAT16)
    graph = b.graph(REFUSED[name](b, y, x))
    schedule = fused(graph)
    called, kernels = steps(schedule)
    assert called == ["linear"] and kernels
    check(graph, schedule, *tensors, torch.randn(5, 16).bfloat16(), **LOOSE)


@pytest.mark.parametrize("more", [False, True], ids=["result", "reader"])
def test_a_product_that_is_needed_itself(more):
    b, y, tensors = layer()
    graph = b.graph(gelu(b, y), b.reduce("sum", y, 0) if more else y)
    assert steps(fused(graph))[0] == ["linear"]
    check(graph, fused(graph), *tensors, **LOOSE)


def test_a_sum_that_may_have_no_terms():
    b = Builder(k=20)
    k = symbol("k")
    x, w, c = b.input((5, k), BFLOAT16), b.input((16, k), BFLOAT16), b.input((16,), BFLOAT16)
    graph = b.graph(gelu(b, b.library(F.linear, [x, w, c], (5, 16), BFLOAT16)))
    assert steps(fused(graph)) == (["linear"], 1)


def test_a_bias_with_gaps():
    b = Builder()
    x, w, c = b.input((5, 20), BFLOAT16), b.input((16, 20), BFLOAT16), b.input((16,), BFLOAT16, strides=(2,))
    graph = b.graph(gelu(b, b.library(F.linear, [x, w, c], (5, 16), BFLOAT16)))
    assert steps(fused(graph)) == (["linear"], 1)


def test_other_targets_and_other_torches(monkeypatch):
    b, y, _ = layer()
    graph = b.graph(gelu(b, y))
    assert steps(fused(graph, Target("cpu", "triton", 2500.0, products=False, scratch=False))) == (["linear"], 1)
    monkeypatch.setattr(epilogues, "SCHEMA", "aten::_addmm_activation(Tensor self) -> Tensor")
    epilogues.activating_call.cache_clear()
    try:
        assert steps(fused(graph)) == (["linear"], 1)
        monkeypatch.undo()
        monkeypatch.setenv("DISABLE_ADDMM_CUDA_LT", "1")
        epilogues.activating_call.cache_clear()
        assert steps(fused(graph)) == (["linear"], 1)
    finally:
        epilogues.activating_call.cache_clear()


# ---- as programs say it


def lowered(module, x, **options):
    return lower(trace_of(module, x), **options)


class Written(nn.Module):
    """gelu as GPT-2's sources write it, or nearly so."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + self.factor * torch.pow(x, 3.0))))


ACTIVATIONS = {
    "torch's": nn.GELU("tanh"), "written": Written(0.044715),
    "by erf": nn.GELU(), "another factor": Written(0.044714), "relu": nn.ReLU(),
}  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("exact", [False, True])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_modules(name, exact, dtype):
    module = nn.Sequential(nn.Linear(20, 16), ACTIVATIONS[name], nn.Linear(16, 4)).to(dtype).requires_grad_(False)
    x = torch.randn(6, 3, 20, dtype=dtype)
    graph = without_marks(lowered(module, x, exact=exact))
    schedule = fused(graph, exact=exact)
    taken = name in ("torch's", "written") and not exact
    assert steps(schedule) == (["linear_gelu_tanh" if taken else "linear", "linear"], 0 if taken else 1)
    check(graph, schedule, x, *module.parameters(), **LOOSE)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(20, 16), nn.Linear(16, 16)

    def forward(self, x):
        y = F.gelu(self.first(x), approximate="tanh")
        return torch.tanh(self.second(y) + y)


def test_a_kernel_behind_another_product_reads_it_too():
    module, x = Residual().bfloat16().requires_grad_(False), torch.randn(6, 3, 20).bfloat16()
    graph = without_marks(lowered(module, x))
    assert steps(fused(graph)) == (["linear_gelu_tanh", "linear"], 1)
    check(graph, fused(graph), x, *module.parameters(), **LOOSE)


def test_training_keeps_the_product():
    module = nn.Sequential(nn.Linear(20, 16), nn.GELU("tanh"), nn.Linear(16, 4))
    trace = gradient_graphs.trace_of(module.bfloat16(), torch.randn(6, 20).bfloat16())
    graph = lower(trace)
    forward = halves(graph, range(len(graph.inputs)), None).forward  # nobody writes any input
    assert steps(fused(forward)) == (["linear", "linear"], 1)  # gelu's gradient reads it


# ---- in the modes that measure


def wide(rows=17):
    b = Builder()
    x, w, c = b.input((rows, 20), BFLOAT16), b.input((16, 20), BFLOAT16), b.input((16,), BFLOAT16)
    y = gelu(b, b.library(F.linear, [x, w, c], (rows, 16), BFLOAT16))
    return b, y, [(torch.randn(shape) / 2).bfloat16() for shape in ((rows, 20), (16, 20), (16,))]


def test_a_kernel_of_ours_is_offered_against_the_call():
    b, y, tensors = wide()
    graph = b.graph(y)
    plain = fused(graph, offers=True)
    (offer,) = plain.offers
    assert offer.kernel is None and offer.call in plain.items and steps(plain) == (["linear_gelu_tanh"], 0)
    schedule = fused(graph, products=frozenset((offer.product,)))
    assert steps(schedule) == ([], 1)
    (kernel,) = [item.kernel for item in schedule.items if isinstance(item, RunKernel)]
    assert kernel.product is not None and key_of(kernel) == key_of(offer.fused.kernel)
    check(graph, schedule, *tensors, **LOOSE)


def test_what_a_call_does_is_not_done_where_the_next_product_multiplies():
    b, y, tensors = wide()
    v = b.input((16, 16), BFLOAT16)
    graph = b.graph(b.neg(b.library(torch.matmul, [y, v], (17, 16), BFLOAT16)))
    plain = fused(graph, offers=True)
    assert [offer.before for offer in plain.offers] == [(), ()]
    for chosen in plain.offers:
        schedule = fused(graph, products=frozenset((chosen.product,)))
        assert not problems(schedule)
        given = [*tensors, torch.randn(16, 16).bfloat16()]
        (expected,) = (evaluate(graph, given)[output.node] for output in graph.outputs)
        torch.testing.assert_close(run(schedule, given)[0], expected, **LOOSE)
