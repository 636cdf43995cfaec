"""Turns what a function is made of into facts: its code and defaults, the globals and cells that it reads."""

from __future__ import annotations

import types

from framefuse.capture.facts.atoms import ATOMS
from framefuse.capture.facts.sources import Sources
from framefuse.ir.facts import Source
from framefuse.ir.values import Value


class Functions:
    """What is known of the functions that existed before the call, and of their variables."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self.globals: dict[int, Source] = {}
        self.keep: list[object] = []  # the namespaces, by whose ids the sources above are found
        self.stated: dict[int, tuple[object, object, object]] = {}

    def forget_readings(self) -> None:
        """Code ran out of sight: what functions are made of is read afresh."""
        self.stated.clear()

    def guard(self, function: types.FunctionType) -> None:
        """The code, defaults and closure of a known function are what they were."""
        try:
            entry = self.sources.known.get(id(function))
            if entry is not None and self.sources.host.alive:
                value = (function.__code__, function.__defaults__, function.__kwdefaults__)
                stated = self.stated.get(id(function))
                if (
                    stated is not None
                    and stated[0] is value[0]
                    and stated[1] is value[1]
                    and stated[2] is value[2]
                ):
                    return
                if not value[2]:
                    self.stated[id(function)] = value
                self.sources.fact(entry[1], "code", value, tuple(map(id, value)))
                self._defaults(function.__defaults__ or ())
                if function.__kwdefaults__:  # a dict that may change in place
                    self.sources.root(function.__kwdefaults__)
                    for key, part in function.__kwdefaults__.items():
                        self.sources.read(function.__kwdefaults__, "item", key, part)
        except Exception as fault:
            self.sources.host.fault(fault)

    def _defaults(self, parts: tuple[Value, ...]) -> None:
        for key, value in enumerate(parts):
            if type(value) not in ATOMS and id(value) not in self.sources.known:
                self.sources.known[id(value)] = (value, Source("item", self.sources.root(parts), key))

    def read_global(self, function: types.FunctionType, name: str, value: Value, free: int) -> Value:
        """A global or builtin read by ``function``."""
        try:
            if not self.sources.host.alive:
                return value
            number = id(function.__globals__)
            base = self.globals.get(number) or self.globals_of(function)
            return self.sources.read_at(base, (number, "item", (str, name)), "global", name, value, free)
        except Exception as fault:
            self.sources.host.fault(fault)
            return value

    def guard_unset_global(self, function: types.FunctionType, name: str) -> None:
        """Neither a module's variables nor its builtins have the name that ``function`` asked for."""
        try:
            number = id(function.__globals__)
            if self.sources.host.alive and (number, "item", (str, name)) not in self.sources.written:
                self.sources.fact(Source("global", self.globals_of(function), name), "unset")
        except Exception as fault:
            self.sources.host.fault(fault)

    def globals_of(self, function: types.FunctionType) -> Source:
        """The long-lived function through which the globals of ``function`` are read."""
        variables = function.__globals__
        source = self.globals.get(id(variables))
        if source is None:
            source = self.globals[id(variables)] = self._holder(function)
            self.keep.append(variables)
        return source

    def _holder(self, function: types.FunctionType) -> Source:
        """A long-lived function with the globals of ``function``: itself, or the module's anything is read through."""
        entry = self.sources.known.get(id(function))
        if entry is not None and not entry[1].is_argument:
            return entry[1]
        return self.sources.root(stand_in(function.__globals__))

    def enter(self, function: types.FunctionType) -> None:
        """The program enters a function: it and what it closes over are as they were, unless the call made it."""
        try:
            if id(function) not in self.sources.known:
                if not self.sources.host.alive or self.sources.is_made(function):
                    return
                self.sources.root(function)
            self.guard(function)
            if function.__closure__ is not None:
                self.assign_cells(function)
        except Exception as fault:
            self.sources.host.fault(fault)

    def assign_cells(self, function: types.FunctionType) -> None:
        """The cells of a known function get sources."""
        try:
            entry = self.sources.known.get(id(function))
            if entry is None or function.__closure__ is None:
                return
            for number, cell in enumerate(function.__closure__):
                if id(cell) not in self.sources.known:
                    # A cell is no value of the program; its content is at ("cell", function, number).
                    self.sources.known[id(cell)] = (cell, Source("cell", entry[1], number))
        except Exception as fault:
            self.sources.host.fault(fault)

    def read_cell(self, cell: types.CellType, value: Value, free: int) -> Value:
        """The content of a cell that existed before the call."""
        try:
            entry = self.sources.known.get(id(cell))
            if entry is None or not self.sources.host.alive:
                return value
            place = (id(cell), "cell", None)
            if place in self.sources.written:
                return self.sources.written[place]
            if place not in self.sources.seen:
                handed = entry[1].is_argument and entry[1].root.key in self.sources.volatile  # over a break
                self.sources.seen[place] = self.sources.guard_value(entry[1], value, handed or free)
            return self.sources.seen[place]
        except Exception as fault:
            self.sources.host.fault(fault)
            return value

    def guard_unset_cell(self, cell: types.CellType) -> None:
        """A cell that existed before the call holds nothing."""
        try:
            entry = self.sources.known.get(id(cell))
            if entry is not None and self.sources.host.alive and (id(cell), "cell", None) not in self.sources.written:
                self.sources.fact(entry[1], "unset")
        except Exception as fault:
            self.sources.host.fault(fault)


def stand_in(variables: dict[str, Value]) -> types.FunctionType:
    """A function that stands for a module's globals."""
    return types.FunctionType(_nothing.__code__, variables, "globals")


def stands_for_globals(function: types.FunctionType) -> bool:
    """Whether :func:`stand_in` made a function."""
    return function.__code__ is _nothing.__code__


def _nothing() -> None:
    """Lends its code to the functions that stand for a module's globals."""
