"""Turns sizes and scalars known only at run time into interned expressions with one normal form."""

from __future__ import annotations

import ctypes
import math
import operator
import struct
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import field
from functools import lru_cache
from typing import Any, ClassVar

from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.source import Line


class Expr:
    """An integer expression in normal form: a sum of integer multiples of products of atoms.

    Atoms are :class:`Symbol`, :class:`Floordiv`, :class:`Modulo`, :class:`Minimum` and :class:`Maximum`. Expressions
    are interned, so equal expressions are the same object and ``is`` or ``==`` compare them. Operators accept plain
    ints. Division and modulo are Python's (floor). Build with ``expr(5)``, ``Symbol("s0")`` and arithmetic, never with
    the constructor.
    """

    __slots__ = ("terms", "constant", "symbols", "__weakref__")
    terms: tuple[tuple[tuple[Atom, ...], int], ...]
    constant: int | None  # the value if this is a constant
    symbols: frozenset[Symbol]  # every symbol that occurs, also inside atoms
    _table: ClassVar[dict[tuple[tuple[tuple[Atom, ...], int], ...], Expr]] = {}

    def __new__(cls, terms: tuple[tuple[tuple[Atom, ...], int], ...]) -> Expr:
        interned = Expr._table.get(terms)
        if interned is None:
            new = object.__new__(Expr)
            new.terms = terms
            new.symbols = frozenset().union(*(atom.symbols for atoms, _ in terms for atom in atoms))
            new.constant = None if len(terms) > 1 or (terms and terms[0][0]) else sum(factor for _, factor in terms)
            interned = Expr._table.setdefault(terms, new)
        return interned

    def __reduce__(self) -> tuple[object, ...]:
        return (Expr, (self.terms,))

    __hash__ = object.__hash__  # equal expressions are the same object

    def __eq__(self, other: object) -> bool:
        if isinstance(other, int):
            return self is expr(other)
        return self is other

    def coefficient(self, symbol: Symbol) -> Expr | None:
        """The factor of ``symbol`` if this expression is affine in it, else None."""
        kept: dict[tuple[Atom, ...], int] = {}
        if symbol not in self.symbols:
            return _constant(0)
        for atoms, factor in self.terms:
            count = atoms.count(symbol)
            if count > 1:
                return None
            for atom in atoms:
                if type(atom) is not Symbol and symbol in atom.symbols:
                    return None
            if count:
                kept[tuple([atom for atom in atoms if atom is not symbol])] = factor
        return _from_terms(kept)

    def without(self, symbol: Symbol) -> Expr:
        """This expression less the terms that hold ``symbol`` as a factor."""
        return _from_terms({atoms: factor for atoms, factor in self.terms if symbol not in atoms})

    def taken_off(self) -> Expr:
        """What the terms with negative factors take off the rest."""
        return _from_terms({atoms: -factor for atoms, factor in self.terms if atoms and factor < 0})

    def substitute(self, values: Mapping[Symbol, Expr | int]) -> Expr:
        """This expression with symbols replaced."""
        if not self.symbols & values.keys():
            return self
        total = expr(0)
        for atoms, factor in self.terms:
            product = expr(factor)
            for atom in atoms:
                product = product * atom.replaced(values)
            total = total + product
        return total

    def evaluate(self, values: Mapping[Symbol, int]) -> int:
        """The integer value; raises KeyError when a symbol has none."""
        total = 0
        for atoms, factor in self.terms:
            for atom in atoms:
                factor *= atom.value(values)
            total += factor
        return total

    def __add__(self, other: Expr | int) -> Expr:
        if type(other) is Expr:  # by far the most common
            return _sum(self, other)
        return _sum(self, expr(other)) if isinstance(other, int) else NotImplemented

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return self * -1

    def __sub__(self, other: Expr | int) -> Expr:
        if not isinstance(other, (Expr, int)):
            return NotImplemented
        return self + expr(other) * -1

    def __rsub__(self, other: Expr | int) -> Expr:
        return expr(other) - self

    def __mul__(self, other: Expr | int) -> Expr:
        if type(other) is Expr:
            return _multiply(self, other)
        return _multiply(self, expr(other)) if isinstance(other, int) else NotImplemented

    __rmul__ = __mul__

    def __floordiv__(self, other: Expr | int) -> Expr:
        return _floordiv(self, expr(other))

    def __rfloordiv__(self, other: int) -> Expr:
        return _floordiv(expr(other), self)

    def __mod__(self, other: Expr | int) -> Expr:
        return _modulo(self, expr(other))

    def __rmod__(self, other: int) -> Expr:
        return _modulo(expr(other), self)

    def __str__(self) -> str:
        return _text(self)

    def __repr__(self) -> str:
        return _text(self)


class Atom:
    """A factor that cannot be taken apart: a symbol or a division, modulo, minimum or maximum of expressions."""

    __slots__ = ()
    symbols: frozenset[Symbol]

    def replaced(self, values: Mapping[Symbol, Expr | int]) -> Expr:
        raise NotImplementedError

    def value(self, values: Mapping[Symbol, int]) -> int:
        raise NotImplementedError


class Symbol(Atom):
    """An integer known at run time; equal names are the same symbol. ``symbol.expr`` takes part in arithmetic.

    Names that begin with m are numbers that were recorded below 0. All others are sizes, strides, and numbers that are
    at least 0 wherever one is a size or an index: a relation of the trace says so.
    """

    __slots__ = ("name", "symbols", "expr", "__weakref__")
    _table: ClassVar[dict[str, Symbol]] = {}
    name: str
    expr: Expr  # this symbol as an expression

    def __new__(cls, name: str) -> Symbol:
        interned = Symbol._table.get(name)
        if interned is None:
            new = object.__new__(Symbol)
            new.name = name
            new.symbols = frozenset((new,))
            new.expr = Expr((((new,), 1),))
            interned = Symbol._table.setdefault(name, new)
        return interned

    def __reduce__(self) -> tuple[object, ...]:
        return (Symbol, (self.name,))

    @property
    def signed(self) -> bool:
        """Whether nothing may be assumed of the sign."""
        return self.name.startswith("m")

    def replaced(self, values: Mapping[Symbol, Expr | int]) -> Expr:
        return expr(values[self]) if self in values else self.expr

    def value(self, values: Mapping[Symbol, int]) -> int:
        return values[self]

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


@dataclass(frozen=True, slots=True, eq=True)
class Binary(Atom):
    """An atom of two expressions; the subclass says which function."""

    left: Expr
    right: Expr

    @property
    def symbols(self) -> frozenset[Symbol]:  # type: ignore[override]
        return self.left.symbols | self.right.symbols

    def replaced(self, values: Mapping[Symbol, Expr | int]) -> Expr:
        return BUILD[type(self)](self.left.substitute(values), self.right.substitute(values))

    def value(self, values: Mapping[Symbol, int]) -> int:
        return VALUE[type(self)](self.left.evaluate(values), self.right.evaluate(values))


class Floordiv(Binary):
    """``left // right``."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"({self.left} // ({self.right}))" if len(self.right.terms) > 1 else f"(({self.left}) // {self.right})"


class Modulo(Binary):
    """``left % right``."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"(({self.left}) % ({self.right}))"


class Minimum(Binary):
    """``min(left, right)``."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"min({self.left}, {self.right})"


class Maximum(Binary):
    """``max(left, right)``."""

    __slots__ = ()

    def __str__(self) -> str:
        return f"max({self.left}, {self.right})"


def expr(value: Expr | Symbol | int) -> Expr:
    """An int, symbol or expression as an :class:`Expr`."""
    if type(value) is Expr:
        return value
    return value.expr if isinstance(value, Symbol) else _constant(int(value))  # type: ignore[arg-type]


def minimum(left: Expr | int, right: Expr | int) -> Expr:
    """``min`` of two expressions, folded where both are constants or equal."""
    return _extreme(Minimum, min, expr(left), expr(right))


def maximum(left: Expr | int, right: Expr | int) -> Expr:
    """``max`` of two expressions, folded where both are constants or equal."""
    return _extreme(Maximum, max, expr(left), expr(right))


def product(values: Iterable[Expr | int]) -> Expr:
    """The product, 1 for nothing."""
    total = expr(1)
    for value in values:
        total = total * value
    return total


def cancelled(values: tuple[Expr, ...], symbols: AbstractSet[Symbol]) -> tuple[Expr, ...]:
    """The values without those of ``symbols`` that each term of all of them is a multiple of."""
    for symbol in symbols & values[0].symbols:
        while all(value.terms and all(symbol in atoms for atoms, _ in value.terms) for value in values):
            values = tuple(value // symbol.expr for value in values)
    return values


def ceildiv(left: Expr | int, right: Expr | int) -> Expr:
    """``left / right`` rounded up."""
    return (expr(left) + expr(right) - 1) // expr(right)


@lru_cache(maxsize=65536)
def _constant(number: int) -> Expr:
    return Expr((((), number),)) if number else Expr(())


@lru_cache(maxsize=65536)
def _sum(left: Expr, right: Expr) -> Expr:
    if not left.terms:
        return right
    kept = dict(left.terms)
    for atoms, factor in right.terms:
        kept[atoms] = kept.get(atoms, 0) + factor
    return _from_terms(kept)


@lru_cache(maxsize=65536)
def _multiply(left: Expr, right: Expr) -> Expr:
    kept: dict[tuple[Atom, ...], int] = {}
    for first, a in left.terms:
        for second, b in right.terms:
            atoms = tuple(sorted(first + second, key=_order)) if first and second else first or second
            kept[atoms] = kept.get(atoms, 0) + a * b
    return _from_terms(kept)


@lru_cache(maxsize=65536)
def _order(atom: Atom) -> tuple[str, str]:
    return (type(atom).__name__ if not isinstance(atom, Symbol) else "", str(atom))


def _from_terms(kept: dict[tuple[Atom, ...], int]) -> Expr:
    nonzero = [(atoms, factor) for atoms, factor in kept.items() if factor]
    if len(nonzero) > 1:
        nonzero.sort(key=lambda term: tuple(_order(atom) for atom in term[0]))
    return Expr(tuple(nonzero))


def _split(left: Expr, divisor: Expr) -> tuple[Expr, Expr]:
    """``left == divisor * whole + rest`` with as many terms as possible in ``whole``."""
    whole: dict[tuple[Atom, ...], int] = {}
    rest: dict[tuple[Atom, ...], int] = {}
    if len(divisor.terms) != 1:
        return (expr(1), expr(0)) if left is divisor else (expr(0), left)
    atoms, factor = divisor.terms[0]
    for term, count in left.terms:
        remaining = list(term)
        for atom in atoms:
            if atom in remaining:
                remaining.remove(atom)
            else:
                break
        else:
            if count % factor == 0:
                whole[tuple(remaining)] = count // factor
                continue
        rest[term] = count
    return _from_terms(whole), _from_terms(rest)


def _floordiv(left: Expr, right: Expr) -> Expr:
    if right.constant == 0:
        raise ZeroDivisionError("division of a size by zero")
    if right.constant == 1 or left.constant == 0:
        return left
    if left.constant is not None and right.constant is not None:
        return expr(left.constant // right.constant)
    whole, rest = _split(left, right)
    if rest.constant == 0:
        return whole
    if rest.constant is not None and right.constant is not None:
        return whole + rest.constant // right.constant
    rest, right = _reduced(rest, right)
    return whole + (rest if right.constant == 1 else Expr((((Floordiv(rest, right),), 1),)))


def _reduced(left: Expr, right: Expr) -> tuple[Expr, Expr]:
    """A quotient's sides without the factors that both have."""
    if len(right.terms) != 1:
        return left, right
    atoms, number = right.terms[0]
    count = math.gcd(number, *(factor for _, factor in left.terms)) * (-1 if number < 0 else 1)
    shared = [atom for atom in atoms if all(atom in term for term, _ in left.terms)]
    shared = [atom for place, atom in enumerate(shared) if atom not in shared[:place]]
    common = Expr(((tuple(shared), count),))
    return (left, right) if common.constant == 1 else (_split(left, common)[0], _split(right, common)[0])


def _modulo(left: Expr, right: Expr) -> Expr:
    if right.constant == 0:
        raise ZeroDivisionError("remainder of a size by zero")
    if right.constant == 1 or left.constant == 0:
        return expr(0)
    if left.constant is not None and right.constant is not None:
        return expr(left.constant % right.constant)
    _, rest = _split(left, right)
    if rest.constant is not None and (right.constant is not None or rest.constant == 0):
        return expr(rest.constant % right.constant) if right.constant is not None else expr(0)
    return Expr((((Modulo(rest, right),), 1),))


def _extreme(kind: type[Binary], fold: Callable[[int, int], int], left: Expr, right: Expr) -> Expr:
    if left is right:
        return left
    if left.constant is not None and right.constant is not None:
        return expr(fold(left.constant, right.constant))
    if str(right) < str(left):
        left, right = right, left
    return Expr((((kind(left, right),), 1),))


BUILD: dict[type, Callable[[Expr, Expr], Expr]] = {
    Floordiv: _floordiv, Modulo: _modulo, Minimum: minimum, Maximum: maximum,
}  # fmt: skip
VALUE: dict[type, Callable[[int, int], int]] = {
    Floordiv: lambda a, b: a // b, Modulo: lambda a, b: a % b, Minimum: min, Maximum: max,
}  # fmt: skip


def _text(value: Expr) -> str:
    parts = []
    for atoms, factor in value.terms:
        names = [str(atom) for atom in atoms]
        if factor == -1 and names:
            parts.append("-" + "*".join(names))
        elif factor != 1 or not names:
            parts.append("*".join([str(factor), *names]))
        else:
            parts.append("*".join(names))
    return " + ".join(parts).replace("+ -", "- ") or "0"


@dataclass(frozen=True, slots=True)
class Real:
    """A float known only at run time: an operation over reals, integer expressions and Python floats (IEEE double
    arithmetic).

    ``op`` is ``"symbol"`` (``args == (name,)``), ``"int"`` (``args == (Expr,)``, converted exactly as Python's
    float()), ``"bits"`` (``args == (Expr,)``, the double whose 64 bits are that int), ``"const"`` (``args ==
    (float,)``), or one of REAL_OPS over Reals.
    """

    op: str
    args: tuple[Any, ...]
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.op, self.args)))

    def __hash__(self) -> int:  # once, since it would walk all that it is made of
        return self._hash

    def evaluate(self, ints: Mapping[Symbol, int], reals: Mapping[str, float]) -> float:
        """The double value; raises what Python's own arithmetic raises (ZeroDivisionError, OverflowError)."""
        if self.op == "symbol":
            return reals[self.args[0]]
        if self.op == "const":
            return float(self.args[0])
        if self.op == "int":
            return float(self.args[0].evaluate(ints))
        if self.op == "bits":
            return float_of_bits(self.args[0].evaluate(ints))
        values = [arg.evaluate(ints, reals) for arg in self.args]
        return REAL_OPS[self.op](*values)

    @property
    def symbols(self) -> frozenset[Symbol]:
        """The integer symbols inside."""
        if self.op in ("int", "bits"):
            return frozenset(self.args[0].symbols)
        if self.op in ("symbol", "const"):
            return frozenset()
        return frozenset().union(*(arg.symbols for arg in self.args))

    @property
    def names(self) -> frozenset[Symbol | str]:
        """The integer symbols and the names of floats inside."""
        if self.op == "symbol":
            return frozenset(self.args)
        if self.op in ("const", "int", "bits"):
            return frozenset(self.symbols)
        return frozenset().union(*(arg.names for arg in self.args))

    def substitute(self, values: Mapping[Symbol, Expr]) -> Real:
        """This real with integer symbols replaced."""
        if self.op in ("symbol", "const") or not self.symbols & values.keys():
            return self
        return Real(self.op, tuple(arg.substitute(values) for arg in self.args))

    def __str__(self) -> str:
        if self.op in ("symbol", "const", "int"):
            return str(self.args[0])
        return f"{self.op}({', '.join(map(str, self.args))})"


@dataclass(frozen=True, slots=True)
class Whole:
    """An int that is no sum of products: ``op`` is one of WHOLE_OPS, ``args`` are Exprs, or one Real that is rounded. A
    trace gives it a symbol of its own; so it does with an expression that grew large (``same``).
    """

    op: str
    args: tuple[Expr | Real, ...]
    line: Line | None = field(default=None, compare=False, repr=False)  # where the program computes it

    @property
    def names(self) -> frozenset[Symbol | str]:
        """The integer symbols and the names of floats inside."""
        return frozenset().union(*(arg.names if isinstance(arg, Real) else arg.symbols for arg in self.args))

    @property
    def symbols(self) -> frozenset[Symbol]:
        """The integer symbols inside."""
        return frozenset().union(*(arg.symbols for arg in self.args))

    def evaluate(self, ints: Mapping[Symbol, int], reals: Mapping[str, float]) -> int:
        """The value; raises what Python's own arithmetic raises, KeyError where a symbol has no value."""
        values = [arg.evaluate(ints, reals) if isinstance(arg, Real) else arg.evaluate(ints) for arg in self.args]
        return WHOLE_OPS[self.op](*values)

    def substitute(self, values: Mapping[Symbol, Expr]) -> Whole:
        """This number with integer symbols replaced."""
        return Whole(self.op, tuple(arg.substitute(values) for arg in self.args), self.line)

    def __str__(self) -> str:
        return f"{self.op}({', '.join(map(str, self.args))})"


NESTED = 16  # operations in one expression that a trace records: what grows deeper gets a symbol of its own
WIDE = 64  # terms of a sum, likewise


@lru_cache(maxsize=65536)
def depth(value: Expr) -> int:
    """How many divisions, moduli, minima and maxima lie in each other."""
    nested = [atom for atoms, _ in value.terms for atom in atoms if isinstance(atom, Binary)]
    return max((1 + max(depth(atom.left), depth(atom.right)) for atom in nested), default=0)


def is_large(value: Expr | Real) -> bool:
    """Whether an expression has grown so far that a symbol should stand for it."""
    if isinstance(value, Expr):
        return len(value.terms) > WIDE or depth(value) > NESTED
    count, waiting = 0, [value]
    while waiting and count <= NESTED:
        part = waiting.pop()
        if part.op in ("int", "bits"):
            count += 1 + NESTED * is_large(part.args[0])
        elif part.op not in ("symbol", "const"):
            count += 1
            waiting += part.args
    return count > NESTED


def as_float32(value: float) -> float:
    """A float rounded to single precision."""
    return ctypes.c_float(value).value


def float_of_bits(bits: int) -> float:
    """The double with these 64 bits, as a signed int."""
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


def bits_of_float(value: float) -> int:
    """The 64 bits of a double as a signed int."""
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def constant_real(value: float) -> Real:
    """A known float; the zeros differ, as their texts do."""
    return Real("const", (value, "-") if value == 0 and math.copysign(1.0, value) < 0 else (value,))


REAL_OPS: dict[str, Callable[..., float]] = {
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mul": lambda a, b: a * b,
    "div": lambda a, b: a / b,
    "neg": lambda a: -a,
    "abs": abs,
    "min": min,
    "max": max,
    "pow": lambda a, b: a**b,
    "sqrt": math.sqrt,
    "floor": math.floor,
    "float32": as_float32,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "fmod": math.fmod,
    "atan2": math.atan2,
    "copysign": math.copysign,
}
# Functions of one real, which are those of the C library.
C_FUNCTIONS = (
    "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "exp", "expm1", "log", "log1p", "log2", "log10",
)  # fmt: skip
REAL_OPS |= {name: getattr(math, name) for name in C_FUNCTIONS}
# Those that raise for no numbers.
TOTAL_OPS = frozenset("symbol int bits const add sub mul neg abs min max float32 atan2 copysign atan tanh".split())
ROUNDINGS: dict[str, Callable[[float], int]] = {
    "trunc": math.trunc, "floor": math.floor, "ceil": math.ceil, "round": round,
}  # fmt: skip
WHOLE_OPS: dict[str, Callable[..., int]] = ROUNDINGS | {
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "lshift": operator.lshift,
    "rshift": operator.rshift, "power": operator.pow, "same": int,
}  # fmt: skip
