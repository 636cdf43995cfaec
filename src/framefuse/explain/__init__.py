"""Answers on one screen what framefuse did with a function: did it work, what got faster, why not more."""

from framefuse.explain.report import Explanation, explain

__all__ = ["Explanation", "explain"]
