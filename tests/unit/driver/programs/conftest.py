"""A folder of programs and objects for one test, in place of the user's."""

from collections.abc import Callable
from pathlib import Path

import pytest

import framefuse
from framefuse.codegen.disk_cache import DiskCache
from framefuse.codegen.llvm import compile as llvm
from framefuse.driver.programs import later, programs
from framefuse.runtime import function


class Shelf:
    """The folder, and how functions are compiled that use it; ``made`` are the products of the last one."""

    def __init__(self, folder: Path) -> None:
        self.programs = programs.PROCESS
        self.objects = llvm.PROCESS
        self.folder = folder
        self.made: list[function.Product] = []

    def compile(self, target: Callable, **options: object) -> Callable:
        """Compiles as a user does: the suite's own setting ``check`` would leave the folder alone."""
        later.PROCESS.finish()
        self.made.clear()
        return framefuse.compile(target, options={"check": False, "cache": True, **options})

    @property
    def found(self) -> list[bool]:
        """Of each product of the last function: whether it came from the folder. Cases of a backward follow theirs."""
        cases = [case for each in self.made for part in each.stages.derivatives for case in part.cases]
        return ["fuse" not in each.seconds for each in (*self.made, *cases)]

    def kept(self) -> list[str]:
        """The keys of all programs in the folder."""
        later.PROCESS.finish()
        return self.programs.names()

    def forget_objects(self) -> None:
        """Drops all objects, on disk and from memory."""
        for name in self.objects.disk.names():
            self.objects.disk.remove(name)
        self.forget_loaded()

    def forget_loaded(self) -> None:
        """Drops what this process has of objects and keys, as one that begins."""
        self.programs._key = self.objects.disk._key = None
        self.objects._objects.clear()
        self.objects._by_name.clear()


@pytest.fixture
def shelf(tmp_path, monkeypatch):
    monkeypatch.setattr(programs, "PROCESS", DiskCache(tmp_path / "programs"))
    monkeypatch.setattr(llvm, "PROCESS", llvm.Compiler(DiskCache(tmp_path / "kernels")))
    found = Shelf(tmp_path)

    def listen(state, product):
        found.made.append(product)

    function.listeners.append(listen)
    yield found
    function.listeners.remove(listen)
    later.PROCESS.finish()
