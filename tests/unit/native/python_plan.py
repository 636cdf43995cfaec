"""Executes a plan in Python over torch tensors: the specification of native/run.c."""

from __future__ import annotations

import ctypes
import math
import operator
import struct
from collections.abc import Callable, Sequence
from typing import Any

import torch

from framefuse.ir import dtypes, plan


class Declined(Exception):
    """The call has to run eagerly."""


KERNEL = ctypes.CFUNCTYPE(
    ctypes.c_int64, ctypes.POINTER(ctypes.c_void_p), ctypes.POINTER(ctypes.c_int64), ctypes.c_int64, ctypes.c_int64
)


def run_plan(source: plan.Plan, registers: Sequence[Any], numbers: Sequence[int]) -> Any:
    """What :meth:`framefuse._native.PlanProgram.run` returns; :class:`Declined` where that raises its own Declined."""
    run = _Run(source, registers, numbers)
    try:
        run.prepare()
        for step in source.steps:
            STEPS[type(step)](run, step)
    except Declined:
        raise
    except Exception as error:
        raise Declined from error
    for function, args in source.finish:
        function(*(run.value(arg) for arg in args))
    return run.value(source.result)


def real_of(word: int) -> float:
    """The double with these bits."""
    return float(struct.unpack("d", struct.pack("q", word))[0])


def word_of(real: float) -> int:
    """The bits of a double as a signed int."""
    return int(struct.unpack("q", struct.pack("d", real))[0])


class _Run:
    """One run: a list of numbers, a tensor for each slot that has memory, and the arena as one tensor of bytes."""

    def __init__(self, source: plan.Plan, registers: Sequence[Any], numbers: Sequence[int]) -> None:
        self.plan = source
        self.registers = registers
        self.numbers: list[int | None] = [*numbers[: source.bound], *[None] * (source.count - source.bound)]
        self.tensors: dict[int, torch.Tensor] = {}
        self.arena = torch.empty(0, dtype=torch.uint8)

    def prepare(self) -> None:
        for slot, register in enumerate(self.plan.inputs):
            if not isinstance(self.registers[register], torch.Tensor):
                raise Declined
            self.tensors[slot] = self.registers[register]
        self.compute()

    def compute(self, instructions: Sequence[tuple[Any, ...]] | None = None) -> None:
        """All instructions whose operands are known by now."""
        for op, to, left, right in self.plan.numbers if instructions is None else instructions:
            unary = op in ("real_of_int", "real_neg", "real_abs", "real_sqrt", "real_floor", "real_float32")
            operands = (
                (left,) if op in ("const", "real_const") else (self.numbers[left], 0 if unary else self.numbers[right])
            )
            if self.numbers[to] is None and None not in operands:
                self.numbers[to] = number(op, *operands)
        if self.plan.arena >= 0 and self.numbers[self.plan.arena] is not None and not self.arena.numel():
            self.arena = torch.empty(self.at(self.plan.arena), dtype=torch.uint8)

    def at(self, number: int) -> int:
        value = self.numbers[number]
        if value is None:
            raise Declined
        return value

    def all(self, numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple(map(self.at, numbers))

    def tensor(self, index: int) -> torch.Tensor:
        """The slot as a tensor; arena and view slots as tensors over the same memory."""
        slot = self.plan.slots[index]
        if slot.place not in ("arena", "view"):
            return self.tensors[index]
        sizes, strides = self.all(slot.sizes), self.all(slot.strides)
        dtype = dtypes.BY_NAME[slot.dtype].torch
        if slot.place == "arena":
            return self.arena[self.at(slot.base) :].view(dtype).as_strided(sizes, strides)
        base = self.tensor(slot.base).detach()
        offset = base.storage_offset() + (0 if slot.offset < 0 else self.at(slot.offset))
        return base.as_strided(sizes, strides, offset)

    def value(self, template: tuple[Any, ...]) -> Any:
        """The Python value of a template."""
        tag, *parts = template
        if tag == "tensor":
            return self.tensor(parts[0])
        if tag in ("const", "register"):
            return parts[0] if tag == "const" else self.registers[parts[0]]
        if tag in ("int", "real"):
            return self.at(parts[0]) if tag == "int" else real_of(self.at(parts[0]))
        if tag == "dict":
            return {self.value(key): self.value(part) for key, part in parts}
        if tag == "object":
            cls, builtin, entries, attributes = parts
            made = builtin.__new__(cls)
            for key, part in entries:
                builtin.__setitem__(made, self.value(key), self.value(part))
            for name, part in attributes:
                object.__setattr__(made, self.value(name), self.value(part))
            return made
        if tag == "namedtuple":
            return parts[1].__new__(parts[0], [self.value(part) for part in parts[2:]])
        if tag == "build":
            return parts[0](*map(self.value, parts[1:]))
        kinds: dict[str, Callable[[list[Any]], Any]] = {
            "tuple": tuple, "list": list, "set": set, "frozenset": frozenset, "slice": lambda three: slice(*three),
        }  # fmt: skip
        return kinds[tag]([self.value(part) for part in parts])

    def kernel(self, step: plan.KernelStep) -> None:
        held = [self.tensor(slot) for slot in step.buffers]
        buffers = (ctypes.c_void_p * (len(held) + 1))(*(t.data_ptr() for t in held))
        numbers = (ctypes.c_int64 * (len(step.numbers) + 1))(*self.all(step.numbers))
        if KERNEL(step.address)(buffers, numbers, 0, self.at(step.extent)):
            raise Declined

    def alloc(self, step: plan.AllocStep) -> None:
        slot = self.plan.slots[step.slot]
        dtype = dtypes.BY_NAME[slot.dtype].torch
        self.tensors[step.slot] = torch.empty_strided(
            self.all(slot.sizes), self.all(slot.strides), dtype=dtype, device=slot.device
        )

    def matmul(self, step: plan.MatmulStep) -> None:
        batch, m, n, k = self.all((step.batch, step.m, step.n, step.k))

        def operand(slot: int, sizes: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
            tensor = self.tensor(slot).detach()
            return tensor.as_strided(sizes, self.all(strides), tensor.storage_offset())

        product = operand(step.a, (batch, m, k), step.a_strides) @ operand(step.c, (batch, k, n), step.c_strides)
        out = operand(step.out, (batch, m, n), step.out_strides)
        out.copy_(out + product if step.accumulate else product)

    def call(self, step: plan.CallStep) -> None:
        args = [self.value(arg) for arg in step.args]
        kwargs = {name: self.value(arg) for name, arg in step.kwargs}
        with torch.set_grad_enabled(step.grad and torch.is_grad_enabled()):
            result = step.function(*args, **kwargs)
        for path, slot in step.outs:
            part = result
            for index in path:
                part = part[index]
            if not isinstance(part, torch.Tensor):
                raise Declined
            self.tensors[slot] = part
        for slot, dimension, number in step.binds:
            self.numbers[number] = self.tensors[slot].shape[dimension]
        self.compute()
        for slot in step.normal:
            self.normalise(slot)

    def normalise(self, index: int) -> None:
        slot, tensor = self.plan.slots[index], self.tensors[index]
        sizes, strides = self.all(slot.sizes), self.all(slot.strides)
        if tuple(tensor.shape) != sizes or tensor.dtype is not dtypes.BY_NAME[slot.dtype].torch:
            raise Declined
        if tensor.stride() != strides or tensor.is_conj() or tensor.is_neg():
            copy = torch.empty_strided(sizes, strides, dtype=tensor.dtype, device=tensor.device)
            with torch.no_grad():
                self.tensors[index] = copy.copy_(tensor)

    def release(self, step: plan.ReleaseStep) -> None:
        for slot in step.slots:
            self.tensors.pop(slot, None)

    def further(self, step: plan.NumbersStep) -> None:
        for _, to, *_ in step.numbers:
            self.numbers[to] = None
        self.compute(step.numbers)
        self.compute()


STEPS: dict[type, Callable[[_Run, Any], None]] = {
    plan.KernelStep: _Run.kernel,
    plan.AllocStep: _Run.alloc,
    plan.MatmulStep: _Run.matmul,
    plan.CallStep: _Run.call,
    plan.ReleaseStep: _Run.release,
    plan.NumbersStep: _Run.further,
}


def number(op: str, left: Any, right: Any = 0) -> int:
    """One number instruction over raw words; :class:`Declined` where Python's arithmetic raises or leaves 64 bits."""
    if op == "const":
        return int(left)
    if op == "real_const":
        return word_of(float(left))
    try:
        if op in INTEGERS or op in ROUNDINGS:
            value = ROUNDINGS[op](real_of(left)) if op in ROUNDINGS else INTEGERS[op](left, right)
            if not -(2**63) <= value < 2**63:
                raise Declined
            return value
        x = left if op == "real_of_int" else real_of(left)
        return word_of(float(REALS[op](x, real_of(right))))
    except (ArithmeticError, ValueError, TypeError) as error:
        raise Declined from error


INTEGERS: dict[str, Callable[[int, int], int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b, "min": min, "max": max,
    "and": operator.and_, "or": operator.or_, "xor": operator.xor, "lshift": operator.lshift,
    "rshift": operator.rshift, "power": lambda a, b: a**b if b >= 0 else math.log(0),
}  # fmt: skip
ROUNDINGS: dict[str, Callable[[float], int]] = {
    "trunc": int, "floor": math.floor, "ceil": math.ceil, "round": round,
}  # fmt: skip
REALS: dict[str, Callable[[Any, float], Any]] = {
    "real_of_int": lambda a, b: float(a), "real_add": lambda a, b: a + b, "real_sub": lambda a, b: a - b,
    "real_mul": lambda a, b: a * b, "real_div": lambda a, b: a / b, "real_neg": lambda a, b: -a, "real_abs": lambda a,
    b: abs(a),
    "real_min": min, "real_max": max, "real_pow": lambda a, b: a**b, "real_sqrt": lambda a, b: math.sqrt(a),
    "real_floor": lambda a, b: math.floor(a),
    "real_float32": lambda a, b: ctypes.c_float(a).value, "real_floordiv": lambda a, b: a // b,
    "real_mod": lambda a, b: a % b, "real_fmod": math.fmod, "real_atan2": math.atan2, "real_copysign": math.copysign,
}  # fmt: skip


def _of_one(function: Callable[[float], float]) -> Callable[[Any, float], Any]:
    return lambda a, b: function(a)


for _name in ("sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh exp expm1 log log1p log2 log10").split():
    REALS[f"real_{_name}"] = _of_one(getattr(math, _name))
