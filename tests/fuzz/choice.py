"""Draws what a program consists of: small numbers, kept, so that fewer and smaller ones can take their places."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Choice:
    """Choices of one program, the same ones for each ``seed``. Lists stand with the simplest first; a chance is False
    where 0 is drawn. Where ``numbers`` are given these are drawn, and zeros behind them.
    """

    def __init__(self, seed: int | str = 0, numbers: Sequence[int] | None = None) -> None:
        self.random = random.Random(seed)
        self.given = None if numbers is None else iter(numbers)
        self.drawn: list[int] = []

    def below(self, count: int) -> int:
        """A number from 0 to ``count - 1``."""
        if count < 2:
            return 0
        number = self.random.randrange(count) if self.given is None else min(next(self.given, 0), count - 1)
        self.drawn.append(number)
        return number

    def between(self, low: int, high: int) -> int:
        """A number from ``low`` to ``high``, both included."""
        return low + self.below(high - low + 1)

    def pick(self, options: Sequence[T]) -> T:
        """One of ``options``."""
        return options[self.below(len(options))]

    def chance(self, percent: int) -> bool:
        """True in about ``percent`` of a hundred draws."""
        return self.below(100) >= 100 - percent

    def several(self, low: int, high: int) -> range:
        """A range of a drawn length: for loops that make that many things."""
        return range(self.between(low, high))
