"""Code of planted faults does not outlive its test."""

from __future__ import annotations

from collections.abc import Iterator
from weakref import WeakValueDictionary

import pytest

from framefuse.codegen.llvm.compile import PROCESS


@pytest.fixture(autouse=True)
def _own_code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No kernel on disk or of another test is used, and none of this one remains."""
    monkeypatch.setenv("FRAMEFUSE_CACHE", "0")
    monkeypatch.setattr(PROCESS, "_loaded", WeakValueDictionary())
    yield
