"""The lock of all that touches LLVM, imported before LLVM is: so its place among the locks of a fork is fixed."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable

# LLVM's target machine and symbol table are shared. It is taken around fork, with llvmlite's own, so that a child never
# inherits a lock held by a thread that it does not have; behind the thread that compiles, which may wait for it.
LOCK = threading.RLock()

# What else has to happen in a forked child.
AFTER_FORK: list[Callable[[], None]] = []
_held: list[threading.RLock] = []  # around a fork


def _before_fork() -> None:
    LOCK.acquire()
    lib = getattr(sys.modules.get("llvmlite.binding.ffi"), "lib", None)
    inner = getattr(getattr(lib, "_lock", None), "_lock", None)
    if inner is not None:
        inner.acquire()
        _held.append(inner)


def _after_fork() -> None:
    while _held:
        _held.pop().release()
    LOCK.release()


def _in_child() -> None:
    _after_fork()
    for action in AFTER_FORK:
        action()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
