"""Where no call waits, kernels are compiled quickly first, and better code takes their place while calls run."""

import gc
import subprocess
import sys

import pytest
import torch

import framefuse
from framefuse.codegen.llvm import compile as llvm
from framefuse.driver import behind, tiers
from framefuse.runtime.function import compiled_function


def chain(x):
    for n in range(3):
        x = torch.tanh(x * (n + 1.5)) + x.sin().softmax(-1)
    return x, x.sum(0)


def started(function, held, monkeypatch):
    """A compiled function whose quick code runs; better code comes when ``held`` is emptied."""
    monkeypatch.setattr(tiers, "improve", lambda *args, improve=tiers.improve: held.append((improve, args)))
    fast = framefuse.compile(function, options={"wait": False, "cache": False, "check": False})
    fast(torch.randn(4, 16))
    behind.PROCESS.finish()
    return fast


def codes(fast):
    return [code for product in compiled_function(fast).products for code in product.stages.code.kernels.values()]


def equal(fast, rows):
    x = torch.randn(rows, 16)
    before = fast.hits
    for given, expected in zip(fast(x), chain(x), strict=True):
        torch.testing.assert_close(given, expected)
    assert fast.hits > before


def test_quick_code_runs_until_better_code_is_there(monkeypatch):
    held = []
    fast = started(chain, held, monkeypatch)
    quick = codes(fast)
    assert quick and all(code.quick for code in quick)
    equal(fast, 4)
    ((improve, args),) = held
    plan = args[1]
    improve(*args)
    better = codes(fast)
    assert not any(code.quick for code in better)
    assert {code.address for code in quick}.isdisjoint(code.address for code in better)
    assert plan.replace_kernel(quick[0].address, quick[0].address, None) == 0, "no step runs it any more"
    del quick
    gc.collect()
    equal(fast, 4)


def test_a_fault_in_the_better_code_leaves_the_quick_one(monkeypatch):
    def broken(*args):
        raise RuntimeError("no better code")

    monkeypatch.setattr(tiers, "improve", broken)
    fast = framefuse.compile(chain, options={"wait": False, "cache": False, "check": False})
    fast(torch.randn(4, 16))
    behind.PROCESS.finish()
    equal(fast, 4)


@pytest.mark.parametrize("options", [{}, {"wait": True}])
def test_calls_that_wait_get_the_better_code_at_once(options):
    fast = framefuse.compile(chain, options={"cache": False, "check": False, **options})
    fast(torch.randn(4, 16))
    assert codes(fast) and not any(code.quick for code in codes(fast))


PROGRAM = """
import sys, torch, framefuse
from framefuse.driver import behind
from framefuse.runtime.function import compiled_function
def f(x):
    return torch.tanh(x).softmax(-1).cumsum(-1) * 2
fast = framefuse.compile(f, options={"wait": False, "check": False})
x = torch.randn(5, 8)
fast(x)
if sys.argv[1] == "finish":
    behind.PROCESS.finish()
    assert torch.allclose(fast(x), f(x), 1e-5)
    codes = [code for each in compiled_function(fast).products for code in each.stages.code.kernels.values()]
    print("llvmlite" in sys.modules and "framefuse.fuse" in sys.modules, any(code.quick for code in codes))
else:
    while not compiled_function(fast).dispatch.hits:
        fast(x)
"""


def test_what_is_kept_is_the_better_code_and_a_process_may_end_before_it_is_there(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("FRAMEFUSE_CHECK", "0")
    for how in ("leave", "finish", "finish"):
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=False, timeout=200
        )
        assert (done.returncode, done.stderr) == (0, "")
        if how == "finish":
            assert done.stdout.split()[1:] == ["False"]
    found = [llvm.DiskCache(tmp_path / "framefuse" / part).names() for part in ("programs", "kernels")]
    assert all(found)
