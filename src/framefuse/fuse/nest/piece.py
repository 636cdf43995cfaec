"""Says of a part of a loop which points it has and what the tests of points are known to be there."""

from __future__ import annotations

from dataclasses import dataclass, field

from framefuse.fuse.addressing.ranges import ONE
from framefuse.ir.numbers import Expr


@dataclass(frozen=True, slots=True)
class Piece:
    """Points ``first`` to ``last`` of a loop, where ``outcomes`` are those of the tests that are asked of points;
    ``inside`` is 1, or 0 where a loop around it is at no point of the piece.
    """

    first: Expr
    last: Expr
    inside: Expr = ONE
    outcomes: dict[Expr, bool] = field(default_factory=dict)

    @property
    def length(self) -> Expr:
        """How many points the loop has."""
        return (self.last - self.first) * self.inside
