"""Finds out whether 32 bits hold every position that a kernel computes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from framefuse.codegen.triton.estimates import estimate
from framefuse.codegen.triton.indices import is_never_negative, never_negative
from framefuse.ir.dtypes import INT32, INT64
from framefuse.ir.loops import Apply, Const, Index, Kernel, Let, Local, Loop, Scalar, Value
from framefuse.ir.loops.walk import positions, statements
from framefuse.ir.numbers import Atom, Expr, Floordiv, Maximum, Minimum, Modulo, Symbol, expr, maximum

# The last block of a loop reaches beyond its end: what the lanes there compute may wrap, since nothing is read or
# written by them, but not their places, which tell that they are there.
BEYOND = 2**20
LIMIT = 2**31 - BEYOND
NARROW = (INT32, INT64)


@dataclass(frozen=True, slots=True)
class Width:
    """The type of positions, ``tl.int32`` or ``tl.int64``; narrow ones are right while each of ``limits``, expressions
    over the kernel's numbers, is at least 0 and below :data:`LIMIT`. ``numbers`` are those that positions depend on,
    ``clamped`` the values below one of the limits, which stand in positions as narrow numbers.
    """

    integer: str
    limits: tuple[Expr, ...] = ()
    numbers: frozenset[Symbol] = frozenset()
    clamped: frozenset[str] = frozenset()


def width(kernel: Kernel, hints: Mapping[Symbol, int], guarded: bool) -> Width:
    """Narrow where sizes are known to be small enough, or (``guarded``) where a launch checks that they are: sizes that
    outgrow them are recorded anew, which is rare. Group norm of 112 x 64 x 512 x 512 by narrow ones takes 0.57 of the
    time (H200).
    """
    below = frozenset(n.symbol for n in kernel.numbers if not n.real and hints.get(n.symbol, 0) < 0)
    for exact in (False, True):
        made: dict[frozenset[Symbol], tuple[Width, bool]] = kernel.known.setdefault(f"widths {exact}", {})
        if below not in made:
            made[below] = _narrow(kernel, below, exact)
        narrow, holds = made[below]
        if holds and (guarded or not narrow.limits) and all(0 <= estimate(n, hints) < LIMIT for n in narrow.limits):
            return narrow
    return Width("tl.int64", (), narrow.numbers)


def _narrow(kernel: Kernel, below: frozenset[Symbol], exact: bool) -> tuple[Width, bool]:
    """The narrow width of a kernel whose numbers ``below`` 0 are these, and whether what is constant allows it. Where
    positions come near the limit (a sum over the middle of 128 x 4096 x 4095) they are bounded by the last of each
    loop, ``exact``: this has more to it than its length, and most kernels do not need it.
    """
    bounds = _Bounds(kernel, below, exact)
    limits = list(dict.fromkeys(bounds.all()))
    limits += [bounds.size(n.symbol) for n in kernel.numbers if not n.real and n.symbol in bounds.used]
    known = [limit.constant for limit in limits if limit.constant is not None]
    open_ = tuple(limit for limit in limits if limit.constant is None)
    narrow = Width("tl.int32", open_, frozenset(bounds.used), frozenset(bounds.clamped))
    return narrow, all(0 <= value < LIMIT for value in known)


def _most(value: Value, lets: Mapping[str, Value]) -> Expr | None:
    """What an integer is at most that is the smaller of another and this, as a position clamped to a side is. Where it
    is a position it is at least 0.
    """
    value = _uncast(value, lets)
    if not isinstance(value, Apply) or value.op != "minimum":
        return None
    for part in (_uncast(arg, lets) for arg in value.args):
        if isinstance(part, Scalar) and not part.real:
            return part.symbol.expr
        if isinstance(part, Index):
            return part.index
        if isinstance(part, Const):
            return expr(int(part.value))
    return None


def _uncast(value: Value, lets: Mapping[str, Value]) -> Value:
    """An integer before it was widened, or was given a name."""
    while True:
        if isinstance(value, Local) and value.name in lets:
            value = lets[value.name]
        elif isinstance(value, Apply) and value.op == "cast" and value.dtype is INT64 and value.args[0].dtype in NARROW:
            value = value.args[0]
        else:
            return value


class _Bounds:
    """Upper bounds of the sizes of expressions of a kernel over its numbers, which are taken to have the signs that
    they were recorded with: where padding begins lies before a tensor. ``parts`` are those of what divisions and
    extremes are made from. They are by the lengths of loops, or ``exact``, by what comes last in them.
    """

    def __init__(self, kernel: Kernel, below: frozenset[Symbol], exact: bool) -> None:
        self.kernel, self.below, self.exact = kernel, below, exact
        self.positive = never_negative(kernel) - below if exact else set()
        self.lengths: dict[Expr, None] = {}
        self.numbers = {number.symbol for number in kernel.numbers if not number.real}
        self.used: set[Symbol] = set()
        self.known: dict[Symbol, Expr] = {}
        self.parts: list[Expr] = []
        self.clamped: set[str] = set()
        lets: dict[str, Value] = {}
        for statement in statements(kernel.body):
            if isinstance(statement, Loop):
                bound = self.bound(statement.extent)
                self.lengths[bound] = None
                bound = bound - 1 if exact else bound
                self.known[statement.axis] = maximum(self.known.get(statement.axis, bound), bound)
            elif isinstance(statement, Let) and isinstance(statement.value, Index):
                self.known[Symbol(statement.name)] = self.bound(statement.value.index)
            elif isinstance(statement, Let):
                lets[statement.name] = statement.value
                most = _most(statement.value, lets) if statement.value.dtype is INT64 else None
                if most is not None:
                    self.known[Symbol(statement.name)] = self.bound(most)
                    self.clamped.add(statement.name)

    def all(self) -> Iterator[Expr]:
        for index in dict.fromkeys(positions(self.kernel.body)):
            bound = self.bound(index)
            yield maximum(bound - BEYOND, 0) if self.exact else bound
        for part in self.parts:
            yield maximum(part, 0) if self.exact else part
        yield from self.lengths if self.exact else ()

    def size(self, number: Symbol) -> Expr:
        """A number without its sign."""
        return -number.expr if number in self.below else number.expr

    def bound(self, value: Expr) -> Expr:
        """Of the sum of the sizes of all terms, so that no partial sum is greater either."""
        total = expr(0)
        for atoms, factor in value.terms:
            term = expr(abs(factor))
            for atom in atoms:
                term = term * self._atom(atom)
            total = total + term
        return total

    def _atom(self, atom: Atom) -> Expr:
        if isinstance(atom, Symbol):
            if atom in self.numbers:
                self.used.add(atom)
                return self.size(atom)
            # Positions that were loaded are 64 bits wide, and so is what is computed from them.
            return self.known.get(atom, expr(0))
        assert isinstance(atom, (Floordiv, Modulo, Minimum, Maximum))
        left, right = self.bound(atom.left), self.bound(atom.right)
        self.parts += (left, right)
        match atom:
            case Floordiv(_, divisor) if divisor.constant or divisor.symbols <= self.numbers:
                return left // maximum(divisor, 1) + (0 if self._counts(atom) else 1)
            case Modulo():
                return right - 1 if self._counts(atom) else right
            case Minimum():
                return left if left.constant is not None else right
            case Maximum():
                return maximum(left, right)
        return left

    def _counts(self, atom: Floordiv | Modulo) -> bool:
        """Whether what is divided, and by what, are known to be at least 0, where it matters."""
        return self.exact and all(is_never_negative(part, self.positive) for part in (atom.left, atom.right))
