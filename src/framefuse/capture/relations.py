"""Keeps what a program learnt about its run-time numbers: relations that hold again, and numbers made of others."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from framefuse.capture.net import netted
from framefuse.capture.retreat import retreat
from framefuse.ir.comparisons import RealRelation, Relation
from framefuse.ir.numbers import Expr, Real, Symbol, Whole, constant_real, expr, is_large


@netted("self", relate="None", derive="None", short="real", pin_real="None", pin_sizes="None")
class Relations:
    """The part of the recorder that owns run-time numbers."""

    alive: bool
    tracked: bool
    machine: Any
    sources: Any
    kill: Any
    end: Any
    placed: Any
    hints: dict[Symbol, int]
    real_hints: dict[str, float]
    relations: dict[tuple[str, Expr, Expr], Relation]
    comparisons: dict[tuple[str, Real, Real], RealRelation]
    definitions: dict[Whole | Real, Symbol | str]
    volatile_names: set[Symbol | str]
    data_symbols: set[Symbol]
    readers: dict[Symbol, Any]

    def hint(self, symbol: Symbol, value: int) -> None:
        """The recorded value of a symbol."""
        self.hints[symbol] = value
        self.tracked = True

    def hint_real(self, name: str, value: float) -> None:
        """The recorded value of a float symbol."""
        self.real_hints[name] = value
        self.tracked = True

    def relate(self, op: str, left: Expr, right: Expr) -> None:
        """The program learnt that ``left op right`` holds."""
        if not self.alive or (op, left, right) in self.relations:
            return
        line = self.placed()
        relation = Relation(op, left, right, str(line) if line is not None else "", line)
        if relation.constant is True:
            return
        if (left.symbols | right.symbols) & self.data_symbols:
            self._asked(left.symbols | right.symbols, line.text if line is not None else "a branch")
            return
        self.relations[(op, left, right)] = relation

    def relate_real(self, op: str, left: Real, right: Real, holds: bool) -> None:
        """The program compared two floats."""
        key = (op, left, right)
        if not self.alive or key in self.comparisons:
            return
        line = self.placed()
        if (left.symbols | right.symbols) & self.data_symbols:
            self._asked(left.symbols | right.symbols, line.text if line is not None else "a branch")
            return
        self.comparisons[key] = RealRelation(op, left, right, holds, str(line) if line is not None else "", line)

    def _asked(self, symbols: frozenset[Symbol], detail: str) -> None:
        """The program looks at a number that is known only while the trace runs: the segment ends before that. Where it
        cannot, the next recording reads the number in a step.
        """
        read = [symbol for symbol in symbols if symbol in self.readers]
        whole = self.machine is not None and self.machine.points is None  # a graph of its own, or an error
        if read and self.machine is not None:
            retreat(self.machine, detail)
            if self.machine.learn_readers([self.readers[symbol] for symbol in read], detail):
                self.end("item", detail)
                return
        self.kill("item" if read and whole else "data-size", detail)

    def derive(self, made: Whole, value: int) -> Symbol | None:
        """A symbol for a number that is made of others; None where a size known only during the run is among them."""
        if not made.symbols.isdisjoint(self.data_symbols):
            return None
        found = self.definitions.get(made)
        if found is None:
            found = self.sources.symbol("n" if value >= 0 else "m")
            self.definitions[replace(made, line=self.placed())] = found
            self.hint(found, value)
            if not self.volatile_names.isdisjoint(made.names):
                self.volatile_names.add(found)
        assert isinstance(found, Symbol)
        return found

    def short(self, real: Real) -> Real:
        """The float itself, or a name for one that grew large, where no size known only during the run is in it."""
        if not is_large(real) or not real.symbols.isdisjoint(self.data_symbols):
            return real
        found = self.definitions.get(real)
        if found is None:
            found = self.definitions[real] = self.sources.real_name()
            self.hint_real(found, real.evaluate(self.hints, self.real_hints))
            if not self.volatile_names.isdisjoint(real.names):
                self.volatile_names.add(found)
        return Real("symbol", (found,))

    def pinned(self, names: frozenset[Symbol | str]) -> None:
        """The program looks at the value of a run-time number. One that comes out of a break differs at each call: the
        next recording, if there is one, leaves what looks at it to a step.
        """
        if self.machine is not None and not self.volatile_names.isdisjoint(names):
            self.machine.learn("value", "An instruction")

    def pin_real(self, real: Real) -> None:
        """The program used the value of a float: everything that it is made of is fixed."""
        if not self.alive:
            return
        made = {name: part for part, name in self.definitions.items() if isinstance(part, Real)}
        names: set[str] = set()
        waiting = [real]
        while waiting:
            part = waiting.pop()
            for symbol in part.symbols:
                self.relate("==", symbol.expr, expr(self.hints[symbol]))
            fresh = {name for name in part.names if isinstance(name, str)} - names
            names |= fresh
            waiting += [made[name] for name in fresh if name in made]
        for name in names - made.keys():
            value = self.real_hints[name]
            for fact in list(self.sources.facts.values()):
                if fact.kind == "real" and fact.value == name:
                    self.sources.fact(fact.source, "float", value, repr(value))
                elif fact.kind == "scalar" and fact.value == name:
                    if value != value or value == 0:  # an equation tells neither one NaN nor one zero from another
                        self.kill("item", "Tensor.item")
                        return
                    self.relate_real("==", Real("symbol", (name,)), constant_real(value), True)

    def pin_sizes(self) -> None:
        """Something that may depend on every size was read: all sizes are fixed."""
        for symbol, value in list(self.hints.items()):
            if symbol not in self.readers:
                self.relate("==", symbol.expr, expr(value))

