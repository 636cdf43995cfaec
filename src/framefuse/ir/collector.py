"""Keeps the cyclic collector out of the way while something is compiled, and while the compiler is imported."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """Keeps the cyclic collector from walking a growing heap over and over: it took up to nine tenths of a
    compile, and a sixth of the import of the compiler.

    The program that is recorded may look at the collector, and turn it off or on for good: what is changed here is its
    threshold alone. It stays what the program makes it, and what another thread paused it goes on with.
    """
    threshold = gc.get_threshold()
    if not threshold[0]:
        yield
        return
    gc.set_threshold(0, *threshold[1:])
    try:
        yield
    finally:
        if not gc.get_threshold()[0]:
            gc.set_threshold(*threshold)
