"""Turns size and scalar expressions into number instructions, each distinct expression once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from framefuse.ir.numbers import (
    Atom,
    Binary,
    Expr,
    Floordiv,
    Maximum,
    Minimum,
    Modulo,
    Real,
    Symbol,
    constant_real,
    expr,
)
from framefuse.ir.plan import NumberInstruction

ATOM_OPS = {Floordiv: "floordiv", Modulo: "mod", Minimum: "min", Maximum: "max"}


class NumberProgram:
    """Grows the number array of a plan: ``slot_of(expression)`` gives the slot that will hold its value.

    ``bound`` are the slots that the guard program sets, by Symbol for ints and by name for reals. ``early`` are the
    instructions that need nothing else; those over sizes that a step of the plan binds are handed out by :meth:`take`,
    to run after that step.
    """

    def __init__(self, bound: Mapping[Symbol | str, int], count: int) -> None:
        self.slots: dict[Expr | Real, int] = {}
        for key, slot in bound.items():
            self.slots[key.expr if isinstance(key, Symbol) else Real("symbol", (key,))] = slot
        self.count = count
        self.early: list[NumberInstruction] = []
        self._late: list[NumberInstruction] = []
        self._late_slots: set[int] = set()

    def bind(self, symbol: Symbol) -> int:
        """A new slot for a symbol that a step of the plan sets."""
        slot = self._new()
        self.slots[symbol.expr] = slot
        self._late_slots.add(slot)
        return slot

    def largest(self, symbol: Symbol, values: Sequence[Expr]) -> None:
        """Sets ``symbol`` to the largest of the values."""
        slots = [self.slot_of(value) for value in values]
        total = slots[0]
        for slot in slots[1:]:
            total = self._emit("max", total, slot)
        self.slots[symbol.expr] = total

    def slot_of(self, value: Expr | Real | int | float) -> int:
        """The slot of ``value``; raises KeyError for a symbol that nothing has set so far."""
        if type(value) is Expr and (known := self.slots.get(value)) is not None:  # most are: a warm first call waits
            return known
        key = value if isinstance(value, Real) else _constant(value) if isinstance(value, float) else expr(value)
        slot = self.slots.get(key)
        if slot is None:
            slot = self._real(key) if isinstance(key, Real) else self._sum(key)
            self.slots[key] = slot
        return slot

    def take(self) -> tuple[NumberInstruction, ...]:
        """The instructions over late sizes made since the last call of this method."""
        late, self._late = tuple(self._late), []
        return late

    def _new(self) -> int:
        self.count += 1
        return self.count - 1

    def _emit(self, op: str, left: int | float, right: int = 0) -> int:
        slot = self._new()
        late = op not in ("const", "real_const") and not self._late_slots.isdisjoint((left, right))
        if late:
            self._late_slots.add(slot)
        (self._late if late else self.early).append((op, slot, left, right))
        return slot

    def _sum(self, value: Expr) -> int:
        if value.constant is not None:
            return self._emit("const", value.constant)
        total = None
        for atoms, factor in value.terms:
            term = self._product(atoms, factor)
            total = term if total is None else self._emit("add", total, term)
        assert total is not None
        return total

    def _product(self, atoms: tuple[Atom, ...], factor: int) -> int:
        single = Expr(((atoms, 1),))
        if not atoms or single in self.slots:
            total = self.slots.get(single)
        else:
            total = None
            for atom in atoms:
                slot = self._atom(atom)
                total = slot if total is None else self._emit("mul", total, slot)
            assert total is not None
            self.slots[single] = total
        if total is None:
            return self.slot_of(factor)
        return total if factor == 1 else self._emit("mul", total, self.slot_of(factor))

    def _atom(self, atom: Atom) -> int:
        if isinstance(atom, Symbol):
            return self.slots[atom.expr]
        assert isinstance(atom, Binary)
        key = Expr((((atom,), 1),))
        slot = self.slots.get(key)
        if slot is None:
            op = ATOM_OPS[type(atom)]
            slot = self._emit(op, self.slot_of(atom.left), self.slot_of(atom.right))
            self.slots[key] = slot
        return slot

    def _real(self, value: Real) -> int:
        if value.op == "symbol":
            raise KeyError(value.args[0])
        if value.op == "const":
            return self._emit("real_const", float(value.args[0]))
        if value.op == "int":
            return self._emit("real_of_int", self.slot_of(value.args[0]))
        if value.op == "bits":
            return self.slot_of(value.args[0])
        slots = [self.slot_of(arg) for arg in value.args]
        return self._emit(f"real_{value.op}", *slots)


def _constant(value: float) -> Real:
    return constant_real(value)
