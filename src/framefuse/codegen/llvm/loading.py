"""Loads object code into this process, and keeps it while somebody holds it."""

from __future__ import annotations

import platform
import sys
from collections.abc import Callable, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, NamedTuple, Protocol

from framefuse.codegen.llvm.addresses import address
from framefuse.errors import CompilerBug
from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.late_imports import later

if TYPE_CHECKING:
    from framefuse.codegen.llvm.linker import linked
else:
    linked = later("framefuse.codegen.llvm.linker", "linked")

# Whose objects native code reads: elsewhere LLVM's linker loads them.
READ = sys.platform == "linux" and platform.machine() in ("x86_64", "aarch64")


class Loaded(Protocol):
    """What native code has loaded, and keeps mapped while it lives."""

    @property
    def addresses(self) -> tuple[int, ...]:
        """Of the functions, in the order of their objects."""


Loader = Callable[[tuple[tuple[str, bytes], ...], Callable[[str], int]], Loaded]
_loaders: list[Loader] = []


def load_by(loader: Loader) -> None:
    """Objects are loaded by native code from now on, which takes pairs of names and objects, and what resolves names.
    """
    if READ:
        _loaders[:] = [loader]


class Object(NamedTuple):
    """Object code that was given a ``name``, and the functions of libraries that it calls."""

    name: str
    imports: tuple[str, ...]
    data: bytes


@dataclass(frozen=True, slots=True, weakref_slot=True, eq=False)
class Code:
    """Loaded machine code, of the object ``name`` that calls ``imports``; while this object lives it stays mapped."""

    name: str
    imports: tuple[str, ...]
    size: int
    address: int
    library: object = field(repr=False)


def load(objects: Sequence[Object]) -> list[Code]:
    """Loads objects at once: they lie in one block, so that code reaches its constants by 32-bit distances in whatever
    corner of the process there is room. Raises CompilerBug for objects that cannot be loaded.
    """
    if not objects:
        return []
    if _loaders:
        addresses, library = _mapped(objects, _loaders[0])
    else:
        addresses, library = linked(
            [(symbol(each.name), each.data) for each in objects],
            {name: function(name) for each in objects for name in each.imports},
        )
    return [
        Code(each.name, each.imports, len(each.data), place, library)
        for each, place in zip(objects, addresses, strict=True)
    ]


def _mapped(objects: Sequence[Object], loader: Loader) -> tuple[Sequence[int], object]:
    try:
        loaded = loader(tuple((symbol(each.name), each.data) for each in objects), function)
    except (ValueError, OSError) as error:
        raise CompilerBug(f"a kernel cannot be loaded: {error}") from error
    return loaded.addresses, loaded


def symbol(name: str) -> str:
    """The function of an object: those that are linked at once have different ones."""
    return f"kernel{name}"


def function(name: str) -> int:
    """The address of a function that kernels call; raises CompilerBug for another."""
    where = address(name)
    if where is None:
        raise CompilerBug(f"no library has the function {name}")
    return where
