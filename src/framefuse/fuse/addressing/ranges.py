"""Turns index expressions over axes of known extents into facts: bounds, signs, density and splits into radices."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from framefuse.ir.numbers import Atom, Binary, Expr, Floordiv, Modulo, Symbol, expr

ZERO, ONE = expr(0), expr(1)


def nonnegative(value: Expr, positive: frozenset[Symbol] = frozenset()) -> bool:
    """Whether ``value >= 0`` by its form, when sizes are at least 0 and symbols of ``positive`` at least 1."""
    if any(symbol.signed for symbol in value.symbols):
        return value.constant is not None and value.constant >= 0
    if all(factor >= 0 for _, factor in value.terms):
        return True
    shifted = {symbol: symbol.expr + 1 for symbol in value.symbols & positive}
    return bool(shifted) and all(factor >= 0 for _, factor in value.substitute(shifted).terms)


def extreme(value: Expr, extents: Mapping[Symbol, Expr], top: bool) -> Expr | None:
    """The largest (``top``) or smallest value over all axes in range; None when ``value`` is not affine in them or a
    slope has no known sign.
    """
    for symbol in value.symbols:
        if symbol not in extents:
            if symbol.name.startswith("@"):
                return None
            continue
        slope = value.coefficient(symbol)
        if slope is None:
            return None
        rises = nonnegative(slope)
        if not rises and not nonnegative(-slope):
            return None
        rest = value.without(symbol)
        value = rest + slope * (extents[symbol] - 1) if rises == top else rest
    return value


def positive_symbols(extents: Iterable[Expr]) -> frozenset[Symbol]:
    """Symbols that are at least 1 wherever the loops of these extents run: the factors of products."""
    return frozenset(
        atom for extent in extents if len(extent.terms) == 1 for atom in extent.terms[0][0] if isinstance(atom, Symbol)
    )


def never_negative(value: Expr, extents: Mapping[Symbol, Expr]) -> bool:
    """Whether ``value >= 0`` at every iteration point."""
    if value.constant is not None:
        return value.constant >= 0
    low = extreme(value, extents, top=False)
    return low is not None and nonnegative(low, positive_symbols(extents.values()))


def divide(value: Expr, divisor: Expr) -> tuple[Expr, Expr]:
    """``value == divisor * whole + rest`` with every term that the divisor divides in ``whole``."""
    if len(divisor.terms) != 1:
        return (ONE, ZERO) if value is divisor else (ZERO, value)
    atoms, factor = divisor.terms[0]
    whole, rest = ZERO, ZERO
    for term, count in value.terms:
        left = _remove(term, atoms) if count % factor == 0 else None
        if left is None:
            rest = rest + Expr(((term, count),))
        else:
            whole = whole + Expr(((left, count // factor),))
    return whole, rest


def exact_quotient(value: Expr, divisor: Expr) -> Expr | None:
    """``value / divisor`` where every term of ``value`` is a multiple of ``divisor``, else None."""
    whole, rest = divide(value, divisor)
    return whole if rest.constant == 0 else None


def _remove(term: tuple[Atom, ...], atoms: tuple[Atom, ...]) -> tuple[Atom, ...] | None:
    left = list(term)
    for atom in atoms:
        if atom not in left:
            return None
        left.remove(atom)
    return tuple(left)


def dense_axes(address: Expr, count: Expr, extents: Mapping[Symbol, Expr]) -> tuple[Symbol, ...] | None:
    """The axes of ``address``, fastest first, if it takes each value of ``range(count)`` exactly once over them."""
    slopes: dict[Symbol, Expr] = {}
    rest = address
    for symbol in address.symbols:
        if symbol in extents:
            slope = address.coefficient(symbol)
            if slope is None:
                return None
            slopes[symbol] = slope
            rest = rest.without(symbol)
    if rest.constant != 0:
        return None
    order: list[Symbol] = []
    step = ONE
    while slopes:
        fastest = next((symbol for symbol, slope in slopes.items() if slope is step), None)
        if fastest is None:
            return None
        del slopes[fastest]
        order.append(fastest)
        step = step * extents[fastest]
    return tuple(order) if step is count else None


def row_major(sizes: Sequence[Expr]) -> tuple[Expr, ...]:
    """The strides of a dense row-major layout."""
    strides: list[Expr] = []
    step = ONE
    for size in reversed(sizes):
        strides.append(step)
        step = step * size
    return tuple(reversed(strides))


def address(index: Sequence[Expr], strides: Sequence[Expr]) -> Expr:
    """The element offset of a multi-dimensional index."""
    total = ZERO
    for position, stride in zip(index, strides, strict=True):
        if position.terms:
            total = total + position * stride
    return recombined(total)


def recombined(value: Expr) -> Expr:
    """``value`` with the digits of one number taken together: ``x // q * q + x % q`` is ``x``."""
    changed = True
    while changed:
        changed = False
        for atoms, factor in value.terms:
            digit = next((atom for atom in atoms if isinstance(atom, Modulo)), None)
            if digit is None:
                continue
            scale = Expr((_others(atoms, digit, factor),))
            higher = Expr((((Floordiv(digit.left, digit.right),), 1),)) * digit.right * scale
            if all(term in value.terms for term in higher.terms):
                value = value - higher - Expr(((atoms, factor),)) + digit.left * scale
                changed = True
                break
    return value


def _others(atoms: tuple[Atom, ...], one: Atom, factor: int) -> tuple[tuple[Atom, ...], int]:
    left = list(atoms)
    left.remove(one)
    return tuple(left), factor


def divisions(values: Iterable[Expr]) -> set[Atom]:
    """The divisions and remainders that computing the values takes, each once."""
    divided: set[Atom] = set()
    waiting = [atom for value in values for atoms, _ in value.terms for atom in atoms]
    while waiting:
        atom = waiting.pop()
        if isinstance(atom, Binary) and atom not in divided:
            if isinstance(atom, (Floordiv, Modulo)):
                divided.add(atom)
            waiting += [inner for side in (atom.left, atom.right) for atoms, _ in side.terms for inner in atoms]
    return divided
