"""Turns the one element of an input, with what in-place arithmetic made of it, into a run-time float; and ints that
modules keep in buffers, and sizes in tensors, into run-time ints.
"""

from __future__ import annotations

import ctypes
import math
import operator
from collections.abc import Sequence
from typing import Protocol

import torch

from framefuse.capture.facts.numbers import Float, Integer, as_real, bare, floating, integer, plain_number, rounded
from framefuse.capture.facts.relations import Relations
from framefuse.capture.facts.sources import Sources
from framefuse.capture.recording.call_arguments import CallArguments
from framefuse.capture.recording.tensors import Entrance
from framefuse.ir.numbers import Binary, Expr, Floordiv, Modulo, Real, Symbol, constant_real, expr
from framefuse.ir.own_class import is_a
from framefuse.ir.torch_calls import TABLE
from framefuse.ir.trace import Call, Ref, TensorMeta
from framefuse.ir.values import Arguments, Keywords, Value

# In-place call -> the operation on floats that it does.
ARITHMETIC = {
    "add_": "add", "__iadd__": "add", "_foreach_add_": "add", "sub_": "sub", "__isub__": "sub", "_foreach_sub_": "sub",
    "mul_": "mul", "__imul__": "mul", "_foreach_mul_": "mul", "div_": "div", "__itruediv__": "div",
    "_foreach_div_": "div",
}  # fmt: skip
FLOATS = (torch.float32, torch.float64)
# Calls of torch on whole numbers -> the operators that do the same to ints that are not negative.
DIVISIONS = frozenset(("div", "divide", "__floordiv__", "floor_divide"))
WHOLE = dict.fromkeys(DIVISIONS, operator.floordiv) | {
    "add": operator.add, "__add__": operator.add, "sub": operator.sub, "__sub__": operator.sub, "mul": operator.mul,
    "__mul__": operator.mul, "__radd__": operator.add, "__rmul__": operator.mul,
    "__rsub__": lambda left, right: right - left, "rsub": lambda left, right: right - left,
}  # fmt: skip
COUNTED = {
    "add_": operator.add, "__iadd__": operator.add, "sub_": operator.sub, "__isub__": operator.sub,
    "mul_": operator.mul, "__imul__": operator.mul, "fill_": lambda _, new: new,
}  # fmt: skip
SMALL = 2**31  # numbers below it may be multiplied: torch's ints wrap, those of expressions do not
TESTS = {name: getattr(operator, name) for name in ("eq", "ne", "lt", "le", "gt", "ge")}


class Host(Protocol):
    """What this needs of the recorder: its calls, and its values by number."""

    calls: list[Call]
    metas: list[TensorMeta]
    numbers: dict[int, int]
    tensors: list[torch.Tensor]
    inputs: dict[int, Entrance]

    @property
    def sources(self) -> Sources: ...
    @property
    def relations(self) -> Relations: ...
    @property
    def arguments(self) -> CallArguments: ...


class Scalars:
    """What is known of the elements of tensors without dimensions in the CPU's memory.

    An element is a symbol that guards read from the tensor before the trace runs, so it must be one of an input, and
    every write to that memory so far must be arithmetic that is followed here.
    """

    def __init__(self, recorder: Host) -> None:
        self.recorder = recorder
        self.writers: dict[int, list[int]] = {}  # storage -> calls that wrote it, in order
        self.makers: dict[int, int] = {}  # value -> the call that made it
        self.symbols: dict[int, Real] = {}
        self.kept: dict[int, Symbol] = {}  # value -> the int of an input
        self.first: dict[int, float] = {}  # value -> element before the call, of inputs
        self.looked = 0

    def meet(self, number: int, tensor: torch.Tensor) -> None:
        """Notes the element of a new input."""
        if tensor.ndim == 0 and tensor.is_cpu:
            if tensor.dtype in FLOATS or (tensor.dtype is torch.int64 and self._is_kept(number)):
                self.first[number] = tensor.item()

    def _is_kept(self, number: int) -> bool:
        """Whether an input is a buffer of a module."""
        given = self.recorder.inputs.get(number)
        holder = given.source.base if given is not None and given.source.kind == "item" else None
        return holder is not None and holder.key == "_buffers" and self.recorder.metas[number].plain

    def form(self, number: int) -> Real | None:
        """The element of value ``number`` now, None where it is not known as an expression."""
        recorder = self.recorder
        meta = recorder.metas[number]
        if meta.sizes or meta.device != "cpu" or meta.dtype not in FLOATS or not meta.plain:
            return None
        self._index()
        single = meta.dtype is torch.float32
        maker = self.makers.get(number)
        if number in self.first:
            form: Real | None = self._symbol(number)
        else:
            form = _made(recorder.calls[maker], single) if maker is not None else None
        for place in self.writers.get(meta.storage, ()):
            if form is None:
                return None
            form = self._written(recorder.calls[place], number, form, single)
        return form

    def sized(self, name: str, args: Arguments, kwargs: Keywords) -> tuple[Arguments, Keywords]:
        """The arguments of a call with run-time ints where sizes are tensors that torch made of numbers alone, and with
        the numbers that say which operation it is held by guards.
        """
        row = TABLE[name]
        if row.fixed:
            return tuple(map(plain_number, args)), {key: plain_number(part) for key, part in kwargs.items()}
        first = row.sizes
        if first is None:
            return args, kwargs
        sizes = tuple([self._sized(part) for part in args[first:]])
        return (*args[:first], *sizes), {key: self._sized(part) for key, part in kwargs.items()}

    def _sized(self, value: Value) -> Value:
        kind = type(value)
        if kind is tuple or kind is list:
            if all(self._sized(part) is part for part in value):
                return value  # the very container: it may be one of which facts are to be stated
            return kind([self._sized(part) for part in self.recorder.arguments.parts(value)])
        if kind is not torch.Tensor or value.ndim or value.dtype is not torch.int64:
            return value
        number = self.recorder.numbers.get(id(value))
        whole = self.whole(number, value) if number is not None else None
        return value if whole is None else whole

    def whole(self, number: int, tensor: torch.Tensor) -> int | None:
        """The element of a whole number that torch made of numbers alone, as a run-time int; None for any other."""
        if tensor.ndim or tensor.dtype is not torch.int64 or not tensor.is_cpu:
            return None
        self._index()
        return self._equal(self._whole_at(number, self.looked), tensor)

    def _whole_at(self, number: int, before: int) -> int | None:
        """The element as it was before a call of the trace."""
        meta, maker = self.recorder.metas[number], self.makers.get(number)
        if meta.sizes or meta.dtype is not torch.int64 or meta.device != "cpu":
            return None
        made = self._buffer(number) if number in self.first else None if maker is None else self._computed(maker)
        for place in self.writers.get(meta.storage, ()):
            if made is None or place >= before:
                break
            made = self._counted(place, number, made)
        return made

    def _counted(self, place: int, number: int, before: int) -> int | None:
        """What an in-place call made of the element."""
        call = self.recorder.calls[place]
        operation = COUNTED.get(call.name)
        if operation is None or len(call.args) != 2 or call.kwargs or call.args[0] != Ref(number):
            return None
        other = self._part(call.args[1], place)
        return None if other is None else self._small(operation(before, other))

    def _computed(self, maker: int) -> int | None:
        """The element that a call gave."""
        call = self.recorder.calls[maker]
        if call.name == "to":
            return self._rounded_up(call)
        operation = WHOLE.get(call.name)
        if operation is None or len(call.args) != 2 or set(call.kwargs) - {"rounding_mode"}:
            return None
        left, right = [self._part(part, maker) for part in call.args]
        if left is None or right is None:
            return None
        if call.name in DIVISIONS:
            floors = call.name in ("__floordiv__", "floor_divide")
            if call.kwargs.get("rounding_mode", "floor" if floors else None) not in ("trunc", "floor"):
                return None
            if not (left >= 0 and right > 0):
                return None
        elif call.kwargs:
            return None
        return self._small(operation(left, right))

    def _small(self, result: int) -> int | None:
        """A result that does not wrap: guards hold what it is made of to be small. None for any other."""
        if type(result) is not Integer:
            return result
        relations, form = self.recorder.relations, result.expr
        if not form.symbols.isdisjoint(relations.data_symbols) or _most(form) >= 2**63:
            return None
        symbols = sorted(form.symbols, key=str)
        if any(abs(relations.hints[symbol]) >= SMALL for symbol in symbols):
            return None
        for symbol in symbols:
            relations.relate("<", symbol.expr, expr(SMALL))
            if symbol.signed:
                relations.relate("<", expr(-SMALL), symbol.expr)
        return result

    def _equal(self, result: int | None, tensor: torch.Tensor) -> int | None:
        """What was computed of the element, where that is what lies there."""
        with torch._C.DisableTorchFunction():
            return result if type(result) in (int, Integer) and bare(result) == tensor.item() else None

    def _buffer(self, number: int) -> int | None:
        """The element of an int that a module keeps, as a run-time int that guards read."""
        symbol = self.kept.get(number)
        if symbol is None:
            recorder = self.recorder
            source, value = recorder.inputs[number].source, int(self.first[number])
            symbol = self.kept[number] = recorder.relations.new_symbol("n" if value >= 0 else "m", value)
            recorder.sources.fact(source, "scalar", symbol)
            recorder.relations.note_volatile(symbol)
        return integer(int(self.first[number]), symbol.expr, self.recorder.relations)

    def _rounded_up(self, call: Call) -> int | None:
        """The element of ``ceil`` of a known float, as an int."""
        if len(call.args) != 2 or call.kwargs or not is_a(call.args[0], Ref):
            return None
        maker = self.makers.get(call.args[0].value)
        if maker is None or self.recorder.calls[maker].name != "ceil":
            return None
        ceil = self.recorder.calls[maker]
        if not is_a(ceil.args[0], Ref):
            return None
        real = self._float(ceil.args[0].value)
        if real is None:
            return None
        relations = self.recorder.relations
        value = real.evaluate(relations.hints, relations.real_hints)
        number = floating(value, real, relations)
        return rounded("ceil", math.ceil, number) if type(number) is Float else None

    def _float(self, number: int) -> Real | None:
        """The element of a float32 that torch made of known ints."""
        maker, meta = self.makers.get(number), self.recorder.metas[number]
        if maker is None or meta.sizes or meta.dtype is not torch.float32 or meta.storage in self.writers:
            return None
        call = self.recorder.calls[maker]
        if len(call.args) != 2 or call.kwargs:
            return None
        left, right = call.args
        if call.name in ("div", "__truediv__"):
            above, below = self._part(left, maker), self._part(right, maker)
            if above is None or below is None or not below > 0:
                return None
            quotient = Real("div", (_rounded(as_real(above), True), _rounded(as_real(below), True)))
            return _rounded(quotient, True)
        if call.name in ("add", "__add__") and type(right) is int and is_a(left, Ref):
            real = self._float(left.value)
            if real is not None:
                return _rounded(Real("add", (real, constant_real(ctypes.c_float(right).value))), True)
        return None

    def truth(self, number: int) -> bool | None:
        """The outcome of a comparison of known ints, which guards then hold."""
        self._index()
        maker, meta = self.makers.get(number), self.recorder.metas[number]
        if maker is None or meta.sizes or meta.dtype is not torch.bool or meta.storage in self.writers:
            return None
        call = self.recorder.calls[maker]
        test = TESTS.get(call.name.strip("_"))
        if test is None or len(call.args) != 2 or call.kwargs:
            return None
        left, right = [self._part(part, maker) for part in call.args]
        if left is None or right is None:
            return None
        outcome = bool(test(left, right))
        with torch._C.DisableTorchFunction():
            return outcome if bool(self.recorder.tensors[number]) is outcome else None

    def _part(self, value: object, place: int) -> int | None:
        """An operand of the call at a place as a run-time int."""
        if type(value) is int:
            return value
        if type(value) is Ref:
            return self._whole_at(value.value, place)
        if not is_a(value, Expr):
            return None
        return integer(value.evaluate(self.recorder.relations.hints), value, self.recorder.relations)

    def _index(self) -> None:
        """Looks at the calls that were recorded since."""
        recorder = self.recorder
        for place in range(self.looked, len(recorder.calls)):
            call = recorder.calls[place]
            for number in call.written:
                self.writers.setdefault(recorder.metas[number].storage, []).append(place)
            if type(call.result) is Ref and not call.written:
                self.makers.setdefault(call.result.value, place)
        self.looked = len(recorder.calls)

    def _symbol(self, number: int) -> Real:
        symbol = self.symbols.get(number)
        if symbol is None:
            recorder = self.recorder
            name = recorder.relations.new_real(self.first[number])
            recorder.sources.fact(recorder.inputs[number].source, "scalar", name)
            recorder.relations.note_volatile(name)
            symbol = self.symbols[number] = Real("symbol", (name,))
        return symbol

    def _written(self, call: Call, number: int, form: Real, single: bool) -> Real | None:
        """What an in-place call made of the element."""
        operation, args = ARITHMETIC.get(call.name), call.args
        if operation is None or len(args) != 2 or set(call.kwargs) - {"alpha"} or call.kwargs.get("alpha", 1) != 1:
            return None
        target, other = args
        if type(target) is list:
            if Ref(number) not in target:
                return None
            other = other[target.index(Ref(number))] if is_a(other, Sequence) else other
        elif target != Ref(number):
            return None
        value = self._operand(other, single)
        if value is None:
            return None
        return self.recorder.relations.short(_rounded(Real(operation, (form, value)), single))

    def _operand(self, value: object, single: bool) -> Real | None:
        if type(value) is Ref:
            form = self.form(value.value)
        elif type(value) is int or type(value) is float or type(value) is bool:
            return constant_real(ctypes.c_float(value).value if single else float(value))
        else:
            form = value if is_a(value, Real) else Real("int", (value,)) if is_a(value, Expr) else None
        return None if form is None else _rounded(form, single)


def _rounded(form: Real, single: bool) -> Real:
    """To the type of the tensor. Rounding twice gives what float32 arithmetic gives: doubles have more than twice its
    digits.
    """
    return Real("float32", (form,)) if single else form


def _most(form: Expr) -> int:
    """What the absolute value of an expression of small numbers does not exceed."""
    total = 0
    for atoms, factor in form.terms:
        most = abs(factor)
        for atom in atoms:
            if not is_a(atom, Binary):
                most *= SMALL
            elif is_a(atom, Floordiv):
                most *= _most(atom.left)
            else:
                most *= _most(atom.right) if is_a(atom, Modulo) else max(_most(atom.left), _most(atom.right))
        total += most
    return total


def _made(call: Call, single: bool) -> Real | None:
    """The element of a tensor that was made of a known number."""
    if call.name != "tensor" or len(call.args) != 1 or type(call.args[0]) not in (int, float):
        return None
    return constant_real(ctypes.c_float(call.args[0]).value if single else float(call.args[0]))
