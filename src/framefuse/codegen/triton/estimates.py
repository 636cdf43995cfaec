"""Bounds of extents and their values at the recorded sizes."""

from __future__ import annotations

from collections.abc import Mapping

from framefuse.ir.numbers import Atom, Expr, Floordiv, Maximum, Minimum, Modulo, Symbol


def power(value: int) -> int:
    """The least power of two that is not below ``value``."""
    return 1 << max(0, value - 1).bit_length()


def upper(extent: Expr) -> int | None:
    """A bound of an extent that holds for any sizes, if its form gives one."""
    if extent.constant is not None:
        return extent.constant
    if len(extent.terms) == 1 and extent.terms[0][1] == 1 and len(extent.terms[0][0]) == 1:
        atom = extent.terms[0][0][0]
        if isinstance(atom, Minimum):
            bounds = [bound for bound in (upper(atom.left), upper(atom.right)) if bound is not None]
            return min(bounds) if bounds else None
    return None


def estimate(value: Expr, hints: Mapping[Symbol, int]) -> int:
    """The value for the recorded numbers, where positions inside the kernel count as 0."""
    total = 0
    for atoms, factor in value.terms:
        for atom in atoms:
            factor *= _estimate_atom(atom, hints)
        total += factor
    return total


def _estimate_atom(atom: Atom, hints: Mapping[Symbol, int]) -> int:
    if isinstance(atom, Symbol):
        return hints.get(atom, 0)
    assert isinstance(atom, (Floordiv, Modulo, Minimum, Maximum))
    left, right = estimate(atom.left, hints), estimate(atom.right, hints)
    match atom:
        case Floordiv():
            return left // right if right else 0
        case Modulo():
            return left % right if right else 0
        case Minimum():
            return min(left, right)
    return max(left, right)
