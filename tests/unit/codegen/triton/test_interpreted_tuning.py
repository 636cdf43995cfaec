"""Every choice of blocks computes the same, and in the modes that measure each is launched on memory of its own."""

import dataclasses
import math

import pytest
import torch
from tests.unit.codegen import kernels as k
from tests.unit.native.launched_programs import launched

import framefuse
from framefuse.api import compiled_function
from framefuse.codegen import targets
from framefuse.codegen.disk_cache import DiskCache
from framefuse.codegen.interpreter import interpret
from framefuse.codegen.specialisation import Choice, Place, Specialisation
from framefuse.codegen.triton import by_interpreter, candidates
from framefuse.codegen.triton.products import parts_of
from framefuse.driver import few_forms as forms
from framefuse.driver import measuring, winners
from framefuse.ir.dtypes import FLOAT32
from framefuse.ir.loops import Buffer
from framefuse.ir.numbers import Symbol
from framefuse.ir.schedule import RunCall, RunKernel
from framefuse.ir.tuning import total
from framefuse.runtime.trial import NotMeasured, Trial

MODE = "max-autotune-no-cudagraphs"


def run(kernel, buffers, hints, choice):
    numbers = [hints[number.symbol] for number in kernel.numbers]
    compiled = by_interpreter(kernel, Specialisation(hints, choice=choice), Place("cpu"))
    return compiled.run(buffers, numbers, kernel.extent.evaluate(hints))



NESTS = [k.softmax, k.layer_norm, lambda: k.row_operation("sum"), lambda: k.column_operation("max")]


@pytest.mark.parametrize(("rows", "cols"), [(5, 37), (17, 3), (2, 200)])
@pytest.mark.parametrize("make", NESTS)
def test_every_choice_computes_what_the_oracle_computes(make, rows, cols):
    kernel, hints = make(), {k.ROWS: rows, k.COLS: cols}
    recorded = {k.ROWS: 64, k.COLS: 3000}  # candidates for other sizes are right for these
    found = [*candidates(kernel, recorded), *candidates(kernel, hints), Choice(4, 16, 2), Choice(1, 16, 1, 3)]
    torch.manual_seed(0)
    buffers = [torch.randn(rows * cols) for _ in kernel.buffers]
    expected = [buffer.clone() for buffer in buffers]
    numbers = [hints[number.symbol] for number in kernel.numbers]
    assert interpret(kernel, expected, numbers) == 0
    for choice in dict.fromkeys(found):
        given = [buffer.clone() for buffer in buffers]
        assert run(kernel, given, hints, choice) == 0, choice
        for ours, theirs in zip(given, expected, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("count", [1, 100, 5000])
def test_points_of_any_choice(count):
    kernel = k.pointwise([FLOAT32], k.apply("mul", k.load("x0", k.I), k.const(3.0)))
    x = torch.randn(count)
    choices = candidates(kernel, {k.N: 1 << 20})
    assert len(choices) > 4
    for choice in choices:
        out = torch.zeros(count)
        assert run(kernel, [x, out], {k.N: count}, choice) == 0
        assert torch.equal(out, x * 3)


class Counted(Trial):
    """Launches what is to be timed, once, and lets the candidate at ``best`` win."""

    made: list["Counted"] = []
    best = -1

    def __init__(self, device):
        super().__init__(device)
        self.launched, self.given = 0, []
        Counted.made.append(self)

    def bandwidth(self):
        return 1e9

    def reserve(self, size):
        self.scratch = max(self.scratch, size)

    def times(self, runs):
        for run in runs:
            run()
        self.launched += len(runs)
        best = Counted.best % len(runs)
        return [1.0 if place == best else 2.0 for place in range(len(runs))]


@pytest.fixture
def counted(monkeypatch, tmp_path):
    monkeypatch.setenv("FRAMEFUSE_CPU_TARGET", "triton")
    monkeypatch.setattr(measuring, "trial", Counted)
    monkeypatch.setattr(winners, "PROCESS", winners.Winners(DiskCache(tmp_path)))
    monkeypatch.setattr(Counted, "made", [])
    monkeypatch.setattr(Counted, "best", -1)
    with launched() as driver:
        yield driver


def f(x, y):
    z = torch.softmax(x, -1) * y
    return z, z.sum(0), (x.sigmoid() + y).relu()


def test_a_mode_that_measures_gives_eagers_results(counted):
    fast = framefuse.compile(f, mode=MODE)
    for rows in (40, 40, 7, 64):
        x, y = torch.randn(rows, 50), torch.randn(rows, 50)
        for ours, theirs in zip(fast(x, y), f(x, y), strict=True):
            torch.testing.assert_close(ours, theirs)
    state = compiled_function(fast)
    assert not state.reasons and state.dispatch.hits == 3
    (made,) = Counted.made
    (product,) = state.products
    found = product.stages.code.tuning
    assert made.launched == sum(kernel.candidates for kernel in found.kernels) > len(found.kernels) > 1
    assert all(kernel.won and not kernel.failed and not kernel.skipped for kernel in found.kernels)
    told = str(framefuse.explain(fast))
    assert f"measured {len(found.kernels)} kernels: {made.launched} candidates" in told
    assert "of scratch memory" in told and " by " in told
    again = framefuse.compile(lambda *args: f(*args), mode=MODE)
    x, y = torch.randn(40, 50), torch.randn(40, 50)
    again(x, y)
    for ours, theirs in zip(again(x, y), f(x, y), strict=True):
        torch.testing.assert_close(ours, theirs)
    assert sum(each.launched for each in Counted.made) == made.launched, "the winners are known"
    assert "known from before" in str(framefuse.explain(again))


def test_the_default_mode_measures_nothing(counted):
    fast = framefuse.compile(f)
    x, y = torch.randn(40, 50), torch.randn(40, 50)
    fast(x, y)
    assert not Counted.made and "measured" not in str(framefuse.explain(fast))


def test_large_kernels_are_measured_in_the_default_mode(counted, monkeypatch):
    for name, value in (("LARGE", 1), ("LONG", 0.0), ("NEAR", 1e9), ("COMPILED", 99), ("trial", Counted)):
        monkeypatch.setattr(forms, name, value)
    for function, known in ((f, False), (lambda *args: f(*args), True)):
        fast = framefuse.compile(function, options={"measure_seconds": 1e3})  # Counted says that launches take seconds
        for rows in (40, 40, 7, 64):
            x, y = torch.randn(rows, 50), torch.randn(rows, 50)
            for ours, theirs in zip(fast(x, y), f(x, y), strict=True):
                torch.testing.assert_close(ours, theirs)
        (product,) = compiled_function(fast).products
        found = product.stages.code.tuning
        assert len(found.kernels) > 1 and all(kernel.won and kernel.stored is known for kernel in found.kernels)
        assert "of a copy's bandwidth" in str(framefuse.explain(fast))
    off = framefuse.compile(f, options={"measure_seconds": 0.0})
    off(torch.randn(40, 50), torch.randn(40, 50))
    assert compiled_function(off).products[0].stages.code.tuning is None


def test_backward_is_measured_too(counted):
    x = torch.randn(40, 50, requires_grad=True)
    fast = framefuse.compile(lambda x: (torch.softmax(x, -1) * x).sum(1).square().mean(), mode=MODE)
    for _ in range(3):
        x.grad = None
        fast(x).backward()
        ours, x.grad = x.grad, None
        (torch.softmax(x, -1) * x).sum(1).square().mean().backward()
        torch.testing.assert_close(ours, x.grad)
    assert len(Counted.made) == 2 and all(made.launched for made in Counted.made)


def test_what_a_kernel_writes_in_place_is_one_memory():
    kernel = k.pointwise([FLOAT32], k.apply("mul", k.load("x0", k.I), k.const(3.0)))
    x0, _ = kernel.buffers
    kernel = k.kernel([x0, Buffer("out", FLOAT32, True, "x0")], [k.N], kernel.body, k.N.expr)
    made = Counted("cpu")
    first, second = made.tensors(kernel, [10, 10])
    assert first is second and made.scratch == 40


def test_checks_are_not_tried_on_made_up_positions(counted):
    table = torch.randn(6, 50)
    fast = framefuse.compile(lambda i: torch.softmax(table[i], -1) * 2, mode=MODE)
    i = torch.tensor([1, 5, 0, 2] * 10)
    for _ in range(2):
        torch.testing.assert_close(fast(i), torch.softmax(table[i], -1) * 2)
    items = compiled_function(fast).products[0].stages.code.tuning.kernels
    assert all("index" not in item.title for item in items)


def test_no_room_for_scratch_memory(counted, monkeypatch):
    def full(self, size):
        raise NotMeasured("no room")

    monkeypatch.setattr(Counted, "reserve", full)
    fast = framefuse.compile(f, mode=MODE)
    x, y = torch.randn(40, 50), torch.randn(40, 50)
    for _ in range(2):
        for ours, theirs in zip(fast(x, y), f(x, y), strict=True):
            torch.testing.assert_close(ours, theirs)
    assert "kernels not measured: no room" in str(framefuse.explain(fast))
    assert math.isfinite(total([]).seconds)


class Products(Counted):
    """Lets one candidate of each product win, or the library: the candidate at ``chosen``."""

    chosen = 1

    def product(self, offer, schedule, behind, codes):
        self.given.append(offer.fused.kernel.title)
        return super().product(offer, schedule, behind, codes)

    def times(self, runs):
        for run in runs:
            run()
        self.launched += len(runs)
        return [1.0 if place == Products.chosen else 2.0 for place in range(len(runs))]


@pytest.fixture
def products(counted, monkeypatch):
    monkeypatch.setattr(measuring, "trial", Products)
    monkeypatch.setattr(Products, "chosen", 1)


def layer(x, w, b, y):
    return torch.nn.functional.gelu(torch.nn.functional.linear(x, w, b)) + y


def calls_of(fast):
    """The library's calls and the titles of the kernels that are products, of every trace."""
    items = [item for product in compiled_function(fast).products for item in product.stages.code.schedule.items]
    kernels = [item.kernel for item in items if isinstance(item, RunKernel)]
    calls = [item for item in items if isinstance(item, RunCall)]
    return calls, [kernel.title for kernel in kernels if kernel.product is not None]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dynamic", [None, False])
def test_a_product_that_wins_is_one_kernel(products, dtype, dynamic):
    fast = framefuse.compile(layer, mode=MODE, dynamic=dynamic)
    w, b = torch.randn(24, 32, dtype=dtype) / 4, torch.randn(24, dtype=dtype)
    for rows in (40, 40, 7, 64) if dynamic is None else (40, 40):
        x, y = torch.randn(rows, 32, dtype=dtype), torch.randn(rows, 24, dtype=dtype)
        torch.testing.assert_close(fast(x, w, b, y), layer(x, w, b, y), rtol=3e-2, atol=3e-2)
    state = compiled_function(fast)
    assert not state.reasons and state.dispatch.hits == (3 if dynamic is None else 1)
    calls, titles = calls_of(fast)
    assert not calls and len(titles) == 1 and titles[0].startswith("linear_")
    told = str(framefuse.explain(fast))
    assert "by tiles of " in told and "not measured" not in told
    (found,) = state.products[0].stages.code.tuning.kernels
    assert found.candidates > 2 and found.best == 1.0 and found.first == 2.0


def test_a_product_that_loses_stays_with_the_library(products, monkeypatch):
    monkeypatch.setattr(Products, "chosen", 0)
    fast = framefuse.compile(layer, mode=MODE)
    w, b = torch.randn(24, 32, dtype=torch.bfloat16) / 4, torch.randn(24, dtype=torch.bfloat16)
    x, y = torch.randn(40, 32, dtype=torch.bfloat16), torch.randn(40, 24, dtype=torch.bfloat16)
    for _ in range(2):
        torch.testing.assert_close(fast(x, w, b, y), layer(x, w, b, y), rtol=3e-2, atol=3e-2)
    calls, titles = calls_of(fast)
    assert len(calls) == 1 and not titles
    again = framefuse.compile(lambda *args: layer(*args), mode=MODE)
    again(x, w, b, y)
    measured = sum(len(made.given) for made in Counted.made)
    assert measured == 1 and len(calls_of(again)[0]) == 1, "that it lost is known"


def test_equal_layers_are_measured_once(products):
    def chain(x, w, b):
        for _ in range(3):
            x = layer(x, w, b, x)
        return x

    fast = framefuse.compile(chain, mode=MODE)
    w, b = torch.randn(32, 32, dtype=torch.bfloat16) / 8, torch.randn(32, dtype=torch.bfloat16)
    for rows in (40, 40, 17):
        x = torch.randn(rows, 32, dtype=torch.bfloat16)
        torch.testing.assert_close(fast(x, w, b), chain(x, w, b), rtol=5e-2, atol=5e-2)
    calls, titles = calls_of(fast)
    assert not calls and len(titles) == 3
    assert sum(len(made.given) for made in Counted.made) == 1


def test_products_under_autocast(products):
    model = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.GELU(), torch.nn.Linear(48, 32), torch.nn.ReLU())
    fast = framefuse.compile(model, mode=MODE)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        for rows in (40, 40, 9):
            x = torch.randn(rows, 32)
            ours, theirs = fast(x), model(x)
            assert ours.dtype is theirs.dtype is torch.bfloat16
            torch.testing.assert_close(ours, theirs, rtol=3e-2, atol=3e-2)
    calls, titles = calls_of(fast)
    assert not calls and len(titles) == 2 and compiled_function(fast).dispatch.hits == 2
    (product,) = compiled_function(fast).products
    items = [i for i in product.stages.code.schedule.items if isinstance(i, RunKernel) and i.kernel.product is not None]
    loads = [value for item in items for value in (parts_of(item.kernel).left, parts_of(item.kernel).right)]
    assert all(not load.index.symbols - {*map(Symbol, ("i0", "i1", "i2"))} for load in loads), "weights fix the steps"


def test_products_of_a_training_step(products):
    layers = torch.nn.Linear(32, 48, bias=False), torch.nn.GELU(), torch.nn.Linear(48, 32), torch.nn.ReLU()
    model = torch.nn.Sequential(*layers)
    model = model.to(torch.bfloat16)
    fast = framefuse.compile(model, mode=MODE)
    x = torch.randn(40, 32, dtype=torch.bfloat16)
    for _ in range(3):
        model.zero_grad()
        fast(x).square().mean().backward()
        ours = [p.grad.clone() for p in model.parameters()]
        model.zero_grad()
        model(x).square().mean().backward()
        for mine, parameter in zip(ours, model.parameters(), strict=True):
            torch.testing.assert_close(mine, parameter.grad, rtol=5e-2, atol=1e-2)
    cases = [case for p in compiled_function(fast).products for d in p.stages.derivatives for case in d.cases]
    items = [item for case in cases for item in case.stages.code.schedule.items if isinstance(item, RunKernel)]
    assert any(item.kernel.product is not None for item in items), "backward has a product of ours"
    assert len(calls_of(fast)[1]) == 2, "forward has two, one of which leaves what backward needs"


def test_an_input_that_is_multiplied_is_not_overwritten_meanwhile(products):
    def step(x, w):
        x.copy_(torch.nn.functional.linear(x, w).relu())
        return x * 2

    fast = framefuse.compile(step, mode=MODE)
    w = torch.randn(48, 48, dtype=torch.bfloat16) / 8
    ours = torch.randn(200, 48, dtype=torch.bfloat16)
    theirs = ours.clone()
    for _ in range(4):
        torch.testing.assert_close(fast(ours, w), step(theirs, w), rtol=5e-2, atol=5e-2)
        torch.testing.assert_close(ours, theirs, rtol=5e-2, atol=5e-2)
    assert compiled_function(fast).dispatch.hits == 3 and len(calls_of(fast)[1]) == 1


@pytest.mark.parametrize("chosen", [0, 1])
@pytest.mark.parametrize("shape", [(40, 32), (4, 10, 32)])
def test_a_product_is_measured_against_the_call_that_has_its_activation(products, monkeypatch, chosen, shape):
    monkeypatch.setattr(Products, "chosen", chosen)
    found = targets.BACKENDS["cpu by triton"]
    target = dataclasses.replace(found.target, epilogues=True)
    monkeypatch.setitem(targets.BACKENDS, "cpu by triton", dataclasses.replace(found, target=target))
    model = torch.nn.Sequential(torch.nn.Linear(32, 48), torch.nn.GELU("tanh")).to(torch.bfloat16)
    fast = framefuse.compile(model, mode=MODE)
    for _ in range(3):
        x = torch.randn(shape, dtype=torch.bfloat16)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), model(x), rtol=3e-2, atol=3e-2)
    assert compiled_function(fast).dispatch.hits == 2
    calls, titles = calls_of(fast)
    view = ["as_strided"] if len(shape) > 2 else []
    assert [call.node.attr("name") for call in calls] == ([] if chosen else ["linear_gelu_tanh", *view])
    assert len(titles) == chosen
    assert sum(len(made.given) for made in Counted.made) == 1
