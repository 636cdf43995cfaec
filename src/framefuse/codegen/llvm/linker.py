"""Loads object code by LLVM's own linker, on systems whose objects native code does not read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import llvmlite.binding as llvm

from framefuse.codegen.llvm.lock import LOCK
from framefuse.errors import CompilerBug

# Kernels that one linker loads before the next one takes over: making a linker costs as much as loading a kernel, and
# what it notes of a kernel goes only with itself.
KERNELS_A_LINKER = 64
Named = Sequence[tuple[str, bytes]]  # names of functions, and their objects


class _Linker:
    def __init__(self) -> None:
        # A machine of its own for each linker, which takes it over.
        machine = llvm.Target.from_triple(llvm.get_process_triple()).create_target_machine(opt=1)
        self.jit = llvm.create_lljit_compiler(machine, use_jit_link=True)
        self.count = 0

    def load(self, objects: Named, imports: Mapping[str, int]) -> llvm.ResourceTracker:
        """The loaded objects, with the addresses of their functions."""
        library = llvm.JITLibraryBuilder().add_current_process()
        for name, data in objects:
            library.add_object_img(data).export_symbol(name)
        for name, where in imports.items():
            library.import_symbol(name, where)
        self.count += len(objects)
        return library.link(self.jit, f"kernel{self.count}")


class _Library:
    """Objects that were linked at once; they are unmapped when this object dies."""

    def __init__(self, objects: Named, imports: Mapping[str, int]) -> None:
        with LOCK:
            self._linker: _Linker | None = _linker()
            try:
                self._loaded = self._linker.load(objects, imports)
            except RuntimeError as error:
                raise CompilerBug(f"a kernel cannot be loaded: {error}") from error
            self.addresses: list[int] = [self._loaded[name] for name, _ in objects]

    def __del__(self) -> None:
        loaded = getattr(self, "_loaded", None)
        if loaded is not None and LOCK is not None:
            with LOCK:  # the linker may die with its last kernel
                loaded.close()
                self._linker = None


_newest: _Linker | None = None


def linked(objects: Named, imports: Mapping[str, int]) -> tuple[Sequence[int], object]:
    """The addresses of functions, and what keeps their code mapped."""
    library = _Library(objects, imports)
    return library.addresses, library


def _linker() -> _Linker:
    global _newest
    if _newest is None or _newest.count >= KERNELS_A_LINKER:
        _newest = _Linker()
    return _newest
