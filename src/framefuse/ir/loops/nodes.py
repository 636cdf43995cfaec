"""The loop nest: what one kernel does, as nested loops over named axes that load, compute, accumulate and store.

A kernel is independent of where its operands come from: buffers and numbers are parameters, so equal kernels are
compiled once. Index expressions are :class:`Expr` over axis symbols, number symbols and the symbols of integer ``Let``
values (indirect access).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from framefuse.ir.dtypes import DType
from framefuse.ir.numbers import Expr, Symbol

DIVISIONS = frozenset(("floordiv", "remainder", "fmod"))  # of integers: a zero divisor is an error

# ---- values: pure expressions over the iteration point


@dataclass(frozen=True, slots=True)
class Load:
    """The element of ``buffer`` at element index ``index``. Where ``mask`` (a bool Value) is given and false nothing
    is read and the value is zero.
    """

    buffer: str
    index: Expr
    dtype: DType
    mask: Value | None = None


@dataclass(frozen=True, slots=True)
class Const:
    """A constant of ``dtype`` (bool, int or float; NaN and infinities included)."""

    value: bool | int | float
    dtype: DType


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number parameter as a value, converted to ``dtype`` from int64 or double."""

    symbol: Symbol
    dtype: DType
    real: bool = False


@dataclass(frozen=True, slots=True)
class Index:
    """An index expression as an integer value of ``dtype`` (int64 or int32): iota, positions, tests against sizes."""

    index: Expr
    dtype: DType


@dataclass(frozen=True, slots=True)
class Apply:
    """A pointwise primitive (a row of :mod:`framefuse.ir.ops`) on values; ``dtype`` is the result's. For ``cast`` it
    is the target dtype.

    Arithmetic on 16-bit floats is done in float32 by explicit casts that the fuse stage inserts; Apply never has
    float16 or bfloat16 operands except for ``cast``, ``where`` and comparisons.
    """

    op: str
    args: tuple[Value, ...]
    dtype: DType

    @property
    def may_fail(self) -> bool:
        """Whether the kernel reports a fault of its operands: a zero that integers are divided by."""
        return self.op in DIVISIONS and self.dtype.is_integral


@dataclass(frozen=True, slots=True)
class Local:
    """The value of an earlier ``Let`` or, after its loop, of an ``Accumulator``, by name."""

    name: str
    dtype: DType


Value = Load | Const | Scalar | Index | Apply | Local


# ---- statements


@dataclass(frozen=True, slots=True)
class Let:
    """Names a value at this point of the nest; an int64 Let may be used in index expressions as ``Symbol(name)``."""

    name: str
    value: Value


@dataclass(frozen=True, slots=True)
class Accumulator:
    """Starts a reduction: ``op`` one of sum prod max min argmax argmin any all squares logaddexp (``max``/``min``
    propagate NaN; ``argmax``/``argmin``: first index wins, NaN wins; ``squares``: the squared distances from the mean,
    summed, and ``logaddexp``: the logarithm of the sum of exponentials, both of which emitters of tiles know).

    Declared outside the loop that feeds it and read as ``Local(name)`` after that loop. Declared inside a vector loop
    it is one accumulator per lane. ``dtype`` is the accumulation dtype (argmax: int64 result, ``dtype`` of the
    compared values in ``of``).

    What a ``running`` one has come to is read inside its loop as well, behind the term of the point: a scan.
    """

    name: str
    op: str
    dtype: DType
    of: DType | None = None
    running: bool = False


@dataclass(frozen=True, slots=True)
class Accumulate:
    """Adds ``value`` to the accumulator; for argmax/argmin ``index`` is the int64 position of the value."""

    name: str
    value: Value
    index: Expr | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """Writes ``value`` to element ``index`` of ``buffer``."""

    buffer: str
    index: Expr
    value: Value


@dataclass(frozen=True, slots=True)
class AtomicAdd:
    """Adds ``value`` to element ``index`` of ``buffer``, where ``mask`` (a bool Value) is not given or true; several
    points of the loops around it may add to one element, in any order. Nothing else in the kernel touches the buffer.
    """

    buffer: str
    index: Expr
    value: Value
    mask: Value | None = None


@dataclass(frozen=True, slots=True)
class Scratch:
    """A private row of ``size`` elements that lives until the end of the enclosing statement list; loads and stores
    use its name as a buffer.
    """

    name: str
    dtype: DType
    size: Expr


@dataclass(frozen=True, slots=True)
class Check:
    """If ``ok`` (a bool Value) is false anywhere the kernel returns non-zero after it finished; a load must be safe
    nevertheless (its mask or a clamped index).
    """

    ok: Value


class LoopKind(Enum):
    """How the turns of a loop run: a ``parallel`` loop is the outermost one, the kernel's begin..end range; a
    ``vector`` loop runs several turns at once. ``word`` is what the printed nest says.
    """

    SERIAL = "range", False, False
    VECTOR = "vector", False, True
    PARALLEL = "parallel", True, False
    PARALLEL_VECTOR = "parallel_vector", True, True

    def __init__(self, word: str, parallel: bool, vector: bool) -> None:
        self.word, self.parallel, self.vector = word, parallel, vector


@dataclass(frozen=True, slots=True)
class Loop:
    """``for axis in range(extent): body``, in the way that ``kind`` says.

    A vector loop runs its body for W neighbouring values of the axis at once; loops inside it must be serial, but that
    on a GPU two vector loops, one directly in the other, are a tile, and any loop may hold vector loops. The
    iterations of parallel and vector
    loops are independent but for accumulators declared outside a vector loop, and for what is added atomically. Chunks:
    a serial loop of a symbolic number of blocks around a vector loop gives two-level sums.
    """

    axis: Symbol
    extent: Expr
    body: tuple[Statement, ...]
    kind: LoopKind = LoopKind.SERIAL


Statement = Let | Accumulator | Accumulate | Store | AtomicAdd | Scratch | Check | Loop


@dataclass(frozen=True, slots=True)
class Product:
    """Says of a kernel that it is a matrix product: its body is a parallel loop over the axis ``row``, in it, behind
    what it names, a vector loop over ``column``, and in that the accumulator ``total``, a serial loop over ``inner``
    that adds products of an element at (row, inner) and one at (inner, column), and what is done with the total.
    """

    row: Symbol
    column: Symbol
    inner: Symbol
    total: str
