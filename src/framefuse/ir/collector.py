"""Keeps the cyclic collector out of the way while something is compiled, and while the compiler is imported."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[bool]:
    """Keeps the cyclic collector from walking a growing heap over and over: it took up to nine tenths of a
    compile, and a sixth of the import of the compiler.

    The program that is recorded may look at the collector, and turn it off or on for good: what is changed here is its
    threshold alone. It stays what the program makes it, and what another thread paused it goes on with. Gives whether
    it was on.
    """
    threshold = gc.get_threshold()
    if not threshold[0]:
        yield False
        return
    gc.set_threshold(0, *threshold[1:])
    try:
        yield gc.isenabled()
    finally:
        if not gc.get_threshold()[0]:
            gc.set_threshold(*threshold)


@contextmanager
def made_to_last(collecting: bool) -> Iterator[None]:
    """Has what is made meanwhile count as old: the collector, which walks all that is young, would be a tenth of a
    first call that finds its code. Garbage of the program is collected before, as it would be soon.
    """
    if not collecting or gc.get_freeze_count():  # what the program froze would thaw
        yield
        return
    gc.collect(1)
    try:
        yield
    finally:
        gc.freeze()
        gc.unfreeze()
