"""Keeps what a program learnt about its run-time numbers: relations that hold again, and numbers made of others."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

import torch

from framefuse.capture.facts.owner import Places
from framefuse.ir.comparisons import RealRelation, Relation
from framefuse.ir.numbers import Expr, Real, Symbol, Whole, constant_real, expr, is_large
from framefuse.ir.own_class import is_a
from framefuse.ir.source import Line


class Host(Protocol):
    """What the relations need of the recorder."""

    alive: bool

    @property
    def sources(self) -> Places: ...

    def kill(self, code: str, detail: str) -> None: ...
    def fault(self, error: Exception) -> None: ...
    def placed(self) -> Line | None: ...
    def asked_during_run(self, read: list[Symbol], detail: str) -> None: ...
    def volatile_pinned(self) -> None: ...


class Relations:
    """What is known of the run-time numbers of one recording; the owner of each of them.

    ``hints`` and ``real_hints`` are the recorded values of the symbols. ``stated`` and ``comparisons`` are relations of
    ints and floats that must hold again. ``definitions`` give a symbol to what is computed from others.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.tracked = False  # whether any run-time number or string was made
        self.count = 0
        self.hints: dict[Symbol, int] = {}
        self.real_hints: dict[str, float] = {}
        self.stated: dict[tuple[str, Expr, Expr], Relation] = {}
        self.comparisons: dict[tuple[str, Real, Real], RealRelation] = {}
        self.definitions: dict[Whole | Real, Symbol | str] = {}
        self.fallible: dict[Real, Line | None] = {}  # floats that raise for other numbers, and where they are computed
        self.volatile_names: set[Symbol | str] = set()  # of values that come out of a break
        self.data_symbols: set[Symbol] = set()  # of numbers that are known only while the trace runs
        self.element_symbols: set[Symbol] = set()  # those among them that are read from tensors
        self.element_types: dict[Symbol, torch.dtype] = {}  # and of which type each of them is there
        self.unclear_symbols: set[Symbol] = set()  # those among them that may be known before: lowering finds out

    @property
    def alive(self) -> bool:
        """Whether anybody still records."""
        return self.host.alive

    @property
    def places(self) -> Places:
        """What states facts about the places that run-time values were read from."""
        return self.host.sources

    def note_tracked(self) -> None:
        """Notes that the program may hold run-time values, which are taken out of its objects in the end."""
        self.tracked = True

    def note_volatile(self, name: Symbol | str) -> None:
        """Notes the name of a value that is likely another one at the next call, as one that comes out of a break."""
        self.volatile_names.add(name)

    # Symbols --------------------------------------------------------------------------------------------------------

    def symbol(self, prefix: str) -> Symbol:
        """A fresh integer symbol."""
        self.count += 1
        return Symbol(f"{prefix}{self.count}")

    def real_name(self) -> str:
        """A fresh name of a float."""
        self.count += 1
        return f"r{self.count}"

    def new_symbol(self, prefix: str, value: int) -> Symbol:
        """A fresh integer symbol with its recorded value."""
        symbol = self.symbol(prefix)
        self.hint(symbol, value)
        return symbol

    def new_real(self, value: float) -> str:
        """A fresh name of a float with its recorded value."""
        name = self.real_name()
        self.hint_real(name, value)
        return name

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
        try:
            if not self.alive or (op, left, right) in self.stated:
                return
            line = self.host.placed()
            relation = Relation(op, left, right, str(line) if line is not None else "", line)
            if relation.constant is True:
                return
            asked = (left.symbols | right.symbols) & self.data_symbols
            if not asked <= self.unclear_symbols:
                self._asked(asked, line.text if line is not None else "a branch")
                return
            self.stated[(op, left, right)] = relation
        except Exception as fault:
            self.host.fault(fault)

    def relate_real(self, op: str, left: Real, right: Real, holds: bool) -> None:
        """The program compared two floats."""
        key = (op, left, right)
        if not self.alive or key in self.comparisons:
            return
        line = self.host.placed()
        asked = (left.symbols | right.symbols) & self.data_symbols
        if not asked <= self.unclear_symbols:
            self._asked(asked, line.text if line is not None else "a branch")
            return
        self.comparisons[key] = RealRelation(op, left, right, holds, str(line) if line is not None else "", line)

    def _asked(self, symbols: frozenset[Symbol], detail: str) -> None:
        """The program looks at a number that is known only while the trace runs: the segment ends before that. Where it
        cannot, the next recording reads the number in a step.
        """
        self.host.asked_during_run([symbol for symbol in symbols if symbol in self.element_symbols], detail)

    def note_fallible(self, real: Real) -> None:
        """The program computed a float, which raises for other numbers."""
        if real not in self.fallible:
            self.fallible[real] = self.host.placed()

    def settle_errors(self, used: Iterable[Expr | Real]) -> None:
        """Where nothing that is ``used`` computes such a float, and no fact does, a fact is to compute it: numbers for
        which it raises are another trace's.
        """
        met: set[Real] = set()
        compared = [side for fact in self.comparisons.values() for side in (fact.left, fact.right)]
        defined = [part for whole in self.definitions for part in (whole, *whole.args)]
        _walk([*used, *compared, *defined], met)
        for real, line in reversed(self.fallible.items()):
            if real not in met and real.symbols.isdisjoint(self.data_symbols):
                least = constant_real(-math.inf)  # which no float is below
                relation = RealRelation("<", real, least, False, str(line) if line is not None else "", line)
                self.comparisons["<", real, least] = relation
                _walk([real], met)

    def derive(self, whole: Whole, value: int) -> Symbol | None:
        """A symbol for a number that is made of others; None where a size known only during the run is among them."""
        try:
            if not whole.symbols.isdisjoint(self.data_symbols):
                return None
            symbol = self.definitions.get(whole)
            if symbol is None:
                symbol = self.new_symbol("n" if value >= 0 else "m", value)
                self.definitions[replace(whole, line=self.host.placed())] = symbol
                if not self.volatile_names.isdisjoint(whole.names):
                    self.volatile_names.add(symbol)
            assert is_a(symbol, Symbol)
            return symbol
        except Exception as fault:
            self.host.fault(fault)
            return None

    def short(self, real: Real) -> Real:
        """The float itself, or a name for one that grew large, where no size known only during the run is in it."""
        try:
            if not is_large(real) or not real.symbols.isdisjoint(self.data_symbols):
                return real
            name = self.definitions.get(real)
            if name is None:
                name = self.definitions[real] = self.new_real(real.evaluate(self.hints, self.real_hints))
                if not self.volatile_names.isdisjoint(real.names):
                    self.volatile_names.add(name)
            return Real("symbol", (name,))
        except Exception as fault:
            self.host.fault(fault)
            return real

    def is_from_data(self, number: Expr | Real) -> bool:
        """Whether an int, which may be a size, is known only while the trace runs."""
        return is_a(number, Expr) and not self.data_symbols.isdisjoint(number.symbols)

    def pinned(self, names: frozenset[Symbol | str]) -> None:
        """The program looks at the value of a run-time number. One that comes out of a break differs at each call: the
        next recording, if there is one, leaves what looks at it to a step.
        """
        if not self.volatile_names.isdisjoint(names):
            self.host.volatile_pinned()

    def pin_real(self, real: Real) -> None:
        """The program used the value of a float: everything that it is made of is fixed."""
        try:
            if not self.alive:
                return
            defined = {name: part for part, name in self.definitions.items() if is_a(part, Real)}
            names: set[str] = set()
            waiting = [real]
            while waiting:
                part = waiting.pop()
                for symbol in part.symbols:
                    self.relate("==", symbol.expr, expr(self.hints[symbol]))
                fresh = {name for name in part.names if is_a(name, str)} - names
                names |= fresh
                waiting += [defined[name] for name in fresh if name in defined]
            for name in names - defined.keys():
                value = self.real_hints[name]
                for fact in self.places.binding(name):
                    if fact.kind == "real":
                        self.places.float_fact(fact.source, value)
                    else:
                        if value != value or value == 0:  # an equation tells neither one NaN nor one zero from another
                            self.host.kill("item", "Tensor.item")
                            return
                        self.relate_real("==", Real("symbol", (name,)), constant_real(value), True)
        except Exception as fault:
            self.host.fault(fault)

    def pin_sizes(self) -> None:
        """Something that may depend on every size was read: all sizes are fixed."""
        try:
            for symbol, value in list(self.hints.items()):
                if symbol not in self.element_symbols:
                    self.relate("==", symbol.expr, expr(value))
        except Exception as fault:
            self.host.fault(fault)


def _walk(waiting: list[Expr | Real | Whole], met: set[Real]) -> None:
    """Adds to ``met`` all floats that these numbers are made of."""
    while waiting:
        part = waiting.pop()
        if type(part) is Real and part not in met:
            met.add(part)
            waiting += [arg for arg in part.args if type(arg) is Real]
