"""A graph for a device without kernels is one call of torch's own operations, with eager's results and effects."""

import logging
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

import framefuse
from framefuse.api import compiled_function
from framefuse.codegen import targets
from framefuse.codegen.specialisation import at_once
from framefuse.codegen.unsupported import Unsupported
from framefuse.driver import passes
from framefuse.ir.schedule import RunCall, RunKernel, RunMatmul


@pytest.fixture(autouse=True)
def no_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU stands for a device for which nothing compiles kernels."""
    lacking = replace(targets.BACKENDS["cpu"], lacks=lambda: "kernels for this test need a compiler")
    monkeypatch.setitem(targets.BACKENDS, "cpu", lacking)
    monkeypatch.setattr(passes, "_warned", set())


def steps(fast):
    """What the traces of a compiled function run: every graph is one call, and there is nothing else."""
    found = []
    for product in compiled_function(fast).products:
        items = [i for i in product.stages.code.schedule.items if isinstance(i, (RunKernel, RunMatmul, RunCall))]
        assert len(items) == 1 and isinstance(items[0], RunCall), items
        found.append(items[0].node)
    return found


def same(fast, f, *args):
    torch.manual_seed(7)
    wanted = f(*args)
    torch.manual_seed(7)
    torch.testing.assert_close(fast(*args), wanted, rtol=1e-5, atol=1e-6)


def chain(x, y):
    return torch.softmax(x * 2 + y.sin(), -1), (x @ y.t()).relu().sum(0)


def views(x, y):
    return x.t()[1:], x.reshape(-1)[::2] + 1, torch.cat([x, y]).flip(0), x


def numbers(x, y):
    return x / x.shape[0] + torch.arange(x.shape[1]) * 2.5, torch.zeros(x.shape[0], 3), torch.tril(x)


def random(x, y):
    return F.dropout(x, 0.5) + torch.rand(x.shape[1]), torch.randn_like(y) * y


def chosen(x, y):
    return x[x > 0] * 2, torch.nonzero(y > 0).shape[0]


def twice(x, y):
    z = x + y
    return z, z, z.t(), x


@pytest.mark.parametrize("f", [chain, views, numbers, random, chosen, twice], ids=lambda f: f.__name__)
def test_equals_eager(f):
    fast = framefuse.compile(f)
    for rows in (3, 4, 1, 5):
        same(fast, f, torch.randn(rows, 4), torch.randn(rows, 4))
    assert steps(fast) and fast.__framefuse__.dispatch.hits >= 1


def test_results_are_memory_of_their_own():
    fast = framefuse.compile(twice)
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    for _ in range(3):
        first, second, turned, given = fast(x, y)
        assert first.data_ptr() == second.data_ptr() == turned.data_ptr() and given is x
        kept = first.clone()
        fast(x + 1, y)
        assert torch.equal(first, kept)


def test_writes_are_counted_as_eager_counts_them():
    def f(x, y):
        x.add_(y)
        x.mul_(2)
        return y + x

    fast = framefuse.compile(f)
    for _ in range(3):
        x, y = torch.randn(3), torch.randn(3)
        other = x.clone()
        before, after = x._version, other._version
        torch.testing.assert_close(fast(x, y), f(other, y))
        torch.testing.assert_close(x, other)
        assert x._version - before == other._version - after == 2
    assert steps(fast)


def test_gradients():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.LayerNorm(8), torch.nn.Linear(8, 2))
    fast = framefuse.compile(model)
    for rows in (3, 5, 7):
        x = torch.randn(rows, 4, requires_grad=True)
        wanted = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
        torch.testing.assert_close(torch.autograd.grad(fast(x).square().sum(), [x, *model.parameters()]), wanted)
    (node,) = steps(fast)[:1]
    assert "on_aten" in node.attr("name")
    cases = compiled_function(fast).products[0].stages.derivatives[0].cases
    assert all(len([i for i in case.stages.code.schedule.items if isinstance(i, RunKernel)]) == 0 for case in cases)
    assert cases


def test_autocast():
    layer = torch.nn.Linear(4, 4)

    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x) + 1

    fast = framefuse.compile(f)
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(3, 4)
            assert fast(x).dtype is torch.bfloat16
            torch.testing.assert_close(fast(x), f(x))
            with torch.autocast("cpu", torch.bfloat16):
                torch.testing.assert_close(fast(x), f(x))
    assert steps(fast)


def test_a_failed_call_draws_no_number_twice():
    def f(x, i):
        noise = torch.rand(3)
        return x[i] + noise

    fast = framefuse.compile(f)
    x = torch.randn(3)
    for _ in range(2):
        same(fast, f, x, torch.tensor([0, 2, 1]))
    torch.manual_seed(3)
    with pytest.raises(IndexError):
        f(x, torch.tensor([0, 9, 1]))
    wanted = torch.rand(2)
    torch.manual_seed(3)
    with pytest.raises(IndexError):
        fast(x, torch.tensor([0, 9, 1]))
    assert torch.equal(torch.rand(2), wanted)


def test_a_generator_is_read_at_each_call():
    def f(x, generator):
        return x + torch.rand(3, generator=generator)

    fast = framefuse.compile(f)
    for seed in range(4):
        one, other = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
        x = torch.randn(3)
        assert torch.equal(fast(x, one), f(x, other))
        assert torch.equal(one.get_state(), other.get_state())
    assert steps(fast)


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("error", [Unsupported("a loop"), RuntimeError("no ptxas\nhere"), OSError()])
def test_a_kernel_that_cannot_be_compiled(error, begun, monkeypatch, caplog):
    def fails(*args):
        raise error

    compiler = at_once(fails) if begun else fails
    compiles = replace(targets.BACKENDS["cpu"], lacks=lambda: None, compile=compiler, slow=True)
    monkeypatch.setitem(targets.BACKENDS, "cpu", compiles)
    fast = framefuse.compile(chain, options={"check": False})
    with caplog.at_level(logging.WARNING, logger="framefuse"):
        for rows in (3, 4, 5):
            same(fast, chain, torch.randn(rows, 4), torch.randn(rows, 4))
    assert steps(fast) and fast.__framefuse__.dispatch.hits == 2
    (line,) = [record.getMessage() for record in caplog.records if record.name == "framefuse"]
    assert "A kernel cannot be compiled" in line and "here" not in line


def test_one_warning_says_what_is_missing(caplog):
    with caplog.at_level(logging.WARNING, logger="framefuse"):
        for f in (chain, views):
            fast = framefuse.compile(f)
            fast(torch.randn(2, 4), torch.randn(2, 4))
    (line,) = [record.getMessage() for record in caplog.records if record.name == "framefuse"]
    assert "kernels for this test need a compiler" in line and "cpu" in line
