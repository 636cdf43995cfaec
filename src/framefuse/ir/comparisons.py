"""What a program learnt by comparing run-time numbers: facts that must hold again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.numbers import Expr, Real, Symbol
from framefuse.ir.source import Line


@dataclass(frozen=True, slots=True)
class Relation:
    """A fact about sizes: ``left <op> right`` with op one of ``== != < <=``; ``why`` names the user line or rule that
    needs it, ``line`` is where the program asked.
    """

    op: str
    left: Expr
    right: Expr
    why: str = ""
    line: Line | None = field(default=None, compare=False, repr=False)

    def holds(self, values: Mapping[Symbol, int]) -> bool:
        """Whether the relation is true for these values; raises KeyError when a symbol has none."""
        a, b = self.left.evaluate(values), self.right.evaluate(values)
        return {"==": a == b, "!=": a != b, "<": a < b, "<=": a <= b}[self.op]

    @property
    def constant(self) -> bool | None:
        """True or False when the relation holds for all or no values by its form, None when it depends on them."""
        gap = (self.left - self.right).constant
        if gap is None:
            return None
        return {"==": gap == 0, "!=": gap != 0, "<": gap < 0, "<=": gap <= 0}[self.op]

    def substitute(self, values: Mapping[Symbol, Expr]) -> Relation:
        """This relation with symbols replaced."""
        return Relation(self.op, self.left.substitute(values), self.right.substitute(values), self.why, self.line)

    def __str__(self) -> str:
        return f"{self.left} {self.op} {self.right}"


@dataclass(frozen=True, slots=True)
class RealRelation:
    """A fact about floats: the comparison ``left <op> right`` came out as ``holds`` (with a NaN it does not hold, and
    neither does its opposite). ``op`` and ``why`` are as in :class:`Relation`.
    """

    op: str
    left: Real
    right: Real
    holds: bool
    why: str = ""
    line: Line | None = field(default=None, compare=False, repr=False)

    @property
    def names(self) -> frozenset[Symbol | str]:
        """The symbols of ints and the names of floats inside."""
        return self.left.names | self.right.names

    def substitute(self, values: Mapping[Symbol, Expr]) -> RealRelation:
        """This relation with integer symbols replaced."""
        left, right = self.left.substitute(values), self.right.substitute(values)
        return RealRelation(self.op, left, right, self.holds, self.why, self.line)

    def __str__(self) -> str:
        return f"{'' if self.holds else 'not '}{self.left} {self.op} {self.right}"
