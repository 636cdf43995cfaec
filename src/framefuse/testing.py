"""Lets users' tests hold their programs to a number of compilations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from framefuse.errors import UserError
from framefuse.runtime.function import CompiledFunction, behind, compiled_function, listeners
from framefuse.runtime.recorded_call import Product


@contextmanager
def assert_compiles(count: int, *compiled: Any) -> Iterator[None]:
    """Asserts that the block compiles exactly ``count`` traces: a function's first one, one for each new case of it,
    and one more for each break on the way.

    Args:
        count: how many. 0 says that everything in the block hits what was compiled before it.
        compiled: results of :func:`framefuse.compile` to look at; all there are when none is given.

    Raises:
        AssertionError: another number was compiled; the text names the line and the cause of each.
        UserError: something in ``compiled`` was not compiled by framefuse.
    """
    if not isinstance(count, int):
        raise UserError(f"the number of compilations is {count!r}. Give a whole number")
    watched = [compiled_function(behind(f)[0]) for f in compiled]
    if None in watched:
        stranger = compiled[watched.index(None)]
        raise UserError(f"{stranger!r:.60} was not compiled by framefuse. Pass what framefuse.compile returned")
    seen: list[str] = []

    def listen(state: CompiledFunction, product: Product) -> None:
        if not watched or state in watched:
            seen.append(_told(product))

    listeners.append(listen)
    try:
        yield
    finally:
        listeners.remove(listen)
    if len(seen) != count:
        were = "trace was" if len(seen) == 1 else "traces were"
        happened = "\n".join(seen) or "  nothing: every call hit, or ran eagerly (framefuse.explain tells why)"
        advice = "Make what changes an argument that computes, not one that decides; or change the expected number."
        raise AssertionError(f"{len(seen)} {were} compiled, {count} expected\n{happened}\n{advice}")


def _told(product: Product) -> str:
    trace = product.stages.trace
    place = f"{trace.line.place} in {trace.name}"
    if product.start is not None:
        place += f", after {trace.line.text}"
    return f"  {place}: {product.why or 'the first time'}"
