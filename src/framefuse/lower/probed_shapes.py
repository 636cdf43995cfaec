"""Finds how the sizes of a library call's results follow from its operands' by running it on tensors without data."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import combinations

import torch

from framefuse.ir import costs
from framefuse.ir.builder import Shape
from framefuse.ir.comparisons import Relation
from framefuse.ir.nested import mapped, numbers_in
from framefuse.ir.numbers import Expr, Real, Symbol, expr
from framefuse.ir.trace import Call, Ref, TensorMeta
from framefuse.ir.values import Value
from framefuse.lower.library import of_torch, sized_by_data
from framefuse.lower.rules import OVERLOADS

# What the symbols are multiplied by in a probe, so that quotients without a rest stay so, and in two more what is added
# besides: a call that refuses these needs such quotients, and one that takes them shows whether it rounds.
PROBES = (((2, 3, 5, 7, 11, 13), 0), ((3, 7, 2, 11, 5, 17), 0), ((5, 2, 11, 3, 13, 7), 0),
          ((2, 5, 3, 11, 7, 13), 1), ((3, 2, 7, 5, 13, 11), 5))  # fmt: skip
# Torch imports its compiler at the first use of a form without data, which takes seconds: such forms
# are asked only where the program, or a library that it uses, has imported that.
FORMS = "torch._dynamo"
Sizes = Mapping[Symbol, int]
Equal = Mapping[Symbol, Symbol]  # by symbol that of its class
Probes = dict[Value, tuple[Shape, ...] | None]
ATOMS = frozenset((int, float, bool, str, type(None), torch.dtype, torch.device, torch.layout, torch.memory_format))


def probed(
    call: Call,
    operands: Mapping[int, Shape],
    metas: Sequence[TensorMeta],
    known: Mapping[int, TensorMeta],
    hints: Sizes,
    relations: Iterable[Relation],
    number: Value,
    earlier: Probes,
) -> tuple[Shape, ...] | None:
    """The shapes of what ``call`` gives (``metas``, by order), over the symbols of its ``operands``' shapes; None where
    values decide them, where the call has no form without data, or where no line through a size gives them.

    ``known`` are the operands as recorded, and ``number`` brings a recorded number over the graph's symbols. What calls
    of the graph gave is in ``earlier``, for those of equal layers.
    """
    asked = of_torch(call.target) or _has_form(call.target)
    if FORMS not in sys.modules or call.random or not asked or sized_by_data(call, known):
        return None
    numbers = [number(value) for value in numbers_in((call.args, call.kwargs))]
    seen: dict[Expr, None] = {}
    for size in (*(size for shape in operands.values() for size in shape), *numbers):
        if isinstance(size, Expr) and size.constant is None:
            seen[size] = None
    symbols = sorted({symbol for size in seen for symbol in size.symbols}, key=str)
    if len(symbols) > costs.PROBED_SYMBOLS or any(hints[symbol] == 0 for symbol in symbols):
        return None
    first, *others = _equalities(symbols, hints, relations)
    given = _given((call.args, call.kwargs), operands, known, number)
    key = (call.target, given, tuple(first.items()), tuple(meta.sizes for meta in metas))
    if given is None or key not in earlier:
        earlier[key] = _tried(call, operands, metas, known, hints, number, seen, (first, *others))
    return earlier[key]


def _has_form(target: Value) -> bool:
    """Whether an operator has a form of its own for tensors without data: another's code may have any effect."""
    if isinstance(target, OVERLOADS[1]):
        return all(_has_form(getattr(target, overload)) for overload in target.overloads())
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return isinstance(target, OVERLOADS[0]) and has(target.name(), "Meta")


def _given(value: Value, operands: Mapping[int, Shape], known: Mapping[int, TensorMeta], number: Value) -> Value:
    """What a call without data is given, as a key; None where it has none."""
    kind = type(value)
    if kind is Ref:
        return operands[value.value], known[value.value].dtype
    if kind in ATOMS:
        return kind, value
    if isinstance(value, (Expr, Real)):
        return number(value)
    if kind is dict:
        value = tuple(value.items())
    elif kind is slice:
        value = (value.start, value.stop, value.step)
    elif kind is not tuple and kind is not list:
        return None
    parts = [_given(part, operands, known, number) for part in value]
    return None if None in parts else (kind, *parts)


def _tried(
    call: Call,
    operands: Mapping[int, Shape],
    metas: Sequence[TensorMeta],
    known: Mapping[int, TensorMeta],
    hints: Sizes,
    number: Value,
    seen: Iterable[Expr],
    classes: Iterable[Equal],
) -> tuple[Shape, ...] | None:
    """As :func:`probed`, from runs at several sizes, for one of these ``classes`` of equal symbols."""
    for equal in classes:
        points: list[Sizes] = []
        sizes_at: list[list[tuple[int, ...]]] = []
        for values, required in _points(equal, hints):
            sizes = _run(call, operands, known, values, number)
            if sizes is not None:
                sizes_at.append(sizes)
                points.append(values)
            elif required:
                break
        else:
            return _shapes(sizes_at, seen, points, metas)
        if not points:  # not even the recorded sizes
            return None
    return None


def _shapes(
    sizes_at: Sequence[Sequence[tuple[int, ...]]], seen: Iterable[Expr], points: Sequence[Sizes],
    metas: Sequence[TensorMeta],
) -> tuple[Shape, ...] | None:  # fmt: skip
    """The shapes as expressions, from their ``sizes_at`` the points, if the first are those that eager gave."""
    if list(sizes_at[0]) != [meta.sizes for meta in metas]:
        return None
    shapes = []
    for place, shape in enumerate(sizes_at[0]):
        if any(len(other) != len(sizes_at[0]) or len(other[place]) != len(shape) for other in sizes_at):
            return None
        line = [_line([other[place][axis] for other in sizes_at], seen, points) for axis in range(len(shape))]
        if any(size is None for size in line):
            return None
        shapes.append(tuple(size for size in line if size is not None))
    return tuple(shapes)


def _equalities(symbols: Sequence[Symbol], hints: Sizes, relations: Iterable[Relation]) -> Iterator[Equal]:
    """Which symbols are equal: those that are known to be; then one pair more, since the call may ask for that."""
    first = {symbol: symbol for symbol in symbols}
    for relation in relations:
        pair = [symbol for symbol in symbols if symbol.expr is relation.left or symbol.expr is relation.right]
        if relation.op == "==" and len(pair) == 2:
            first = _joined(first, *pair)
    yield first
    for left, right in combinations(symbols, 2):
        if hints[left] == hints[right] and first[left] is not first[right]:
            yield _joined(first, left, right)


def _joined(first: Equal, left: Symbol, right: Symbol) -> dict[Symbol, Symbol]:
    return {symbol: first[left] if kept is first[right] else kept for symbol, kept in first.items()}


def _points(first: Equal, hints: Sizes) -> Iterator[tuple[Sizes, bool]]:
    """The recorded values of the symbols, then others, each with whether the call must take it."""
    heads = list(dict.fromkeys(first.values()))
    yield {symbol: hints[symbol] for symbol in first}, True
    for factors, more in PROBES:
        values = {
            symbol: hints[symbol] * factors[heads.index(head) % len(factors)] + more for symbol, head in first.items()
        }
        yield values, more == 0


def _run(
    call: Call, operands: Mapping[int, Shape], known: Mapping[int, TensorMeta], values: Sizes, number: Value
) -> list[tuple[int, ...]] | None:
    """The sizes of the tensors that the call gives for these values of the symbols."""

    def given(value: Value) -> Value:
        if isinstance(value, Ref):
            sizes = [size.evaluate(values) for size in operands[value.value]]
            return torch.empty(sizes, dtype=known[value.value].dtype, device="meta")
        if isinstance(value, (Expr, Real)):
            here = number(value)
            return here.evaluate(values) if isinstance(here, Expr) else here
        return torch.device("meta") if isinstance(value, torch.device) else value

    try:
        with torch.no_grad(), torch._C.DisableTorchFunction(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            args, kwargs = mapped((call.args, call.kwargs), given)
            return [tuple(tensor.shape) for tensor in _tensors(call.target(*args, **kwargs))]
    except Exception:  # whatever a form without data raises, the user's own among them
        return None


def _line(values: Sequence[int], seen: Iterable[Expr], points: Sequence[Sizes]) -> Expr | None:
    """The expression that has these values at the points: a number, or one of ``seen`` times a number plus another."""
    if len(set(values)) == 1:
        return expr(values[0])
    for size in seen:
        at = [size.evaluate(point) for point in points]
        if at[1] == at[0]:
            continue
        slope, rest = divmod(values[1] - values[0], at[1] - at[0])
        if rest == 0 and all(
            slope * (there - at[0]) == value - values[0] for there, value in zip(at, values, strict=True)
        ):
            return size * slope + (values[0] - slope * at[0])
    return None


def _tensors(value: Value) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _tensors(part)
