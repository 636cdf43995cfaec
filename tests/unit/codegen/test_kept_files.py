"""The option ``cache`` decides alone whether files of compiled kernels stay in the user's folder."""

import itertools

import pytest
import torch

import framefuse
from framefuse.codegen.disk_cache import DiskCache
from framefuse.codegen.llvm.compile import PROCESS

NUMBERS = itertools.count(1)


def compiled_new(**options):
    """Compiles and runs a function whose kernel no other has."""
    number = 1e3 + next(NUMBERS) / 7

    def function(x):
        return x.exp() * number - x

    fast = framefuse.compile(function, options=options)
    fast(torch.rand(9))
    x = torch.rand(9)
    torch.testing.assert_close(fast(x), function(x))
    assert framefuse.explain(fast).hits == 1


@pytest.mark.parametrize("environment", ["0", "1"])
@pytest.mark.parametrize("kept", [False, True])
def test_files_of_the_processor(kept, environment, monkeypatch, tmp_path):
    monkeypatch.setenv("FRAMEFUSE_CACHE", environment)
    monkeypatch.setattr(PROCESS, "disk", DiskCache(tmp_path / "kernels"))
    compiled_new(cache=kept)
    assert (tmp_path / "kernels").exists() is kept


@pytest.mark.parametrize("environment", ["0", "1"])
def test_the_environment_decides_where_nothing_else_does(environment, monkeypatch, tmp_path):
    monkeypatch.setenv("FRAMEFUSE_CACHE", environment)
    monkeypatch.setattr(PROCESS, "disk", DiskCache(tmp_path / "kernels"))
    compiled_new()
    assert (tmp_path / "kernels").exists() is (environment == "1")
