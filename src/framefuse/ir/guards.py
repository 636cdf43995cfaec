"""What the guards stage makes of a trace's assumptions: a program that checks them, and the places that it fills."""

from __future__ import annotations

from dataclasses import dataclass

from framefuse.ir.facts import Source
from framefuse.ir.numbers import Symbol
from framefuse.ir.plan import GuardProgram


@dataclass(frozen=True, slots=True)
class Guards:
    """A guard program with the places of what it sets: numbers of size symbols and real names, registers of sources."""

    program: GuardProgram
    number_of: dict[Symbol | str, int]
    register_of: dict[Source, int]
