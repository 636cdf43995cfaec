"""Says when a function may compile one more trace: freely up to its limits, and ever more rarely beyond them."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_PENALTY = 64


@dataclass(slots=True)
class Bound:
    """The traces that may start at one place: ``limit`` of them, made in ``seconds`` of recording and compiling.

    Beyond that a new case runs eagerly; after ``penalty`` of them one more trace is made, in place of the one that was
    hit longest ago, and the penalty doubles. So a program that moves on to other cases is not left behind for good.
    """

    limit: int
    seconds: float
    made: int = 0
    spent: float = 0.0
    penalty: int = FIRST_PENALTY
    waited: int = 0

    @property
    def reached(self) -> bool:
        """Whether new cases wait."""
        return self.made >= self.limit or self.spent >= self.seconds

    def allows(self) -> bool:
        """Whether the new case at hand may be recorded; one that may not has waited once more."""
        if not self.reached:
            return True
        self.waited += 1
        if self.waited < self.penalty:
            return False
        self.waited = 0
        self.penalty *= 2
        return True

    def add(self, seconds: float) -> None:
        """A trace was made."""
        self.made += 1
        self.spent += seconds
