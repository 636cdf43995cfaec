"""States as relations what torch found out about the numbers of a call when it checked them: others might raise."""

from __future__ import annotations

import math

import torch

from framefuse.capture.facts.numbers import floating, integer
from framefuse.capture.facts.relations import Relations
from framefuse.ir.nested import numbers_in
from framefuse.ir.numbers import Expr, Real, constant_real, expr
from framefuse.ir.torch_calls.checked_numbers import BOUNDS, CONVERTING, FACTORS, Argument, checked_as, largest
from framefuse.ir.trace import Call

ALL_INTS = 2**63 - 1  # no run-time int is larger


def state_checks(relations: Relations, call: Call, dtype: torch.dtype | None) -> list[tuple[float, float, float]]:
    """What later numbers of a recorded call must have in common with these; ``dtype`` is the type of the elements that
    it made or wrote. Gives the numbers that are known only while the trace runs, each behind the least and the largest
    that it may be.
    """
    found: list[tuple[float, float, float]] = []
    name = checked_as(call.name)
    for bound in BOUNDS.get(name, ()):
        left, right = _side(call, bound.left), _side(call, bound.right)
        if left is not None and right is not None and not left.op == right.op == "const":
            _state(relations, bound.op, left, right)
    if dtype is not None and (name in CONVERTING or name in FACTORS):
        for given in numbers_in(_converted(call, name)):
            number = Real("int", (given,)) if name == "pad" and isinstance(given, Expr) else given  # as pad has it
            if number.symbols.isdisjoint(relations.data_symbols):
                _fits(relations, number, dtype)
            elif number.symbols & relations.data_symbols <= relations.element_symbols:
                found += _unknown(relations, number, dtype)
    return found


def _converted(call: Call, name: str) -> tuple[object, ...]:
    """The arguments whose numbers become elements."""
    if name in FACTORS:
        return (call.kwargs.get("alpha"),)
    sizes = CONVERTING[name]
    if sizes is None:
        return (*call.args, *call.kwargs.values())
    place, key = sizes
    return (*call.args[:place], *call.args[place + 1 :], *(call.kwargs[other] for other in call.kwargs if other != key))


def _side(call: Call, side: Argument | float) -> Real | None:
    """A side of a bound as a float; None where it is no number."""
    if not isinstance(side, Argument):
        return constant_real(side)
    given = call.args[side.place] if side.place < len(call.args) else call.kwargs.get(side.name, side.default)
    if isinstance(given, Expr):
        return Real("int", (given,))
    if isinstance(given, (int, float)):
        return constant_real(float(given))
    return given if isinstance(given, Real) else None


def _fits(relations: Relations, number: Expr | Real, dtype: torch.dtype) -> None:
    """States that the element is one of the type, as this one is."""
    if isinstance(number, Expr):
        _int_fits(relations, number, dtype)
        return
    size, limits = Real("abs", (number,)), largest(dtype)
    if limits and not dtype.is_signed:
        _state(relations, "<=", constant_real(0.0), number)  # of ints alone torch takes negative ones
    value = size.evaluate(relations.hints, relations.real_hints)
    within = [limit for limit in limits if value <= limit]
    if within and not (dtype.is_floating_point or dtype.is_complex):
        _state(relations, "<=", size, constant_real(within[0]))
    elif within or (limits and not math.isfinite(value) and (dtype.is_floating_point or dtype.is_complex)):
        # Infinity and what is no number are elements too: these make it no number, which nothing is below.
        finite = Real("add", (size, Real("sub", (size, size))))
        _state(relations, "<", constant_real(within[0] if within else limits[0]), finite)
    elif limits:
        _state(relations, "==", size, constant_real(value))  # what signed types have beyond the largest


def _int_fits(relations: Relations, number: Expr, dtype: torch.dtype) -> None:
    """As :func:`_fits` by relations of ints, which exported programs check as well."""
    limits = [int(limit) for limit in largest(dtype)]
    value = number.evaluate(relations.hints)
    within = [limit for limit in limits if abs(value) <= limit]
    if within and within[0] < ALL_INTS:
        relations.relate("<=", expr(-within[0]), number)
        relations.relate("<=", number, expr(within[0]))
    elif limits and not within:
        relations.relate("==", number, expr(value))


def _unknown(relations: Relations, number: Expr | Real, dtype: torch.dtype) -> list[tuple[float, float, float]]:
    """A number made of elements that were read, behind the least and the largest that the type takes; nothing where
    each is taken.
    """
    value: float
    if isinstance(number, Expr):
        value = number.evaluate(relations.hints)
        given: float = integer(value, number, relations)
    else:
        value = number.evaluate(relations.hints, relations.real_hints)
        given = floating(value, number, relations)
    within = [limit for limit in largest(dtype) if abs(value) <= limit or not math.isfinite(value)]
    if not within or (isinstance(number, Expr) and within[0] >= ALL_INTS):
        return []
    read = [symbol for symbol in number.symbols if number in (symbol.expr, Real("bits", (symbol.expr,)))]
    types = [relations.element_types[symbol] for symbol in read if symbol in relations.element_types]
    if any(kept is dtype or (largest(kept) and largest(kept)[0] <= within[0] and dtype.is_signed) for kept in types):
        return []
    most = within[0] if dtype.is_floating_point or dtype.is_complex else int(within[0])
    return [(0 if isinstance(number, Real) and not dtype.is_signed else -most, most, given)]


def _state(relations: Relations, op: str, left: Real, right: Real) -> None:
    """States whether a comparison of two floats came out true."""
    if not (left.symbols | right.symbols).isdisjoint(relations.data_symbols):
        return
    sides = [side.evaluate(relations.hints, relations.real_hints) for side in (left, right)]
    holds = {"<": sides[0] < sides[1], "<=": sides[0] <= sides[1], "==": sides[0] == sides[1]}[op]
    relations.relate_real(op, left, right, holds)
