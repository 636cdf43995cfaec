"""Turns a graph's sizes and strides inside a kernel into its number parameters, so that equal kernels compare equal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from framefuse.ir.dtypes import DType
from framefuse.ir.loops import Buffer, Number, Scalar
from framefuse.ir.numbers import Atom, Binary, Expr, Real, Symbol, expr, maximum, minimum


def is_local(atom: Atom) -> bool:
    """Whether an atom belongs to the kernel: an axis or position, or an expression over one."""
    return any(symbol.name.startswith("@") for symbol in atom.symbols)


class Parameters:
    """Number and buffer parameters in order of first use; each graph expression that no axis takes part in is one
    number, unless it is constant.
    """

    def __init__(self) -> None:
        self.values: list[Expr | Real] = []
        self.numbers: list[Number] = []
        self.buffers: list[object] = []  # what each buffer holds: a node or a partial result
        self.written: set[object] = set()
        self.dtypes: dict[object, DType] = {}
        self.locals: dict[Symbol, Expr] = {}
        self._placed: dict[Symbol, Expr] = {}
        self._names: dict[object, str] = {}
        self._found: dict[Expr | Real, Symbol] = {}
        self._done: dict[Expr, Expr] = {}

    def buffer(self, key: object, dtype: DType, write: bool = False) -> str:
        """The name of the buffer that holds ``key``."""
        name = self._names.get(key)
        if name is None:
            name = self._names[key] = f"b{len(self.buffers)}"
            self.buffers.append(key)
            self.dtypes[key] = dtype
        if write:
            self.written.add(key)
        return name

    def known(self, key: object) -> str | None:
        """The name of the buffer that holds ``key``, if there is one so far."""
        return self._names.get(key)

    def declared(self) -> tuple[Buffer, ...]:
        """The buffer parameters."""
        return tuple(Buffer(self._names[key], self.dtypes[key], key in self.written) for key in self.buffers)

    def number(self, value: Expr | Real) -> Symbol:
        """The parameter that carries ``value``."""
        symbol = self._found.get(value)
        if symbol is None:
            symbol = self._found[value] = Symbol(f"n{len(self.numbers)}")
            self.numbers.append(Number(symbol, isinstance(value, Real)))
            self.values.append(value)
        return symbol

    def scalar(self, value: Expr | Real, dtype: DType) -> Scalar:
        """A number of the graph as a value of the kernel."""
        return Scalar(self.number(value), dtype, isinstance(value, Real))

    def name(self, local: Symbol, value: Expr) -> None:
        """What an axis or position of the group is in the kernel: an axis of it, or 0 for one that another absorbed."""
        self.locals[local] = value
        self._done.clear()

    def place(self, local: Symbol, value: Expr) -> None:
        """What an axis of the group is in terms of other axes of it and of the graph's sizes: terms of addresses that
        hold several such axes may cancel out.
        """
        self._placed[local] = value
        self._done.clear()

    @contextmanager
    def held(self, sizes: dict[Symbol, Expr]) -> Iterator[None]:
        """What sizes of the graph are in index expressions that are asked for inside."""
        before = self._placed
        self._placed = {**before, **sizes}
        self._done.clear()
        yield
        self._placed = before
        self._done.clear()

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Names that are given inside are forgotten again: axes of another group may have the same ones."""
        before = dict(self.locals)
        yield
        self.locals = before
        self._done.clear()

    def index(self, value: Expr) -> Expr:
        """``value`` over the kernel's axes and number parameters."""
        done = self._done.get(value)
        if done is not None:
            return done
        if value.constant is not None:
            return value
        parts: dict[tuple[Atom, ...], Expr] = {}
        for atoms, factor in value.substitute(self._placed).terms:
            local = tuple(atom for atom in atoms if is_local(atom))
            rest = Expr(((tuple(atom for atom in atoms if not is_local(atom)), factor),))
            parts[local] = parts[local] + rest if local in parts else rest
        total = expr(0)
        for local, rest in parts.items():
            if any(isinstance(atom, Symbol) and self.locals[atom].constant == 0 for atom in local):
                continue
            term = rest if rest.constant is not None else self.number(rest).expr
            for atom in local:
                term = term * self._atom(atom)
            total = total + term
        self._done[value] = total
        return total

    def _atom(self, atom: Atom) -> Expr:
        if isinstance(atom, Symbol):
            return self.locals[atom]
        assert isinstance(atom, Binary)
        left, right = self.index(atom.left), self.index(atom.right)
        match type(atom).__name__:
            case "Floordiv":
                return left // right
            case "Modulo":
                return left % right
            case "Minimum":
                return minimum(left, right)
            case _:
                return maximum(left, right)
