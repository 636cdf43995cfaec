"""A folder of calls, programs and objects for one test, and a count of recordings."""

from collections.abc import Callable
from pathlib import Path

import pytest

import framefuse
from framefuse.codegen.disk_cache import DiskCache
from framefuse.codegen.llvm import compile as llvm
from framefuse.driver import tree
from framefuse.driver.calls import calls
from framefuse.driver.programs import later, programs


class Drawer:
    """The folders, and how functions are compiled that use them; ``recorded`` counts recordings."""

    def __init__(self) -> None:
        self.calls, self.programs, self.objects = calls.PROCESS, programs.PROCESS, llvm.PROCESS
        self.recorded = 0

    def compile(self, target: Callable, **options: object) -> Callable:
        """Compiles as a user does in a process that begins: the suite's setting ``check`` would keep nothing."""
        self.recorded = 0
        return framefuse.compile(target, options={"check": False, "cache": True, **options})

    def kept(self) -> list[str]:
        """The keys of all calls in the folder."""
        later.PROCESS.finish()
        return self.calls.names()


@pytest.fixture
def drawer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Drawer:
    monkeypatch.setattr(calls, "PROCESS", DiskCache(tmp_path / "calls"))
    monkeypatch.setattr(programs, "PROCESS", DiskCache(tmp_path / "programs"))
    monkeypatch.setattr(llvm, "PROCESS", llvm.Compiler(DiskCache(tmp_path / "kernels")))
    found = Drawer()
    record = tree.record

    def counted(*args: object, **kwargs: object) -> object:
        found.recorded += 1
        return record(*args, **kwargs)

    monkeypatch.setattr(tree, "record", counted)
    yield found
    later.PROCESS.finish()
