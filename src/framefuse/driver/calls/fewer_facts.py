"""Leaves out of a kept call the facts that others of it state as well: each takes time in each later process."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from framefuse.ir.facts import Fact, Source

ATOMS = frozenset(("int", "float", "str"))


def fewer(facts: Sequence[Fact]) -> tuple[Fact, ...]:
    """The facts that say as much as all of them, of long-lived objects."""
    tuples = _tuples(facts)
    return _joined([fact for fact in facts if not _described(fact, tuples)])


def _tuples(facts: Iterable[Fact]) -> frozenset[Source]:
    """The places of tuples that are held by identity, whose elements their descriptions tell."""
    return frozenset(
        [fact.source for fact in facts if fact.kind == "is" and type(fact.value) is tuple and _lasts(fact.source)]
    )


def _described(fact: Fact, tuples: frozenset[Source]) -> bool:
    source = fact.source
    if fact.kind == "length":
        return source in tuples
    return fact.kind in ATOMS and source.kind == "item" and source.base in tuples


def _joined(facts: Sequence[Fact]) -> tuple[Fact, ...]:
    """Names that the dict of an object lacks, in the one fact of it that states others."""
    bare = {fact.source: fact for fact in facts if fact.kind == "bare" and _lasts(fact.source)}
    absent: dict[Source, dict[str, None]] = {source: {} for source in bare}
    rest = []
    for fact in facts:
        holder = fact.source.base if fact.kind == "absent" and fact.source.kind == "dict" else None
        names = absent.get(holder) if holder is not None else None
        if names is not None and type(fact.value) is str:
            names[fact.value] = None
        else:
            rest.append(fact)
    return tuple([_with_names(fact, absent) if fact is bare.get(fact.source) else fact for fact in rest])


def _with_names(fact: Fact, absent: dict[Source, dict[str, None]]) -> Fact:
    names, empties = fact.value
    more = [name for name in absent[fact.source] if name not in names]
    return replace(fact, value=((*names, *more), empties)) if more else fact


def _lasts(source: Source) -> bool:
    return not source.is_argument
