"""Turns expressions over ints and floats into number instructions, each sub-expression computed once."""

from __future__ import annotations

from collections.abc import Hashable

from framefuse.ir.numbers import Atom, Expr, Floordiv, Maximum, Minimum, Modulo, Real, Symbol, Whole
from framefuse.ir.plan import NumberInstruction

OPERATIONS = {Floordiv: "floordiv", Modulo: "mod", Minimum: "min", Maximum: "max"}


class Arithmetic:
    """Allots numbers to expressions: ``number_of`` names what is bound, ``emitted`` collects the instructions."""

    def __init__(self) -> None:
        self.count = 0
        self.number_of: dict[Symbol | str, int] = {}
        self.emitted: list[tuple[str, NumberInstruction]] = []  # guard instructions
        self._known: dict[Hashable, int] = {}

    def fresh(self) -> int:
        """A number that nothing else sets."""
        self.count += 1
        return self.count - 1

    def expression(self, value: Expr) -> int:
        """The number that holds ``value``; KeyError for a symbol that is not bound yet."""
        register = self._known.get(value)
        if register is None:
            constant = value.constant
            register = self._constant(constant) if constant is not None else self._sum(value)
            self._known[value] = register
        return register

    def real(self, value: Real) -> int:
        """The number that holds the float ``value``; KeyError for a symbol that is not bound yet."""
        if value.op == "symbol":
            return self.number_of[value.args[0]]
        if value.op == "const":
            return self._apply("real_const", float(value.args[0]), 0, repr(value.args[0]))
        if value.op == "int":
            return self._apply("real_of_int", self.expression(value.args[0]), 0)
        if value.op == "bits":
            return self.expression(value.args[0])
        numbers = [self.real(part) for part in value.args]
        return self._apply(f"real_{value.op}", numbers[0], numbers[-1] if len(numbers) == 2 else 0)

    def whole(self, value: Whole) -> int:
        """The number that holds the int ``value``; KeyError for a symbol that is not bound yet."""
        numbers = [self.real(part) if isinstance(part, Real) else self.expression(part) for part in value.args]
        if value.op == "same":
            return numbers[0]
        return self._apply(value.op, numbers[0], numbers[-1] if len(numbers) == 2 else 0)

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

    def _apply(self, op: str, left: int | float, right: int, text: str = "") -> int:
        key = (op, text or left, right)
        if key not in self._known:
            number = self._known[key] = self.fresh()
            self.emitted.append(("number", (op, number, left, right)))
        return self._known[key]
