"""Turns divisions of a loop's axis by numbers into digits that each turn moves on, so that no turn divides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from framefuse.codegen.llvm.builder import Builder, Reg, Region
from framefuse.codegen.llvm.integers import floor_quotient
from framefuse.codegen.llvm.values import Node, Values
from framefuse.ir.dtypes import INT64
from framefuse.ir.loops import Statement
from framefuse.ir.loops.walk import positions
from framefuse.ir.numbers import Atom, Expr, Floordiv, Modulo, Symbol


@dataclass(slots=True)
class Division:
    """The axis by ``divisor``: its remainder, its quotient (``whole``) and remainders of the quotient (``digits``, by
    their radix), as far as the loop asks for them.
    """

    divisor: Expr
    rest: Modulo | None = None
    whole: Floordiv | None = None
    digits: dict[Expr, Modulo] = field(default_factory=dict)

    def carried(self) -> Iterator[Atom | None]:
        """What is carried from turn to turn: the remainder always, since it says when the quotient moves on."""
        yield self.rest
        if self.whole is not None:
            yield self.whole
        yield from self.digits.values()


def divisions(axis: Symbol, body: Sequence[Statement], known: set[Symbol]) -> list[Division]:
    """The divisions of ``axis`` in the statements of its loop by numbers of ``known`` symbols: no turn changes them."""
    found: dict[Expr, Division] = {}
    for atom in _atoms(body):
        if not isinstance(atom, (Floordiv, Modulo)) or not known.issuperset(atom.right.symbols):
            continue
        inner = _single(atom.left)
        if inner is axis:
            division = found.setdefault(atom.right, Division(atom.right))
            if isinstance(atom, Floordiv):
                division.whole = atom
            else:
                division.rest = atom
        elif isinstance(atom, Modulo) and isinstance(inner, Floordiv) and _single(inner.left) is axis:
            if known.issuperset(inner.right.symbols):
                found.setdefault(inner.right, Division(inner.right)).digits[atom.right] = atom
    return list(found.values())


def _atoms(body: Sequence[Statement]) -> set[Atom]:
    met: set[Atom] = set()
    waiting = [atom for index in positions(body) for atoms, _ in index.terms for atom in atoms]
    while waiting:
        atom = waiting.pop()
        if atom not in met:
            met.add(atom)
            if not isinstance(atom, Symbol):
                sides = (atom.left, atom.right)  # type: ignore[attr-defined]
                waiting += [inner for side in sides for atoms, _ in side.terms for inner in atoms]
    return met


def _single(value: Expr) -> Atom | None:
    """The atom that an expression is, if it is one alone."""
    if len(value.terms) != 1:
        return None
    atoms, factor = value.terms[0]
    return atoms[0] if factor == 1 and len(atoms) == 1 else None


class Digits:
    """The digits of a loop's axis while the loop is written: a register for each, carried from turn to turn."""

    def __init__(self, b: Builder, values: Values, found: Sequence[Division]) -> None:
        self.b, self.values, self.found = b, values, found
        self.divisors = [self._number(division.divisor) for division in found]
        self.radices = [[self._number(radix) for radix in division.digits] for division in found]
        self.turn: list[Reg] = []

    def _number(self, value: Expr) -> Reg:
        return self.values.get(self.values.index(value))

    def starts(self, start: Reg, before: Region) -> list[Reg]:
        """The digits of the first turn, found by division in front of the loop."""
        b = self.b
        here, b.region = b.region, before
        registers = []
        for division, divisor, radices in zip(self.found, self.divisors, self.radices, strict=True):
            whole = floor_quotient(b, start, divisor)
            registers.append(b.sub(start, b.mul(whole, divisor)))
            registers += [whole] if division.whole is not None else []
            for radix in radices:
                registers.append(b.sub(whole, b.mul(floor_quotient(b, whole, radix), radix)))
        b.region = here
        return registers

    def bind(self, registers: Sequence[Reg]) -> None:
        """Says in which registers this turn has the digits."""
        self.turn = list(registers)
        atoms = [atom for division in self.found for atom in division.carried()]
        for atom, register in zip(atoms, registers, strict=True):
            if atom is not None:
                self.values.digits[atom] = self._node(register)

    def _node(self, register: Reg) -> Node:
        return self.values.fresh("place", INT64, lambda group: register, self.values.depth)

    def following(self) -> list[Reg]:
        """The digits of the next turn: one more, and nothing where that is the whole divisor."""
        b, left = self.b, iter(self.turn)
        registers: list[Reg] = []
        for division, divisor, radices in zip(self.found, self.divisors, self.radices, strict=True):
            rest = next(left)
            more = b.op("i64", 0, f"add nsw i64 {rest.name}, 1")
            full = b.compare("sge", more, divisor)
            registers.append(b.select(full, b.like(0, more), more))
            carry = b.convert("zext", full, "i64")
            if division.whole is not None:
                registers.append(b.add(next(left), carry))
            for radix in radices:
                digit = b.add(next(left), carry)
                registers.append(b.select(b.compare("sge", digit, radix), b.like(0, digit), digit))
        return registers
