"""Draws what a program consists of: small choices that Hypothesis can shrink towards the first of each list."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


@cache
def _below(count: int) -> st.SearchStrategy[int]:
    return st.integers(0, count - 1)


class Choice:
    """Choices of one program. Lists stand with the simplest first; a chance shrinks to False."""

    def __init__(self, draw: Callable[[Any], Any]) -> None:
        self.draw = draw

    def below(self, count: int) -> int:
        """A number from 0 to ``count - 1``."""
        return self.draw(_below(count)) if count > 1 else 0

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
