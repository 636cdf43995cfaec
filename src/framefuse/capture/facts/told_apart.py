"""States which of the objects that a program told apart are one, and gives their addresses."""

from __future__ import annotations

from framefuse.capture.facts.numbers import integer
from framefuse.capture.facts.sources import Sources
from framefuse.ir.facts import Source
from framefuse.ir.values import Value


def guard_partition(sources: Sources) -> None:
    """States that the objects which the program told apart are as many as they were: two places that hold one have that
    fact since they were met.
    """
    try:
        kinds: dict[type, list[tuple[Value, Source]]] = {}
        for value, source in sources.told_apart.values():
            kinds.setdefault(type(value), []).append((value, source))
        for entries in kinds.values():
            if len(entries) > 1 and not all(sources.holds(value) for value, _ in entries):
                (_, first), *others = entries
                sources.fact(first, "distinct", tuple([source for _, source in others]), "")
    except Exception as fault:
        sources.host.fault(fault)


def address(sources: Sources, value: Value) -> int:
    """``id(value)`` of a known object: a run-time number where another object may stand in its place."""
    place = (id(value), "address", None)
    if sources.holds(value) or not sources.host.alive:
        sources.tell_apart(value)  # from those whose number moves
        sources.tie()
        return id(value)
    if place not in sources.seen:
        symbol = sources.relations.new_symbol("n", id(value))
        sources.fact(sources.known_source(value), "address", symbol)
        sources.seen[place] = number = integer(id(value), symbol.expr, sources.relations)
        number.names = value  # type: ignore[attr-defined]
    known: int = sources.seen[place]
    return known
