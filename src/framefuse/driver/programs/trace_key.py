"""Turns a trace into a digest of all that the stages behind capture read of it, and a list of what it names.

Nothing else of a trace may reach those stages: facts and values belong to guards, which are made anew in each process.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields

from framefuse.driver.programs.functions import described
from framefuse.driver.programs.records import Writer
from framefuse.ir.facts import Assumptions, Source
from framefuse.ir.graph import Graph
from framefuse.ir.source import Site
from framefuse.ir.trace import Trace
from framefuse.ir.values import Value

# The fields that no stage from a trace to its code reads; a field that is not named here counts.
UNREAD = frozenset(("assumptions", "opcodes", "inlined", "seconds", "tied"))
UNREAD_ASSUMPTIONS = frozenset(("facts", "inputs"))
LOOSE = frozenset(("result", "effects"))  # of which stages read values and numbers alone
_TRACE = tuple(each.name for each in fields(Trace) if each.name not in UNREAD | LOOSE)
_ASSUMED = tuple(each.name for each in fields(Assumptions) if each.name not in UNREAD_ASSUMPTIONS)


def _strict(value: Value) -> Sequence[Value]:
    """Describes what stages may look into: it is what its description says, or it has none."""
    if type(value) is Site:
        return ("site",)
    if isinstance(value, type):
        return ("class", value.__module__, value.__qualname__)
    return described(value)


def _loose(value: Value) -> Sequence[Value]:
    """Describes what stages take as it is."""
    if type(value) is Source:
        return ("source", value.kind)
    kind = type(value)
    return ("object", kind.__module__, kind.__qualname__)


def trace_data(trace: Trace, lowered: Graph | None) -> tuple[bytes, list[Value]]:
    """The bytes of all that decides the code of a trace, or of the graph ``lowered`` that a trace was made for, and
    the objects of the program among it, in order.

    Raises Unstorable where there is something of which nothing is known.
    """
    writer = Writer(_strict)
    assumed = trace.assumptions
    writer.write([getattr(trace, name) for name in _TRACE])
    writer.write([getattr(assumed, name) for name in _ASSUMED])
    writer.write([(entry.value, entry.spec) for entry in assumed.inputs])
    writer.write(lowered)
    writer.describe = _loose
    writer.write([trace.result, trace.effects])
    return writer.data(), writer.strangers
