"""Runs a loop nest element by element in Python: the slow, obvious meaning of a Kernel, oracle of the tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from framefuse.ir.code import DeviceCode, PythonCode
from framefuse.ir.dtypes import INT64, DType
from framefuse.ir.loops import (
    Accumulate,
    Accumulator,
    Apply,
    AtomicAdd,
    Check,
    Const,
    Index,
    Kernel,
    Let,
    Load,
    Local,
    Loop,
    Scalar,
    Scratch,
    Statement,
    Store,
    Value,
)
from framefuse.ir.numbers import Symbol
from framefuse.ir.ops import TABLE


def interpret(kernel: Kernel, buffers: Sequence[np.ndarray | torch.Tensor], numbers: Sequence[int | float] = ()) -> int:
    """Runs ``kernel`` over the whole of its parallel axis and returns what the compiled function would: 0, or 1 if a
    Check failed or an integer was divided by zero.

    ``buffers`` are flat contiguous arrays or tensors (16-bit brain floats exist as tensors only), in the kernel's
    order; written ones are changed in place. ``numbers`` are the kernel's Number parameters in order. Raises
    IndexError when an unmasked load or a store leaves its buffer, which compiled code would not notice.
    """
    run = _Run(kernel, buffers, numbers)
    run.statements(kernel.body)
    return int(run.failed)


def by_python(kernel: Kernel) -> PythonCode:
    """The kernel as code that Python runs on the tensors of a plan."""

    def run(tensors: Sequence[torch.Tensor], numbers: Sequence[int | float], extent: int) -> int:
        with torch.no_grad():
            return interpret(kernel, [_memory(tensor.detach()) for tensor in tensors], numbers)

    code = DeviceCode(
        path="", name=kernel.title, arguments=(), blocks=1, warps=1, shared=0, function=0, binary=b"", aligned=False,
        limits=(), seconds={}, keep=None,
    )  # fmt: skip
    return PythonCode(code, run)


def _memory(tensor: torch.Tensor) -> torch.Tensor:
    """All elements from the first of a tensor to the end of its memory."""
    room = tensor.untyped_storage().nbytes() // tensor.element_size() - tensor.storage_offset()
    return tensor.as_strided((room,), (1,))


class _Run:
    """One execution: memory by buffer name, integers by symbol, values and accumulators by name."""

    def __init__(
        self, kernel: Kernel, buffers: Sequence[np.ndarray | torch.Tensor], numbers: Sequence[int | float]
    ) -> None:
        if len(buffers) != len(kernel.buffers) or len(numbers) != len(kernel.numbers):
            raise ValueError(f"{kernel.title} takes {len(kernel.buffers)} buffers and {len(kernel.numbers)} numbers")
        self.memory: dict[str, torch.Tensor] = {}
        self.ints: dict[Symbol, int] = {}
        self.reals: dict[Symbol, float] = {}
        self.values: dict[str, torch.Tensor] = {}
        self.accumulators: dict[str, _Accumulator] = {}
        self.failed = False
        for buffer, given in zip(kernel.buffers, buffers, strict=True):
            flat = torch.from_numpy(given) if isinstance(given, np.ndarray) else given
            if flat.dtype != buffer.dtype.torch or flat.dim() != 1:
                raise ValueError(f"buffer {buffer.name} must be flat {buffer.dtype}, not {flat.dtype} {flat.shape}")
            self.memory[buffer.name] = flat
        for number, value in zip(kernel.numbers, numbers, strict=True):
            if number.real:
                self.reals[number.symbol] = float(value)
            else:
                self.ints[number.symbol] = int(value)

    def statements(self, body: Sequence[Statement]) -> None:
        for statement in body:
            self.statement(statement)

    def statement(self, statement: Statement) -> None:
        match statement:
            case Let(name, value):
                self.values[name] = self.value(value)
                if value.dtype is INT64:
                    self.ints[Symbol(name)] = int(self.values[name])
            case Accumulator():
                self.accumulators[statement.name] = _Accumulator(statement)
            case Accumulate(name, value, index):
                position = index.evaluate(self.ints) if index is not None else 0
                self.accumulators[name].add(self.value(value), position)
            case Store(buffer, index, value):
                self.memory[buffer][self.position(buffer, index.evaluate(self.ints))] = self.value(value)
            case AtomicAdd(buffer, index, value, mask):
                if mask is None or bool(self.value(mask)):
                    self.memory[buffer][self.position(buffer, index.evaluate(self.ints))] += self.value(value)
            case Scratch(name, dtype, size):
                self.memory[name] = torch.zeros(size.evaluate(self.ints), dtype=dtype.torch)
            case Check(ok):
                self.failed |= not bool(self.value(ok))
            case Loop(axis, extent, body, _):
                for i in range(extent.evaluate(self.ints)):
                    self.ints[axis] = i
                    self.statements(body)
                self.ints.pop(axis, None)

    def position(self, buffer: str, index: int) -> int:
        if not 0 <= index < len(self.memory[buffer]):
            raise IndexError(f"element {index} of {buffer}, which has {len(self.memory[buffer])}")
        return index

    def value(self, value: Value) -> torch.Tensor:
        """The value at this iteration point as a 0-dimensional tensor of its dtype."""
        match value:
            case Load(buffer, index, dtype, mask):
                if mask is not None and not bool(self.value(mask)):
                    return torch.zeros((), dtype=dtype.torch)
                return self.memory[buffer][self.position(buffer, index.evaluate(self.ints))].clone()
            case Const(constant, dtype):
                return torch.tensor(constant, dtype=dtype.torch)
            case Scalar(symbol, dtype, real):
                number = self.reals[symbol] if real else self.ints[symbol]
                return torch.tensor(number, dtype=torch.float64 if real else torch.int64).to(dtype.torch)
            case Index(index, dtype):
                return torch.tensor(index.evaluate(self.ints), dtype=torch.int64).to(dtype.torch)
            case Local(name, _):
                return self.accumulators[name].result() if name in self.accumulators else self.values[name]
            case Apply(op, args, dtype):
                return self.apply(op, [self.value(arg) for arg in args], dtype, value.may_fail)

    def apply(self, op: str, args: list[torch.Tensor], dtype: DType, may_fail: bool) -> torch.Tensor:
        if op == "cast":
            return args[0].to(dtype.torch)
        if op == "fma" and dtype.name == "float32":
            return (args[0].double() * args[1].double() + args[2].double()).float()
        if may_fail and int(args[1]) == 0:
            self.failed = True
            args[1] = torch.ones_like(args[1])
        return FORMULAS[op](*args).to(dtype.torch)


class _Accumulator:
    """A running reduction; float sums and products run in double, so that the order of terms does not matter."""

    def __init__(self, statement: Accumulator) -> None:
        self.op = statement.op
        self.dtype = statement.dtype
        compared = (statement.of or statement.dtype) if self.op.startswith("arg") else statement.dtype
        self.best: Any = START[self.op](compared)
        self.position = -1

    def add(self, value: torch.Tensor, position: int) -> None:
        term = value.item()
        if self.op.startswith("arg"):
            better = term > self.best if self.op == "argmax" else term < self.best
            first_nan = _is_nan(term) and not _is_nan(self.best)
            if self.position < 0 or better or first_nan:
                self.best, self.position = term, position
        elif self.op in ("max", "min"):
            if _is_nan(term) or (not _is_nan(self.best) and (term > self.best) == (self.op == "max")):
                self.best = term
        else:
            self.best = STEP[self.op](self.best, term)

    def result(self) -> torch.Tensor:
        if self.op.startswith("arg"):
            return torch.tensor(self.position, dtype=torch.int64)
        if self.dtype.kind in ("int", "uint"):
            bits = 8 * self.dtype.size
            wrapped = self.best % (1 << bits)
            signed = self.dtype.kind == "int" and wrapped >= 1 << (bits - 1)
            return torch.tensor(wrapped - (1 << bits) if signed else wrapped, dtype=self.dtype.torch)
        best = self.best[-1] if self.op == "squares" else self.best
        return torch.tensor(best, dtype=self.dtype.torch)


def _moved(total: tuple[int, float, float], term: float) -> tuple[int, float, float]:
    """A count of terms, their mean and their squared distances from it, with one more term."""
    count, mean, squares = total
    after = mean + (term - mean) / (count + 1)
    return count + 1, after, squares + (term - mean) * (term - after)


def _is_nan(value: float) -> bool:
    return value != value


def _lowest(dtype: DType) -> float | int:
    if dtype.is_float:
        return -math.inf
    return 0 if dtype.kind == "bool" else torch.iinfo(dtype.torch).min


def _highest(dtype: DType) -> float | int:
    if dtype.is_float:
        return math.inf
    return 1 if dtype.kind == "bool" else torch.iinfo(dtype.torch).max


START: Mapping[str, Callable[[DType], Any]] = {
    "sum": lambda dtype: 0.0 if dtype.is_float else 0,
    "prod": lambda dtype: 1.0 if dtype.is_float else 1,
    "max": _lowest,
    "argmax": _lowest,
    "min": _highest,
    "argmin": _highest,
    "any": lambda dtype: False,
    "all": lambda dtype: True,
    "squares": lambda dtype: (0, 0.0, 0.0),
    "logaddexp": lambda dtype: -math.inf,
}
STEP: Mapping[str, Callable[[Any, Any], Any]] = {
    "sum": lambda total, term: total + term,
    "prod": lambda total, term: total * term,
    "logaddexp": lambda total, term: torch.logaddexp(*torch.tensor([total, term], dtype=torch.float64)).item(),
    "any": lambda total, term: total or bool(term),
    "all": lambda total, term: total and bool(term),
    "squares": lambda total, term: _moved(total, term),
}
FORMULAS: Mapping[str, Callable[..., torch.Tensor]] = {
    name: eval(f"lambda {', '.join('abc'[: op.arity])}: {op.formula}", {"torch": torch})
    for name, op in TABLE.items()
    if op.kind == "pointwise" and name != "cast"
}
