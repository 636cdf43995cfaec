"""Triton's interpreter without its search of Triton's modules at each launch, a sixth of what its tests take."""

from __future__ import annotations

import functools
import inspect
from types import ModuleType

from triton.language.core import is_builtin
from triton.runtime import interpreter


@functools.cache
def builtins_of(place: ModuleType | type) -> list[tuple[str, object]]:
    """What a launch replaces in a module or class of Triton's; asked first when nothing is replaced."""
    return [(name, member) for name, member in inspect.getmembers(place) if is_builtin(member)]


def patch(place, builder, scope):
    for name, member in builtins_of(place):
        interpreter._patch_attr(place, name, member, builder, scope)


def install() -> None:
    """Only where this version of Triton has the function that searches."""
    if hasattr(interpreter, "_patch_builtin") and hasattr(interpreter, "_LangPatchScope"):
        interpreter._patch_builtin = patch
