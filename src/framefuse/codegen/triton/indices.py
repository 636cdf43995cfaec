"""Writes index expressions as integer arithmetic over the names of axes, numbers and positions."""

from __future__ import annotations

from dataclasses import dataclass

from framefuse.codegen.triton.builder import Builder, Tile
from framefuse.ir.dtypes import INT64
from framefuse.ir.loops import Index, Kernel, Let, Loop
from framefuse.ir.loops.walk import positions, statements
from framefuse.ir.numbers import Atom, Expr, Floordiv, Maximum, Minimum, Modulo, Symbol


@dataclass(frozen=True, slots=True)
class Steady:
    """Points of an axis, which begin at ``first`` and go on by ``along``, a tile that differs along ``place``. They are
    in one turn of each of the ``numbers``: what it leaves is the same for all of them, or grows by one.
    """

    axis: Expr
    numbers: frozenset[Symbol]
    first: str
    along: str
    place: int

    def holds(self, atom: Floordiv | Modulo) -> bool:
        return atom.left is self.axis and any(atom.right is number.expr for number in self.numbers)


class Indices:
    """What each symbol is at this point of the kernel; ``positive`` are those known to be at least 0.

    A symbol stands for one tile wherever it is known, so that a position is computed once in the loops that are open.
    """

    def __init__(self, b: Builder, kernel: Kernel) -> None:
        self.b = b
        self.symbols: dict[Symbol, Tile] = {}
        self.positive = never_negative(kernel)
        self.steady: Steady | None = None

    def index(self, value: Expr) -> Tile:
        """An index expression, of the integer type of its parts; a name or a literal."""
        constant = value.constant
        if constant is not None:
            return Tile(str(constant), INT64, constant=constant)
        tile = self.b.known((self, value))
        if tile is not None:
            return tile
        text, axes = self._sum(value)
        if text.isidentifier():
            return Tile(text, INT64, axes)
        return self.b.remember((self, value), Tile(self.b.named(text, "k0"), INT64, axes))

    def _sum(self, value: Expr) -> tuple[str, frozenset[int]]:
        text, axes = "", frozenset[int]()
        for atoms, factor in sorted(value.terms, key=lambda term: not term[0] or term[1] < 0):
            parts = [self._atom(atom) for atom in atoms]
            axes = axes.union(*(part.axes for part in parts)) if parts else axes
            names = [part.text for part in parts]
            if abs(factor) != 1 or not names:
                names.append(str(abs(factor)))
            term = " * ".join(names)
            if not text:
                text = term if factor > 0 else f"-{term}" if len(names) == 1 and not atoms else f"0 - {term}"
            else:
                text += f" {'+' if factor > 0 else '-'} {term}"
        return text or "0", axes

    def _atom(self, atom: Atom) -> Tile:
        if isinstance(atom, Symbol):
            return self.symbols[atom]
        assert isinstance(atom, (Floordiv, Modulo, Minimum, Maximum))
        tile = self.b.known((self, atom))
        return tile or self.b.remember((self, atom), self._division_or_extreme(atom))

    def _division_or_extreme(self, atom: Floordiv | Modulo | Minimum | Maximum) -> Tile:
        if isinstance(atom, (Floordiv, Modulo)) and self.steady is not None and self.steady.holds(atom):
            return self._steady_division(self.steady, atom)
        left, right = self.index(atom.left), self.index(atom.right)
        axes = left.axes | right.axes
        if isinstance(atom, (Minimum, Maximum)):
            function = "tl.minimum" if isinstance(atom, Minimum) else "tl.maximum"
            return Tile(self.b.named(f"{function}({left.text}, {right.text})", "k0"), INT64, axes)
        whole = isinstance(atom, Floordiv)
        if self.never_negative(atom.left):
            text = f"{left.text} {'//' if whole else '%'} {right.text}"
        else:
            text = f"device.{'floor_quotient' if whole else 'floor_rest'}({left.text}, {right.text})"
        return Tile(self.b.named(text, "k0"), INT64, axes)

    def _steady_division(self, steady: Steady, atom: Floordiv | Modulo) -> Tile:
        right = self.index(atom.right)
        if isinstance(atom, Floordiv):
            return Tile(self.b.named(f"{steady.first} // {right.text}", "k0"), INT64)
        text = f"{steady.first} % {right.text} + {steady.along}"
        return Tile(self.b.named(text, "k0"), INT64, frozenset((steady.place,)))

    def never_negative(self, value: Expr) -> bool:
        return is_never_negative(value, self.positive)


def never_negative(kernel: Kernel) -> set[Symbol]:
    """Axes, the factors of extents and divisors, and positions computed from them."""
    symbols: set[Symbol] = set()
    for statement in statements(kernel.body):
        if isinstance(statement, Loop):
            symbols.add(statement.axis)
            symbols |= _factors(statement.extent)
    for index in dict.fromkeys(positions(kernel.body)):
        _divisors(index, symbols)
    for statement in statements(kernel.body):
        if isinstance(statement, Let) and isinstance(statement.value, Index):
            if is_never_negative(statement.value.index, symbols):
                symbols.add(Symbol(statement.name))
    return symbols


def _factors(value: Expr) -> set[Symbol]:
    """The symbols of a product, which is the extent of a loop or a divisor: none of them is negative in sense."""
    if len(value.terms) != 1:
        return set()
    return {atom for atom in value.terms[0][0] if isinstance(atom, Symbol)}


def _divisors(value: Expr, symbols: set[Symbol]) -> None:
    for atoms, _ in value.terms:
        for atom in atoms:
            if isinstance(atom, (Floordiv, Modulo)):
                symbols |= _factors(atom.right)
            if not isinstance(atom, Symbol):
                _divisors(atom.left, symbols)  # type: ignore[attr-defined]
                _divisors(atom.right, symbols)  # type: ignore[attr-defined]


def is_never_negative(value: Expr, positive: set[Symbol]) -> bool:
    return all(factor >= 0 and all(_atom_positive(atom, positive) for atom in atoms) for atoms, factor in value.terms)


def _atom_positive(atom: Atom, positive: set[Symbol]) -> bool:
    match atom:
        case Symbol():
            return atom in positive
        case Modulo():
            return True
        case Floordiv(left, _):
            return is_never_negative(left, positive)
        case Minimum(left, right):
            return is_never_negative(left, positive) and is_never_negative(right, positive)
        case Maximum(left, right):
            return is_never_negative(left, positive) or is_never_negative(right, positive)
    return False
