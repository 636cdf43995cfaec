"""Turns integer expressions into number instructions, each sub-expression computed once."""

from __future__ import annotations

from typing import Any

from framefuse.ir.numbers import Atom, Expr, Floordiv, Maximum, Minimum, Modulo, Symbol

OPERATIONS = {Floordiv: "floordiv", Modulo: "mod", Minimum: "min", Maximum: "max"}


class Arithmetic:
    """Allots numbers to expressions: ``number_of`` names what is bound, ``emitted`` collects the instructions."""

    def __init__(self) -> None:
        self.count = 0
        self.number_of: dict[Symbol | str, int] = {}
        self.emitted: list[tuple[Any, ...]] = []
        self._known: dict[Any, int] = {}

    def fresh(self) -> int:
        """A number that nothing else sets."""
        self.count += 1
        return self.count - 1

    def expression(self, value: Expr) -> int:
        """The number that holds ``value``; KeyError for a symbol that is not bound yet."""
        found = self._known.get(value)
        if found is None:
            constant = value.constant
            found = self._constant(constant) if constant is not None else self._sum(value)
            self._known[value] = found
        return found

    def _sum(self, value: Expr) -> int:
        total = -1
        for atoms, factor in value.terms:
            product = -1 if factor == 1 and atoms else self._constant(factor)
            for atom in atoms:
                here = self._atom(atom)
                product = here if product < 0 else self._apply("mul", product, here)
            total = product if total < 0 else self._apply("add", total, product)
        return total

    def _atom(self, atom: Atom) -> int:
        if isinstance(atom, Symbol):
            return self.number_of[atom]
        assert isinstance(atom, (Floordiv, Modulo, Minimum, Maximum))
        return self._apply(OPERATIONS[type(atom)], self.expression(atom.left), self.expression(atom.right))

    def _constant(self, value: int) -> int:
        return self._apply("const", value, 0)

    def _apply(self, op: str, left: int, right: int) -> int:
        key = (op, left, right)
        if key not in self._known:
            number = self._known[key] = self.fresh()
            self.emitted.append(("number", (op, number, left, right)))
        return self._known[key]
