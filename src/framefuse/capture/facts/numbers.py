"""Turns ints and floats that may differ at the next call into subclasses that carry an expression through arithmetic.

An operation that needs the plain value (a comparison, a hash, a text, an index) reports to the owner what it took from
it, so that native code which receives such a number by Python's protocols is covered as well.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from functools import reduce
from typing import SupportsIndex

from framefuse.capture.facts.owner import Owner
from framefuse.capture.facts.texts import Text, bare_text, text
from framefuse.ir.numbers import TOTAL_OPS, Expr, Real, Whole, constant_real, expr, is_large, maximum, minimum
from framefuse.ir.trace import Build
from framefuse.ir.values import Function, Value


class Integer(int):
    """An int known by an expression over the trace's symbols; behaves as its value. An id or hash ``names`` an object:
    as a key it stands for that.
    """

    expr: Expr
    owner: Owner
    names: Value

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return int

    def plain(self) -> int:
        """The value, with the fact that the expression equals it."""
        value = int.__index__(self)
        if self.owner.alive:
            self.owner.pinned(self.expr.symbols)
            self.owner.relate("==", self.expr, expr(value))
        return value

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type, tuple[int]]:
        return (int, (self.plain(),))

    def __hash__(self) -> int:
        return hash(bare(key_of(self)))

    def __repr__(self) -> str:
        return repr(self.plain())

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self.plain(), spec)

    def __float__(self) -> float:
        return float(self.plain())

    def __int__(self) -> int:
        return self.plain()

    __index__ = __int__

    def __bool__(self) -> bool:
        return self != 0

    def __pos__(self) -> int:
        return self

    __trunc__ = __floor__ = __ceil__ = __pos__

    def __round__(self, digits: SupportsIndex | None = None) -> int:
        return self if digits is None else round(self.plain(), digits)

    def __neg__(self) -> int:
        return integer(-int.__index__(self), -self.expr, self.owner)

    def __abs__(self) -> int:
        return self if self >= 0 else -self

    def __divmod__(self, other: Value) -> Value:
        return (self // other, self % other)

    def __rdivmod__(self, other: Value) -> Value:
        return (other // self, other % self)

    def __truediv__(self, other: Value) -> Value:
        return _real_operation("div", operator.truediv, self, other, self.owner)

    def __rtruediv__(self, other: Value) -> Value:
        return _real_operation("div", operator.truediv, other, self, self.owner)

    def __pow__(self, other: Value, modulus: Value = None) -> Value:
        if modulus is None and type(other) is int and 0 <= other <= 4:
            total: Value = 1
            for _ in range(other):
                total = self * total
            return total
        return _power(self, other, modulus, self.owner)

    def __rpow__(self, other: Value, modulus: Value = None) -> Value:
        return _power(other, self, modulus, self.owner)

    def __invert__(self) -> int:
        return -self - 1


class Float(float):
    """A float known by an expression over run-time numbers; behaves as its value."""

    real: Real  # type: ignore[assignment]
    owner: Owner

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        return float

    def plain(self) -> float:
        """The value, with the fact that it is this one."""
        if self.owner.alive:
            self.owner.pinned(self.__dict__["real"].names)
            self.owner.pin_real(self.__dict__["real"])
        return _bare_float(self)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[type, tuple[float]]:
        return (float, (self.plain(),))

    def __hash__(self) -> int:
        return hash(self.plain())

    def __repr__(self) -> str:
        return repr(self.plain())

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(self.plain(), spec)

    def __float__(self) -> float:
        return self.plain()

    def __int__(self) -> int:
        return int(self.plain())

    __trunc__ = __int__

    def __bool__(self) -> bool:
        return self != 0.0

    def __pos__(self) -> float:
        return self

    def __divmod__(self, other: Value) -> Value:
        return (self // other, self % other)

    def __rdivmod__(self, other: Value) -> Value:
        return (other // self, other % self)

    def __round__(self, digits: SupportsIndex | None = None) -> Value:
        if digits is not None:
            return round(self.plain(), digits)
        return rounded("round", round, self)

    def __floor__(self) -> int:
        return rounded("floor", math.floor, self)

    def __ceil__(self) -> int:
        return rounded("ceil", math.ceil, self)

    def __neg__(self) -> float:
        return _real_unary("neg", operator.neg, self)

    def __abs__(self) -> float:
        return _real_unary("abs", abs, self)


def _power(base: Value, exponent: Value, modulus: Value, owner: Owner) -> Value:
    """``base ** exponent``, of which one is a run-time int."""
    if type(base) not in NUMBERS or type(exponent) not in NUMBERS:
        return NotImplemented
    if modulus is not None:
        return pow(plain_number(base), plain_number(exponent), plain_number(modulus))
    if type(base) in REALS or type(exponent) in REALS:
        return _real_operation("pow", operator.pow, base, exponent, owner)
    if bare(exponent) < 0 and owner.alive:  # a float
        if type(exponent) is Integer:
            owner.relate("<", exponent.expr, expr(0))
        return _real_operation("pow", operator.pow, base, exponent, owner)
    if abs(bare(base)) > 1 and bare(exponent) > 63:  # more than the numbers hold
        return pow(plain_number(base), plain_number(exponent))
    return _whole_operation("power", operator.pow, base, exponent, owner)


# The run-time values that look like plain ones.
TRACKED = (Integer, Float, Text)
STANDS_FOR: dict[type, type] = {Integer: int, Float: float, Text: str}
Integer.__name__, Float.__name__, Text.__name__ = "int", "float", "str"  # CPython's error messages name the type


def plain_kind(kind: type) -> type:
    """The class that a run-time value stands for."""
    return STANDS_FOR.get(kind, kind)


def integer(value: int, form: Expr, owner: Owner) -> int:
    """``value`` carrying ``form``; a plain int when the form is a constant or nobody records."""
    if not owner.alive or form.constant is not None:
        return value
    if is_large(form):
        symbol = owner.derive(Whole("same", (form,)), value)
        if symbol is None:
            owner.relate("==", form, expr(value))
            return value
        form = symbol.expr
    tracked = Integer(value)
    tracked.expr = form
    tracked.owner = owner
    return tracked


def floating(value: float, form: Real, owner: Owner) -> float:
    """``value`` carrying ``form``; a plain float when nobody records."""
    if not owner.alive:
        return value
    if form.op not in TOTAL_OPS:
        owner.note_fallible(form)
    tracked = Float(value)
    tracked.__dict__["real"] = owner.short(form)
    tracked.owner = owner
    return tracked


def plain_number(value: Value) -> Value:
    """The plain int or float of a tracked number, with the fact that it is this one; anything else as it is."""
    return value.plain() if type(value) in TRACKED else value


def names_object(value: Integer) -> bool:
    """Whether a number is the id or hash of an object."""
    return "names" in value.__dict__


def key_of(value: Value) -> Value:
    """A tracked number as a key: it is held to its value, or tells apart the object that it names."""
    if type(value) is Integer and names_object(value):
        value.owner.places.tell_apart(value.names)
        return value
    return plain_number(value)


def bare(value: Value) -> Value:
    """The plain int or float of a tracked number without any fact, for the copy that goes to torch or to the user's
    objects.
    """
    kind = type(value)
    if kind is Integer:
        return int.__index__(value)
    if kind is Text:
        return bare_text(value)
    return _bare_float(value) if kind is Float else value


def is_nan(value: Value) -> bool:
    """Whether a value is a float, tracked or not, that is no number; the program hears of no comparison."""
    return type(value) in REALS and not float.__eq__(value, value)


def _bare_float(value: Float) -> float:
    """The plain float; the same object each time where it is a NaN, which containers find by that alone."""
    if not is_nan(value):
        return float.__add__(value, -0.0)
    if "origin" not in value.__dict__:
        value.__dict__["origin"] = (float.__add__(value, -0.0), None)
    found: float = value.__dict__["origin"][0]
    return found


def form_of(value: Value) -> Value:
    """The expression of a tracked number, else the value."""
    kind = type(value)
    if kind is Integer:
        return value.expr
    if kind is Text:
        return value.recipe
    return value.__dict__["real"] if kind is Float else value


def made_of(kind: str, value: str, parts: tuple[Value, ...], how: object = None) -> str:
    """A string that is made of run-time values, by a Build of that kind."""
    tracked = tuple([part for part in parts if type(part) in TRACKED])
    return text(value, Build(kind, how, tuple([form_of(part) for part in parts])), tracked, tracked[0].owner)


def as_real(value: Value) -> Real:
    """A number of any kind as a Real."""
    kind = type(value)
    if kind is Float:
        form: Real = value.__dict__["real"]
        return form
    if kind is Integer:
        return Real("int", (value.expr,))
    return constant_real(float(value))


def computed(function: Function, *parts: Value) -> Value:
    """``function`` of the plain values; an error that it raises is one of these very values."""
    try:
        return function(*map(bare, parts))
    except Exception:
        for part in parts:
            plain_number(part)
        raise


def _real_operation(name: str, function: Function, left: Value, right: Value, owner: Owner) -> Value:
    if type(left) not in NUMBERS or type(right) not in NUMBERS:
        return NotImplemented
    value = computed(function, left, right)
    if not owner.alive:
        return value
    if type(value) is not float:  # complex, as only these values make it
        return function(plain_number(left), plain_number(right))
    if name in DIVISIONS and type(right) is Integer:
        # The division raises at run time where the divisor is zero: that size is another trace's.
        owner.relate("!=", right.expr, expr(0))
    return floating(value, Real(name, (as_real(left), as_real(right))), owner)


DIVISIONS = ("div", "floordiv", "mod")


def _real_unary(name: str, function: Function, value: Float) -> float:
    return floating(function(bare(value)), Real(name, (as_real(value),)), value.owner)


NUMBERS = frozenset((int, float, bool, Integer, Float))
REALS = frozenset((float, Float))


def _integer_operation(name: str, real: str, function: Function, reflected: bool) -> Function:
    def operate(self: Integer, other: Value) -> Value:
        kind = type(other)
        left, right = (other, self) if reflected else (self, other)
        if kind is int or kind is bool or kind is Integer:
            value = computed(function, left, right)
            if not self.owner.alive:
                return value
            if name in DIVISIONS and type(right) is Integer:
                self.owner.relate("!=", right.expr, expr(0))
            form = function(_form(left), _form(right))
            if not all(map(_fits, (bare(other), value, *[factor for _, factor in form.terms]))):
                return function(plain_number(left), plain_number(right))
            return integer(value, form, self.owner)
        if kind is float or kind is Float:
            return _real_operation(real, function, left, right, self.owner)
        return NotImplemented

    return operate


def _fits(value: int) -> bool:
    """Whether the machine's numbers hold it."""
    return -(2**63) <= value < 2**63


def _form(value: Value) -> Expr:
    return value.expr if type(value) is Integer else expr(value)


def _integer_bits(name: str, function: Function, reflected: bool) -> Function:
    def operate(self: Integer, other: Value) -> Value:
        if type(other) not in NUMBERS:
            return NotImplemented
        left, right = (other, self) if reflected else (self, other)
        return _whole_operation(name, function, left, right, self.owner)

    return operate


def _whole_operation(name: str, function: Function, left: Value, right: Value, owner: Owner) -> Value:
    """An operation on ints whose value is a symbol of its own; of anything else, and where the machine's numbers do not
    hold it, of the plain values.
    """
    value = computed(function, left, right)
    if type(value) is not int or not all(type(part) in (int, Integer) and _fits(bare(part)) for part in (left, right)):
        return function(plain_number(left), plain_number(right))
    return whole(name, value, (_form(left), _form(right)), (left, right), owner)


def whole(op: str, value: int, forms: tuple[Expr | Real, ...], parts: tuple[Value, ...], owner: Owner) -> int:
    """``value``, which ``op`` makes of ``parts``, as a run-time int; the plain one, with what makes it so, where it
    cannot be a run-time number.
    """
    symbol = owner.derive(Whole(op, forms), value) if _fits(value) and owner.alive else None
    if symbol is not None:
        return integer(value, symbol.expr, owner)
    for part in parts:
        plain_number(part)
    return value


# Comparison -> relation when it held, relation when it did not: (op, swap operands).
COMPARISONS: dict[str, tuple[tuple[str, bool], tuple[str, bool]]] = {
    "eq": (("==", False), ("!=", False)),
    "ne": (("!=", False), ("==", False)),
    "lt": (("<", False), ("<=", True)),
    "le": (("<=", False), ("<", True)),
    "gt": (("<", True), ("<=", False)),
    "ge": (("<=", True), ("<", False)),
}


def _integer_comparison(name: str, function: Callable[..., bool]) -> Function:
    held, failed = COMPARISONS[name]

    def compare(self: Integer, other: Value) -> Value:
        kind = type(other)
        if kind is int or kind is bool or kind is Integer:
            outcome = function(int.__index__(self), bare(other))
            if not _fits(bare(other)):
                return function(self.plain(), other)
            if self.owner.alive:
                op, swap = held if outcome else failed
                left, right = self.expr, _form(other)
                self.owner.relate(op, *((right, left) if swap else (left, right)))
            return outcome
        if kind is float or kind is Float:
            return _mixed_comparison(held, function, self, other, self.owner)
        return NotImplemented

    return compare


EXACT = 2**53  # ints up to here are floats without rounding


def _mixed_comparison(
    row: tuple[str, bool], function: Callable[..., bool], left: Value, right: Value, owner: Owner
) -> bool:
    """A comparison of numbers of which one is a float: of floats, as long as the ints are floats without rounding."""
    outcome = function(bare(left), bare(right))
    if not owner.alive:
        return outcome
    for part in (left, right):
        if type(part) is not Float and type(part) is not float and abs(bare(part)) > EXACT:
            return function(plain_number(left), plain_number(right))
    for part in (left, right):
        if type(part) is Integer:
            owner.relate("<=", part.expr, expr(EXACT))
            owner.relate("<=", expr(-EXACT), part.expr)
    op, swap = row
    forms = as_real(left), as_real(right)
    owner.relate_real(op, *(forms[::-1] if swap else forms), outcome)
    return outcome


def _float_comparison(name: str, function: Callable[..., bool]) -> Function:
    def compare(self: Float, other: Value) -> Value:
        if type(other) not in NUMBERS:
            return NotImplemented
        return _mixed_comparison(COMPARISONS[name][0], function, self, other, self.owner)

    return compare


def _float_operation(name: str, function: Function, reflected: bool) -> Function:
    def operate(self: Float, other: Value) -> Value:
        left, right = (other, self) if reflected else (self, other)
        return _real_operation(name, function, left, right, self.owner)

    return operate


def _install() -> None:
    rows = [
        ("add", "add", operator.add), ("sub", "sub", operator.sub), ("mul", "mul", operator.mul),
        ("floordiv", "floordiv", operator.floordiv), ("mod", "mod", operator.mod),
    ]  # fmt: skip
    for name, real, function in rows:
        for prefix, reflected in (("", False), ("r", True)):
            setattr(Integer, f"__{prefix}{name}__", _integer_operation(name, real, function, reflected))
            setattr(Float, f"__{prefix}{name}__", _float_operation(real, function, reflected))
    for prefix, reflected in (("", False), ("r", True)):
        setattr(Float, f"__{prefix}truediv__", _float_operation("div", operator.truediv, reflected))
        setattr(Float, f"__{prefix}pow__", _float_operation("pow", operator.pow, reflected))
        for name in ("and_", "or_", "xor", "lshift", "rshift"):
            operation = _integer_bits(name.rstrip("_"), getattr(operator, name), reflected)
            setattr(Integer, f"__{prefix}{name.rstrip('_')}__", operation)
    for name in COMPARISONS:
        setattr(Integer, f"__{name}__", _integer_comparison(name, getattr(operator, name)))
        setattr(Float, f"__{name}__", _float_comparison(name, getattr(operator, name)))


_install()


def applied(function: Function, left: Value, right: Value, reflected: str) -> Value:
    """``function(left, right)``, a binary operation or comparison whose method of ``right`` is ``reflected``.

    The C code of bools, floats and complex numbers takes an int of any class on the right by its value, and asks its
    class first only where that is one of their own subclasses: a tracked number is asked here.
    """
    kind = type(left)
    if type(right) is Integer:
        if kind is bool:
            return function(int(left), right)
        if kind is float:
            method = getattr(right, reflected, None)
            value = NotImplemented if method is None else method(left)
            return function(left, right.plain()) if value is NotImplemented else value
    if kind is complex and type(right) in (Integer, Float):
        right = right.plain()
    return function(left, right)


def rounded(op: str, function: Callable[[float], int], value: Float) -> int:
    """A run-time float as an int; ``function`` is that of Python."""
    return whole(op, computed(function, value), (as_real(value),), (value,), value.owner)


def extreme(name: str, values: tuple[Value, ...]) -> Value:
    """``min`` or ``max`` of ints, or of floats, of which some are tracked, as one expression; NotImplemented for
    anything else: which of an int and a float it is decides its class.
    """
    owner = next((value.owner for value in values if type(value) in TRACKED), None)
    kinds = {type(value) for value in values}
    choose = min if name == "min" else max
    if owner is not None and kinds <= REALS:
        real = reduce(lambda best, value: Real(name, (best, value)), map(as_real, values))
        chosen = choose(bare(value) for value in values)
        number = floating(chosen, real, owner)
        if is_nan(chosen) and type(number) is Float:  # it is one of them, the very object
            number.__dict__["origin"] = (chosen, None)
        return number
    if owner is None or not kinds <= {int, Integer}:
        return NotImplemented
    form = reduce(minimum if name == "min" else maximum, map(_form, values))
    return integer(choose(bare(value) for value in values), form, owner)
