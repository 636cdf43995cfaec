"""Gives the compilers under comparison one shape, `compile(function, dynamic, mode)`, and one start: warm, no cache."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

import framefuse

Function = Callable[..., Any]
Compiler = Callable[..., Function]


def with_framefuse(function: Function, dynamic: bool | None, mode: str | None = None) -> Function:
    """`function` compiled by framefuse; `dynamic` and `mode` as in framefuse.compile."""
    compiled: Function = framefuse.compile(function, dynamic=dynamic, mode=mode)
    return compiled


def with_torch(function: Function, dynamic: bool | None, mode: str | None = None) -> Function:
    """`function` compiled by torch.compile; `dynamic` and `mode` as there."""
    return torch.compile(function, dynamic=dynamic, mode=mode)


COMPILERS: dict[str, Compiler] = {"framefuse": with_framefuse, "torch": with_torch}


@contextmanager
def cold_caches() -> Iterator[None]:
    """Runs the block with nothing on disk that an earlier process compiled: a first call shall be one."""
    with tempfile.TemporaryDirectory(prefix="framefuse-bench-", ignore_cleanup_errors=True) as folder:
        cold = {"TORCHINDUCTOR_CACHE_DIR": folder, "TRITON_CACHE_DIR": folder, "FRAMEFUSE_CACHE": "0"}
        before = {name: os.environ.get(name) for name in cold}
        os.environ.update(cold)
        try:
            yield
        finally:
            for name, value in before.items():
                os.environ.pop(name)
                if value is not None:
                    os.environ[name] = value


def warm_up(name: str, device: str = "cpu") -> str | None:
    """Compiles and runs a function of one line, so that imports and start-up are charged to no benchmark.

    Returns None, or why this compiler cannot run here in one line (torch.compile without a C++ compiler, say).
    """

    def plus_one(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    try:
        COMPILERS[name](plus_one, None)(torch.zeros(3, device=device))
    except Exception as error:  # whatever another compiler raises, the other columns are still worth measuring
        if name == "framefuse":
            raise
        return f"{type(error).__name__}: {str(error).strip().splitlines()[0]}"
    return None
