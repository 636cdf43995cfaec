"""Keeps with a kernel what a function found out about it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeVar

from framefuse.ir.kernel import Kernel

Found = TypeVar("Found")


def once(find: Callable[[Kernel], Found]) -> Callable[[Kernel], Found]:
    """``find``, which reads nothing but a kernel's identity, made once for each kernel and those that differ from it in
    the user's lines alone: a net calls one kernel at many sizes.
    """
    name = f"{find.__module__}.{find.__qualname__}"

    @functools.wraps(find)
    def kept(kernel: Kernel) -> Found:
        if name not in kernel.known:
            kernel.known[name] = find(kernel)
        found: Found = kernel.known[name]
        return found

    return kept
