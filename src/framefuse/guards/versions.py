"""Tells which classes a trace depends on, as they were when it was recorded, for guards that are built later."""

from __future__ import annotations

from collections.abc import Iterable

from framefuse import _native
from framefuse.guards.source_nodes import MISSING, Nodes, resolve
from framefuse.ir.facts import Assumptions
from framefuse.ir.guards import Guards
from framefuse.ir.own_class import is_a

Versions = dict[type, int]


def versions(all_assumptions: Iterable[Assumptions]) -> Versions | None:
    """The version tags of the classes now; None where one is not known."""
    found: Versions = {}
    for assumptions in all_assumptions:
        nodes = Nodes(assumptions.facts)
        for fact in assumptions.facts:
            if fact.kind != "version":
                continue
            held = resolve(nodes.node(fact.source))
            tag = _native.type_tag(held) if held is not MISSING and is_a(held, type) else 0
            if not tag:
                return None
            found[held] = tag
    return found


def unchanged(guards: Guards, known: Versions | None = None) -> bool:
    """Whether the classes that guards depend on are what they were when these were built, and when they were ``known``,
    if so.
    """
    checks = [each for each in guards.program.instructions if each[0] == "version"]
    held = {each[1]: each[2] for each in guards.program.instructions if each[0] == "object"}
    if known is not None and any(known.get(held[register]) != tag for _, register, (tag, _) in checks):
        return False
    return all(tag != 0 and _native.type_tag(held[register]) == tag for _, register, (tag, _) in checks)
