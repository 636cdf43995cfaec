"""Says what torch's functions do with the parts of complex numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch

from framefuse.ir import costs
from framefuse.ir.builder import ONE, ZERO
from framefuse.ir.graph import Node
from framefuse.ir.numbers import expr
from framefuse.ir.values import Value
from framefuse.lower import (
    binary,
    casts,
    creation,
    cuts,
    einsum,
    indexing,
    logic,
    pointwise,
    products,
    reductions,
    views,
)
from framefuse.lower import element as e
from framefuse.lower.complex_numbers import RULES, Complex, ComplexRule, Context, for_complex
from framefuse.lower.context import Lowering
from framefuse.lower.element import Element
from framefuse.lower.rules import Rule, Shapes, Unsupported, rule

# ---- what moves elements ---------------------------------------------------------------------------------------------


def _part(value: Value, place: int) -> Value:
    if isinstance(value, Complex):
        return (value.real, value.imag)[place]
    kind = type(value)
    return kind(_part(part, place) for part in value) if kind in (tuple, list) else value


def _by_parts(real_rule: Rule) -> ComplexRule:
    """The real rule on the real parts and on the imaginary parts of the first operand."""

    def run(c: Context, *args: Value, **kwargs: Value) -> Value:
        if any(isinstance(value, Complex) for value in (*args[1:], *kwargs.values())) or not args:
            raise Unsupported("a second complex operand")
        real, imag = (real_rule(c.lo, *(_part(value, place) for value in args), **kwargs) for place in (0, 1))
        if isinstance(real, tuple) and isinstance(imag, tuple):
            return tuple(Complex(*each) for each in zip(real, imag, strict=True))
        if not isinstance(real, Node) or not isinstance(imag, Node):
            raise Unsupported("a call of the library")
        return Complex(real, imag, args[0].node if isinstance(args[0], Complex) else None)

    return run


MOVING: tuple[Rule, ...] = (
    views.reshape, views.flatten, views.ravel, views.unflatten, views.squeeze, views.unsqueeze, views.permute,
    views.transpose, views.matrix_transpose, views.reverse_axes, views.movedim, views.expand, views.expand_as,
    cuts.narrow, cuts.select, cuts.split, cuts.chunk, cuts.unbind, cuts.tensor_split, views.flip, views.roll,
    indexing.getitem, indexing.index_select, casts.same, pointwise.neg, pointwise.positive, views.repeat,
)  # fmt: skip
RULES.update({function: _by_parts(function) for function in MOVING})


def _joining(real_rule: Rule) -> ComplexRule:
    def run(c: Context, tensors: Sequence[Value], *args: Value, **kwargs: Value) -> Complex:
        pairs = [c.of(tensor) for tensor in tensors]
        real, imag = [pair.real for pair in pairs], [pair.imag for pair in pairs]
        return Complex(real_rule(c.lo, real, *args, **kwargs), real_rule(c.lo, imag, *args, **kwargs))

    return run


JOINING: tuple[Rule, ...] = (views.cat, views.stack, views.hstack, views.vstack)
RULES.update({function: _joining(function) for function in JOINING})


@for_complex(logic.where_)
def _where(c: Context, condition: Node, input: Value, other: Value) -> Complex:
    a, b = c.of(input), c.of(other)
    chosen = (logic.select_where(c.lo, condition, x, y, c.kind) for x, y in ((a.real, b.real), (a.imag, b.imag)))
    return Complex(*chosen)


# ---- conversions and constants ---------------------------------------------------------------------------------------


@for_complex(casts.to)
def _to(c: Context, input: Value, *args: Value, **kwargs: Value) -> Value:
    named = (*args, *(value for value in kwargs.values() if value is not None))
    wanted = [value for value in named if not isinstance(value, bool) and not _is_cpu(value)]
    if any(not isinstance(value, torch.dtype) for value in wanted) or "memory_format" in kwargs or "copy" in kwargs:
        raise Unsupported("a device")
    if any(not dtype.is_complex for dtype in wanted):
        raise Unsupported("the imaginary part is dropped with a warning")
    return c.of(input)


def _is_cpu(value: Value) -> bool:
    """Whether this names the device on which complex numbers are computed by their parts."""
    return isinstance(value, (str, torch.device)) and torch.device(value).type == "cpu"


@for_complex(creation.as_tensor)
def _as_tensor(c: Context, data: Value, dtype: Value = None, device: Value = None) -> Value:
    if not isinstance(data, Node) and (not isinstance(data, Complex) or data.node is None):
        raise Unsupported("data that is no tensor")
    return _to(c, data, dtype=dtype, device=device)


@rule("Tensor.cfloat", "Tensor.cdouble")
def _to_complex(lo: Lowering, input: Node) -> Node:
    raise Unsupported("complex numbers have rules of their own")


@for_complex(_to_complex)
def _converted(c: Context, input: Value) -> Complex:
    return c.of(input)


def _constant(real_rule: Rule) -> ComplexRule:
    """Real constants, with zeros beside them."""

    def run(c: Context, *args: Value, **options: Value) -> Complex:
        args = tuple(value.real if isinstance(value, Complex) and value.node is not None else value for value in args)
        if any(isinstance(value, Complex) for value in (*args, *options.values())):
            raise Unsupported("a complex constant")
        real = real_rule(c.lo, *args, **{**options, "dtype": c.kind.torch})
        assert isinstance(real, Node)
        return Complex(real, c.lo.full(0, c.kind, real.shape, real.device))

    return run


CONSTANTS: tuple[Rule, ...] = (
    creation.zeros, creation.ones, creation.full, creation.eye, creation.zeros_like, creation.ones_like,
    creation.full_like, creation.new_zeros, creation.new_ones, creation.new_full,
)  # fmt: skip
RULES.update({function: _constant(function) for function in CONSTANTS})


# ---- parts -----------------------------------------------------------------------------------------------------------


@for_complex(pointwise.real)
def _real(c: Context, input: Complex) -> Value:
    return input.real


@rule("Tensor.imag", "torch.imag")
def imag(lo: Lowering, input: Node) -> Node:
    raise Unsupported("a real tensor has no imaginary part")


@for_complex(imag)
def _imag(c: Context, input: Complex) -> Value:
    return input.imag


@for_complex(pointwise.conj)
def _conj(c: Context, input: Value) -> Complex:
    a = c.of(input)
    return Complex(a.real, c.compute(lambda y: -y, a.imag))


@for_complex(views.adjoint)
def _adjoint(c: Context, input: Value) -> Complex:
    a = _conj(c, input)
    return Complex(views.matrix_transpose(c.lo, a.real), views.matrix_transpose(c.lo, a.imag))


@rule("complex")
def make(lo: Lowering, real: Node, imag: Node) -> Shapes:
    return Shapes((lo.broadcast(real.shape, imag.shape),))


@for_complex(make)
def _make(c: Context, real: Node, imag: Node) -> Complex:
    shape = c.lo.broadcast(real.shape, imag.shape)
    return Complex(c.lo.expand(real, shape), c.lo.expand(imag, shape))


@rule("polar")
def polar(lo: Lowering, abs: Node, angle: Node) -> Node:
    raise Unsupported("complex numbers have rules of their own")


@for_complex(polar)
def _polar(c: Context, abs: Node, angle: Node) -> Complex:
    # eager takes the slope along the radius from the sign of the result: none at 0
    abs = c.lo.derived(abs, "straight", (c.compute(e.unary("abs"), abs),))
    x = c.compute(lambda r, a: r * e.unary("cos")(a), abs, angle)
    return Complex(x, c.compute(lambda r, a: r * e.unary("sin")(a), abs, angle))


@for_complex(pointwise.absolute)
def _absolute(c: Context, input: Complex) -> Node:
    if not c.lo.differentiable:
        return c.compute(e.binary("hypot"), input.real, input.imag)
    return c.compute(_distance, input.real, input.imag)


def _distance(x: Element, y: Element) -> Element:
    """The distance from zero, without a slope at zero."""
    zero = e.binary("eq")(x, 0.0) & e.binary("eq")(y, 0.0)
    return e.where(zero, 0.0, e.binary("hypot")(e.where(zero, 1.0, x), y))


@rule("angle")
def angle(lo: Lowering, input: Node) -> Node:
    raise Unsupported("a real tensor")


@for_complex(angle)
def _angle(c: Context, input: Complex) -> Node:
    return c.compute(e.binary("atan2"), input.imag, input.real)


@rule("view_as_real")
def as_reals(lo: Lowering, input: Node) -> Shapes:
    return Shapes(((*input.shape, expr(2)),))


@for_complex(as_reals)
def _as_reals(c: Context, input: Complex) -> Node:
    lo, shape = c.lo, (*input.real.shape, ONE)
    return lo.cat([lo.reshape(input.real, shape), lo.reshape(input.imag, shape)], len(shape) - 1)


@rule("view_as_complex")
def as_complex(lo: Lowering, input: Node) -> Shapes:
    return Shapes((input.shape[:-1],))


@for_complex(as_complex)
def _as_complex(c: Context, input: Node) -> Complex:
    shape, zeros = input.shape[:-1], [ZERO] * (len(input.shape) - 1)
    steps = [1] * len(input.shape)
    parts = (c.lo.slice(input, (*zeros, place), steps, (*shape, ONE)) for place in (ZERO, ONE))
    return Complex(*(c.lo.reshape(part, shape) for part in parts))


# ---- arithmetic ------------------------------------------------------------------------------------------------------


def _times(c: Context, a: Complex, b: Complex) -> Complex:
    operands = a.real, a.imag, b.real, b.imag
    real = c.compute(lambda x, y, u, v: x * u - y * v, *operands)
    return Complex(real, c.compute(lambda x, y, u, v: x * v + y * u, *operands))


def _plus(c: Context, a: Complex, b: Complex) -> Complex:
    real = c.compute(lambda x, u: x + u, a.real, b.real)
    return Complex(real, c.compute(lambda y, v: y + v, a.imag, b.imag))


def _once(c: Context, a: Complex) -> Complex:
    """The operand times one, as eager's sums take the second: infinite parts spoil the others."""
    real = c.compute(lambda x, y: x - y * 0.0, a.real, a.imag)
    return Complex(real, c.compute(lambda x, y: x * 0.0 + y, a.real, a.imag))


@for_complex(binary.add)
def _add(c: Context, input: Value, other: Value) -> Complex:
    return _plus(c, c.of(input), _second(c, other))


def _second(c: Context, value: Value) -> Complex:
    found = c.of(value)
    return _once(c, found) if isinstance(found.real, Node) and isinstance(found.imag, Node) else found


@for_complex(binary.sub)
def _sub(c: Context, input: Value, other: Value) -> Complex:
    a, b = c.of(input), _second(c, other)
    real = c.compute(lambda x, u: x - u, a.real, b.real)
    return Complex(real, c.compute(lambda y, v: y - v, a.imag, b.imag))


@for_complex(binary.rsub)
def _rsub(c: Context, input: Value, other: Value) -> Complex:
    return _sub(c, other, input)


@for_complex(binary.mul)
def _mul(c: Context, input: Value, other: Value) -> Complex:
    return _times(c, c.of(input), c.of(other))


@for_complex(pointwise.square)
def _square(c: Context, input: Value) -> Complex:
    return _mul(c, input, input)


@for_complex(binary.power)
def _power(c: Context, input: Value, exponent: Value) -> Complex:
    if isinstance(exponent, (Node, Complex)) or exponent != 2 or isinstance(exponent, bool):
        raise Unsupported("an exponent")
    return _square(c, input)


@for_complex(binary.div)
def _div(c: Context, input: Value, other: Value) -> Complex:
    return _quotient(c, c.of(input), c.of(other))


def _quotient(c: Context, a: Complex, b: Complex) -> Complex:
    """Eager's own steps: the divisor's smaller part over its larger one, so that no square overflows."""

    def steps(x: Element, y: Element, u: Element, v: Element) -> tuple[Element, Element]:
        real_larger = abs(u) >= abs(v)
        larger, smaller = e.where(real_larger, u, v), e.where(real_larger, v, u)
        zero = e.binary("eq")(larger, 0.0) & e.binary("eq")(smaller, 0.0)
        ratio = e.where(zero, 0.0, smaller / e.where(zero, 1.0, larger))
        scale = e.where(zero, math.inf, 1.0 / (larger + smaller * ratio))
        one, other = e.where(real_larger, x, y), e.where(real_larger, y, x)
        imag = (other - e.where(zero, 0.0, one * ratio)) * scale
        return (one + e.where(zero, 0.0, other * ratio)) * scale, e.where(real_larger, imag, -imag)

    operands = a.real, a.imag, b.real, b.imag
    real = c.compute(lambda *parts: steps(*parts)[0], *operands)
    return Complex(real, c.compute(lambda *parts: steps(*parts)[1], *operands))


@for_complex(torch.exp)
def _exp(c: Context, input: Value) -> Complex:
    a = c.of(input)
    return Complex(c.compute(_exp_real, a.real, a.imag), c.compute(_exp_imag, a.real, a.imag))


def _exp_real(x: Element, y: Element) -> Element:
    """Where the exponential is zero or infinite, an angle that is not finite does not matter."""
    endless = e.binary("ne")(y - y, 0.0) & e.binary("eq")(abs(x), math.inf)
    return e.unary("exp")(x) * e.where(endless, 1.0, e.unary("cos")(y))


def _exp_imag(x: Element, y: Element) -> Element:
    """An exponential of a real number that is not finite has no imaginary part."""
    size = e.unary("exp")(x)
    endless = e.binary("ne")(y - y, 0.0) & e.binary("eq")(x, -math.inf)
    none = endless | (e.binary("eq")(y, 0.0) & e.binary("ne")(size - size, 0.0))
    return e.where(none, 0.0, size * e.unary("sin")(y))


# ---- sums and products -----------------------------------------------------------------------------------------------


def _summing(real_rule: Rule) -> ComplexRule:
    def run(c: Context, input: Value, *args: Value, **kwargs: Value) -> Complex:
        if kwargs.get("dtype") is not None:
            raise Unsupported("another dtype")
        a = c.of(input)
        return Complex(real_rule(c.lo, a.real, *args, **kwargs), real_rule(c.lo, a.imag, *args, **kwargs))

    return run


SUMS: tuple[Rule, ...] = (reductions.sum_, reductions.mean)
RULES.update({function: _summing(function) for function in SUMS})


@rule("vdot")
def vdot(lo: Lowering, input: Node, other: Node, *, out: Value = None) -> Value:
    return products.matmul(lo, input, other)


@for_complex(vdot)
def _vdot(c: Context, input: Value, other: Value) -> Complex:
    return _dot(c, _conj(c, input), c.of(other))


def _dot(c: Context, a: Complex, b: Complex) -> Complex:
    if len(a.real.shape) != 1:
        raise Unsupported("ranks")
    c.lo.same_size(a.real.shape[0], b.real.shape[0], products.INNER)
    product = _times(c, a, b)
    return Complex(reductions.sum_(c.lo, product.real), reductions.sum_(c.lo, product.imag))


# The letters of the dimensions of products, by the ranks of their operands.
WORDS = {
    (2, 2): ("ab", "bc", "ac"), (2, 1): ("ab", "b", "a"), (1, 2): ("a", "ab", "b"), (3, 3): ("zab", "zbc", "zac"),
}  # fmt: skip


@for_complex(products.plain_product, products.matmul)
def _matmul(c: Context, input: Value, other: Value) -> Complex:
    a, b = c.of(input), c.of(other)
    ranks = len(a.real.shape), len(b.real.shape)
    if ranks == (1, 1):
        return _dot(c, a, b)
    if ranks not in WORDS:
        raise Unsupported("ranks")
    return _contracted(c, a, b, *WORDS[ranks])


@for_complex(products.kron)
def _kron(c: Context, input: Value, other: Value) -> Complex:
    a, b = c.of(input), c.of(other)
    one, two, sizes = products.crossed(c.lo, a.real, b.real)
    first, second, _ = products.crossed(c.lo, a.imag, b.imag)
    product = _times(c, Complex(one, first), Complex(two, second))
    return Complex(c.lo.reshape(product.real, sizes), c.lo.reshape(product.imag, sizes))


@for_complex(einsum.einsum)
def _einsum(c: Context, equation: Value, *operands: Value) -> Complex:
    given = operands[0] if len(operands) == 1 and isinstance(operands[0], (tuple, list)) else operands
    text = equation.replace(" ", "")
    inputs, arrow, result = text.partition("->")
    words = inputs.split(",")
    if not arrow or "." in text or len(words) != 2 or len(given) != 2:
        raise Unsupported("equation")
    return _contracted(c, c.of(given[0]), c.of(given[1]), words[0], words[1], result)


@for_complex(einsum.tensordot)
def _tensordot(c: Context, a: Value, b: Value, dims: Value = 2) -> Complex:
    left, right = c.of(a), c.of(b)
    one, other = einsum.dot_words(c.lo, dims, len(left.real.shape), len(right.real.shape))
    result = [letter for letter in (*one, *other) if (letter in one) != (letter in other)]
    return _contracted(c, left, right, one, other, result)


def _contracted(
    c: Context, a: Complex, b: Complex, first: Sequence[str], second: Sequence[str], result: Sequence[str]
) -> Complex:
    """A product over few letters, term by term; each letter names a dimension."""
    lo, known = c.lo, set(first) | set(second)
    if any(len(set(word)) != len(word) for word in (first, second, result)) or set(result) - known:
        raise Unsupported("a letter twice")
    summed = [letter for letter in first if letter in second and letter not in result]
    if known - set(result) - set(summed):
        raise Unsupported("a sum over one operand")
    sizes = dict(zip(first, a.real.shape, strict=True))
    for letter, size in zip(second, b.real.shape, strict=True):
        sizes[letter] = lo.same_size(sizes[letter], size, products.INNER) if letter in sizes else size
    counts = [sizes[letter].constant for letter in summed]
    terms = 1
    for count in counts:
        terms = terms * count if isinstance(count, int) else 0
    if not 0 < terms <= costs.COMPLEX_TERMS:
        raise Unsupported("a product of many terms is the library's")

    def at(part: Node, word: Sequence[str], place: dict[str, int]) -> Node:
        """The elements of one term, laid along the dimensions of the result."""
        for letter, index in place.items():
            part = lo.narrow(part, word.index(letter), index, ONE)
        axes = [word.index(letter) for letter in (*(x for x in result if x in word), *summed)]
        return lo.reshape(lo.permute(part, axes), tuple(sizes[x] if x in word else ONE for x in result))

    total: Complex | None = None
    for indices in itertools.product(*(range(count) for count in counts)):
        place = dict(zip(summed, indices, strict=True))
        left, right = (
            Complex(at(x.real, word, place), at(x.imag, word, place)) for x, word in ((a, first), (b, second))
        )
        term = _times(c, left, right)
        total = term if total is None else _plus(c, total, term)
    assert total is not None
    shape = tuple(sizes[letter] for letter in result)
    return Complex(lo.expand(total.real, shape), lo.expand(total.imag, shape))


# ---- writes ----------------------------------------------------------------------------------------------------------


@for_complex(indexing.setitem)
def _setitem(c: Context, input: Complex, index: Value, value: Value) -> Complex:
    new = c.of(value)
    real = indexing.setitem(c.lo, input.real, index, new.real)
    return Complex(real, indexing.setitem(c.lo, input.imag, index, new.imag))


@for_complex(casts.copy_, casts.fill)
def _copied(c: Context, input: Complex, other: Value, *args: Value) -> Complex:
    new = c.of(other)
    shape, device = input.real.shape, input.real.device
    fit = (x if isinstance(x, Node) else c.lo.full(x, c.kind, shape, device) for x in (new.real, new.imag))
    return Complex(*(c.lo.expand(part, shape) for part in fit))
