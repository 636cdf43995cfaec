"""Modes that measure on a real GPU: eager's results, whatever wins; nothing of the user's is touched."""

from __future__ import annotations

import pytest
import torch
from tests.gpu.kernels import NEEDS_GPU

import framefuse
from framefuse.api import compiled_function
from framefuse.codegen.disk_cache import DiskCache
from framefuse.driver import tuning, winners
from framefuse.ir.schedule import RunKernel

pytestmark = NEEDS_GPU
MODE = "max-autotune-no-cudagraphs"


@pytest.fixture(autouse=True)
def own_winners(monkeypatch, tmp_path):
    monkeypatch.setattr(winners, "PROCESS", winners.Winners(DiskCache(tmp_path)))


def f(x, y):
    z = torch.softmax(x, -1) * y
    return z, z.sum(0), (x.sigmoid() + y).relu(), (x.t() + 1).contiguous()


def measured(fast):
    state = compiled_function(fast)
    assert not state.reasons and not state.breaks
    return [product.stages.code.tuning for product in state.products]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_wins_gives_eagers_results(dtype):
    fast = framefuse.compile(f, mode=MODE)
    before = torch.cuda.get_rng_state()
    loose = {"rtol": 2e-2, "atol": 2e-2} if dtype is torch.bfloat16 else {}
    for rows in (512, 512, 100, 1000, 1):
        generator = torch.Generator("cuda").manual_seed(rows)
        x, y = (torch.randn(rows, 1000, device="cuda", dtype=dtype, generator=generator) for _ in range(2))
        kept = x.clone(), y.clone()
        for ours, theirs in zip(fast(x, y), f(x, y), strict=True):
            torch.testing.assert_close(ours, theirs, **loose)
        assert torch.equal(x, kept[0]) and torch.equal(y, kept[1])
    assert torch.equal(torch.cuda.get_rng_state(), before)
    found = measured(fast)[0]  # one row is a case of its own
    assert len(found.kernels) >= 3 and all(not kernel.skipped for kernel in found.kernels), found
    assert all(kernel.candidates > 1 and 0 < kernel.best <= kernel.first for kernel in found.kernels)
    assert found.scratch > 0 and "scratch memory" in str(framefuse.explain(fast))


def test_winners_are_known_to_the_next_function():
    x, y = torch.randn(256, 500, device="cuda"), torch.randn(256, 500, device="cuda")
    for stored in (False, True):
        fast = framefuse.compile(lambda x, y: f(x, y), mode=MODE)
        for _ in range(2):
            for ours, theirs in zip(fast(x, y), f(x, y), strict=True):
                torch.testing.assert_close(ours, theirs)
        assert all(kernel.stored is stored for kernel in measured(fast)[0].kernels)


def test_scratch_memory_is_given_back():
    x, y = torch.randn(512, 1000, device="cuda"), torch.randn(512, 1000, device="cuda")
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    framefuse.compile(f, mode=MODE)(x, y)
    assert torch.cuda.memory_allocated() <= before + (1 << 20)


def test_writes_happen_once():
    x = torch.zeros(1 << 16, device="cuda")

    def step(x):
        x.add_(1)
        return x * 2

    fast = framefuse.compile(step, mode=MODE)
    for count in (1, 2, 3):
        result = fast(x)
        assert torch.equal(x, torch.full_like(x, count)) and torch.equal(result, x * 2)


def test_nothing_is_measured_while_a_stream_is_captured():
    x, y = torch.randn(64, 100, device="cuda"), torch.randn(64, 100, device="cuda")
    f(x, y)
    fast = framefuse.compile(f, mode=MODE)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fast(x, y)
        captured = fast(x, y)
    graph.replay()
    for ours, theirs in zip(captured, f(x, y), strict=True):
        torch.testing.assert_close(ours, theirs)
    products = compiled_function(fast).products
    assert all(
        kernel.skipped == "a stream is being captured"
        for product in products
        for kernel in product.stages.code.tuning.kernels
    )


def test_training_is_measured():
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.GELU(), torch.nn.LayerNorm(128)).cuda()
    x = torch.randn(256, 64, device="cuda")
    fast = framefuse.compile(model, mode=MODE)
    for _ in range(3):
        model.zero_grad()
        fast(x).square().mean().backward()
        ours = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(x).square().mean().backward()
        for mine, parameter in zip(ours, model.parameters(), strict=True):
            torch.testing.assert_close(mine, parameter.grad, rtol=1e-3, atol=1e-5)
    told = str(framefuse.explain(fast))
    assert "measured" in told


def layer(x, w, b, y):
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b)) + y


def has_product(fast):
    items = [item for product in compiled_function(fast).products for item in product.stages.code.schedule.items]
    return any(isinstance(item, RunKernel) and item.kernel.product is not None for item in items)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_product_and_what_is_done_with_it(dtype):
    fast = framefuse.compile(layer, mode=MODE)
    for rows in (300, 300, 128, 1000, 17):
        x = torch.randn(rows, 512, device="cuda", dtype=dtype)
        w = torch.randn(768, 512, device="cuda", dtype=dtype) / 16
        b, y = torch.randn(768, device="cuda", dtype=dtype), torch.randn(rows, 768, device="cuda", dtype=dtype)
        torch.testing.assert_close(fast(x, w, b, y), layer(x, w, b, y), rtol=2e-2, atol=4e-2)
    found = measured(fast)[0]
    (product,) = [kernel for kernel in found.kernels if kernel.title.startswith("linear_")]
    assert product.candidates > 4 and not product.skipped and product.failed < product.candidates - 1
    assert has_product(fast) == bool(product.won)


@pytest.mark.parametrize("rows", [(256, 256, 250, 3), (2048, 2048, 1)])
def test_products_of_ours_at_every_size(monkeypatch, rows):
    """Whichever is faster here: the kernel is taken."""
    monkeypatch.setattr(tuning, "winner_of", lambda times: min(range(1, len(times)), key=times.__getitem__))
    fast = framefuse.compile(layer, mode=MODE)
    for count in rows:
        x, w = torch.randn(count, 320, device="cuda").bfloat16(), (torch.randn(200, 320, device="cuda") / 16).bfloat16()
        b, y = torch.randn(200, device="cuda").bfloat16(), torch.randn(count, 200, device="cuda").bfloat16()
        torch.testing.assert_close(fast(x, w, b, y), layer(x, w, b, y), rtol=2e-2, atol=4e-2)
    assert has_product(fast)
    odd = framefuse.compile(layer, mode=MODE)
    for count in (77, 77, 100):
        x, w = torch.randn(count, 333, device="cuda").half(), (torch.randn(55, 333, device="cuda") / 16).half()
        b, y = torch.randn(55, device="cuda").half(), torch.randn(count, 55, device="cuda").half()
        torch.testing.assert_close(odd(x, w, b, y), layer(x, w, b, y), rtol=2e-2, atol=4e-2)
    assert has_product(odd)


def test_products_that_compute_their_operands(monkeypatch):
    """Under autocast the casts of weights may be part of the product."""
    monkeypatch.setattr(tuning, "winner_of", lambda times: min(range(1, len(times)), key=times.__getitem__))
    layers = torch.nn.Linear(512, 768), torch.nn.GELU(), torch.nn.Linear(768, 512), torch.nn.ReLU()
    model = torch.nn.Sequential(*layers).cuda()
    fast = framefuse.compile(model, mode=MODE)
    with torch.no_grad(), torch.autocast("cuda", torch.bfloat16):
        for rows in (64, 64, 300, 5):
            x = torch.randn(rows, 512, device="cuda")
            torch.testing.assert_close(fast(x), model(x), rtol=2e-2, atol=2e-2)
    assert has_product(fast)
    (*_, graph) = compiled_function(fast).products
    casts = [item for item in graph.stages.code.schedule.items if isinstance(item, RunKernel)]
    assert any(len(item.kernel.buffers) > 3 for item in casts if item.kernel.product is not None)


def rows(x, y):
    z = torch.softmax(x, -1) * y
    return z, (x.log_softmax(-1) * y).mean(-1), y.amax(0)


def test_large_kernels_of_the_default_mode():
    """Nothing of the user's is touched, and what was found is known to the next function."""
    x, y = torch.randn(1024, 40001, device="cuda"), torch.randn(1024, 40001, device="cuda")
    kept, state = (x.clone(), y.clone()), torch.cuda.get_rng_state()
    for stored in (False, True):
        fast = framefuse.compile(lambda x, y: rows(x, y))
        for _ in range(3):
            for ours, theirs in zip(fast(x, y), rows(x, y), strict=True):
                torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
        found = measured(fast)[0]
        print(framefuse.explain(fast))
        assert found.kernels and all(each.stored is stored and each.share > 0 for each in found.kernels)
        assert "of a copy's bandwidth" in str(framefuse.explain(fast))
    assert torch.equal(x, kept[0]) and torch.equal(y, kept[1])
    assert torch.equal(torch.cuda.get_rng_state(), state)
    for ours, theirs in zip(fast(x[:7], y[:7]), rows(x[:7], y[:7]), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_large_kernels_are_not_measured_while_a_stream_is_captured():
    x, y = torch.randn(512, 40001, device="cuda"), torch.randn(512, 40001, device="cuda")
    rows(x, y)
    fast = framefuse.compile(rows)
    side = torch.cuda.Stream()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=side):
        fast(x, y)
        captured = fast(x, y)
    graph.replay()
    for ours, theirs in zip(captured, rows(x, y), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert all(each.skipped == "a stream is being captured" for each in measured(fast)[0].kernels)


def test_what_is_deterministic_is_not_measured():
    x, y = torch.randn(512, 40001, device="cuda"), torch.randn(512, 40001, device="cuda")
    torch.use_deterministic_algorithms(True)
    try:
        fast = framefuse.compile(rows)
        fast(x, y)
        assert measured(fast) == [None]
    finally:
        torch.use_deterministic_algorithms(False)
