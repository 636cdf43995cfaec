"""Cuts the choices of a program down to few and small ones that still make it differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Differs = Callable[[list[int]], "list[int] | None"]


class Shrinker:
    """``best`` are the least choices found so far: fewer ones are less, then smaller ones.

    ``differs`` gives the choices that a program consumed of those it was given, or None where it does not differ.
    """

    def __init__(self, numbers: Sequence[int], differs: Differs) -> None:
        self.best, self.differs = list(numbers), differs

    def shrink(self) -> list[int]:
        """Tries until nothing gives less."""
        while self._without_parts() or self._with_smaller_numbers():
            pass
        return self.best

    def _less(self, candidate: list[int]) -> bool:
        found = self.differs(candidate)
        if found is None or (len(found), found) >= (len(self.best), self.best):
            return False
        self.best = found
        return True

    def _without_parts(self) -> bool:
        """Whether leaving out numbers that stand together gave less."""
        came = False
        for size in (64, 32, 16, 8, 4, 2, 1):
            at = len(self.best) - size
            while at >= 0:
                came |= self._less(self.best[:at] + self.best[at + size :])
                at = min(at, len(self.best)) - max(1, size // 2)
        return came

    def _with_smaller_numbers(self) -> bool:
        """Whether a smaller number in the place of one gave less."""
        came, at = False, 0
        while at < len(self.best):
            number = self.best[at]
            for smaller in sorted({0, number // 2, number - 1} - {number, -1}):
                if self._less([*self.best[:at], smaller, *self.best[at + 1 :]]):
                    came = True
                    break
            at += 1
        return came
