import os

import pytest

from benchmarks.harness import compilers


def test_caches_are_cold_inside_and_as_before_after(monkeypatch):
    monkeypatch.setenv("TRITON_CACHE_DIR", "kept")
    monkeypatch.delenv("FRAMEFUSE_CACHE", raising=False)
    with compilers.cold_caches():
        folder = os.environ["TORCHINDUCTOR_CACHE_DIR"]
        assert os.path.isdir(folder) and not os.listdir(folder)
        assert os.environ["FRAMEFUSE_CACHE"] == "0" and os.environ["TRITON_CACHE_DIR"] == folder
    assert not os.path.exists(folder)
    assert os.environ["TRITON_CACHE_DIR"] == "kept" and "FRAMEFUSE_CACHE" not in os.environ


def test_torch_compile_that_cannot_run_is_named_and_ours_raises(monkeypatch):
    def broken(function, dynamic):
        raise RuntimeError("no C++ compiler\nmore lines")

    monkeypatch.setitem(compilers.COMPILERS, "torch", broken)
    monkeypatch.setitem(compilers.COMPILERS, "framefuse", broken)
    assert compilers.warm_up("torch") == "RuntimeError: no C++ compiler"
    with pytest.raises(RuntimeError):
        compilers.warm_up("framefuse")
