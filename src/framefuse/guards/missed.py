"""Turns compiled guard programs that refuse a call into the user's words for why: the place, both values, the line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from framefuse import _native
from framefuse.guards.check import Miss, check
from framefuse.ir.facts import Fact, Source
from framefuse.ir.values import Value

ARGUMENT = re.compile(r"(args\[\d+\])((?:\[[^\]]*\])?)")
COMPARED = re.compile(r" (==|is) .*$")


def missed(
    known: Iterable[tuple[_native.GuardSet, Sequence[Fact]]],
    values: tuple[Value, ...],
    names: Mapping[str, str],
    free: frozenset[Source] = frozenset(),
) -> str | None:
    """Why none of ``known`` takes the bound arguments ``values``: guard sets, each with the facts it was made of.

    Of several the one is named that holds the furthest. ``names`` are the user's words for arguments, ``free`` the
    places of which the next trace takes any value. None where one does take them, or nothing is known.
    """
    asked = ((guards, facts) for guards, facts in known if guards.program.instructions)
    reached = [(_reach(guards, values), guards.program, facts) for guards, facts in asked]
    if not reached:
        return None
    _, program, facts = max(reached, key=lambda entry: entry[0])
    miss = check(program, values)
    return told(miss, facts, names, miss.source in free) if isinstance(miss, Miss) else None


def _reach(guards: _native.GuardSet, values: tuple[Value, ...]) -> float:
    """How much of a guard program holds; the number of the first instruction that fails."""
    failed = guards.check(values)
    return failed / len(guards.program.instructions) if isinstance(failed, int) else 1.0


def told(miss: Miss, facts: Iterable[Fact], names: Mapping[str, str], free: bool = False) -> str:
    """A miss in the user's words; ``free`` says that the next trace takes any value."""
    name = ARGUMENT.sub(lambda match: names.get(match[0]) or names.get(match[1], match[1]) + match[2], miss.name)
    asked = next((f.line for f in facts if f.line is not None and f.source == miss.source), None)
    line = f" (asked at {asked.place})" if asked is not None else ""
    return f"{COMPARED.sub('', name)} was {miss.was}, is {miss.now}{line}" + (": any value from now on" if free else "")
