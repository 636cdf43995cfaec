"""What each instruction of a guard program does, in Python: a method that raises Failed where it does not hold."""

from __future__ import annotations

import contextvars
import struct
import types
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence

import torch

from framefuse import _native
from framefuse.guards.source_nodes import MISSING
from framefuse.ir.facts import TensorSpec
from framefuse.ir.numbers import C_FUNCTIONS, REAL_OPS, ROUNDINGS, WHOLE_OPS
from framefuse.ir.own_class import is_a
from framefuse.ir.plan import GuardProgram
from framefuse.ir.values import Arguments, Value

ATOMS = (int, str, bytes, float, complex, tuple)


class Failed(Exception):
    """An instruction does not hold: what was, what is now, and of which ``part`` of the place, such as ``.dtype``."""

    def __init__(self, was: object, now: object, part: str = "") -> None:
        super().__init__()
        self.was = was
        self.now = now
        self.part = part


class Said(str):
    """A description, printed as it stands; other strings are values and are printed in quotes."""

    __slots__ = ()


def same_atom(left: Value, right: Value) -> bool:
    """Equal atoms of the same exact type; floats by their bits; anything else by identity."""
    if left is right:
        return True
    if type(left) is not type(right) or type(left) not in ATOMS:
        return False
    if type(left) is float:
        return struct.pack("d", left) == struct.pack("d", right)
    if type(left) is complex:
        return struct.pack("dd", left.real, left.imag) == struct.pack("dd", right.real, right.imag)
    if type(left) is tuple:
        return len(left) == len(right) and all(map(same_atom, left, right))
    return bool(left == right)


def float_of(word: int) -> float:
    """The double whose bits, as a signed 64-bit int, are ``word``."""
    value: float = struct.unpack("d", struct.pack("q", word))[0]
    return value


def word_of(value: float) -> int:
    """The bits of a double as a signed 64-bit int."""
    return int(struct.unpack("q", struct.pack("d", value))[0])


SCALARS = (torch.float32, torch.float64, torch.int64)


class Run:
    """One check: the registers and numbers so far."""

    def __init__(self, program: GuardProgram, arguments: Sequence[Value]) -> None:
        self.arguments = arguments
        self.registers: list[Value] = [None] * program.registers
        self.numbers: list[int] = [0] * program.numbers

    # loads

    def load(self, register: int, value: Value) -> None:
        if value is MISSING:
            raise Failed(Said("there"), MISSING)
        self.registers[register] = value

    def arg(self, d: int, index: int) -> None:
        self.load(d, self.arguments[index] if index < len(self.arguments) else MISSING)

    def object(self, d: int, value: Value) -> None:
        self.registers[d] = value

    def dict(self, d: int, r: int) -> None:
        attributes = _native.instance_dict(self.registers[r])
        self.load(d, MISSING if attributes is None else attributes)

    def item_dict(self, d: int, r: int, key: Value) -> None:
        self.load(d, _entry(self.registers[r], key))

    def item_seq(self, d: int, r: int, index: int) -> None:
        holder = self.registers[r]
        if is_a(holder, (list, tuple)):
            kind: Value = list if is_a(holder, list) else tuple
            count = kind.__len__(holder)
            self.load(d, kind.__getitem__(holder, index) if -count <= index < count else MISSING)
        elif type(holder) is deque:
            self.load(d, holder[index] if -len(holder) <= index < len(holder) else MISSING)
        else:
            self.load(d, MISSING)

    def entry(self, d: int, r: int, key: int) -> None:
        held = self.registers[key]
        self.load(d, _entry(self.registers[r], held) if type(held) in PLAIN else MISSING)

    def global_(self, d: int, r: int, name: str) -> None:
        self.load(d, _global(self.registers[r], name))

    def cell(self, d: int, r: int, index: int) -> None:
        self.load(d, _cell(self.registers[r], index))

    def type(self, d: int, r: int) -> None:
        self.registers[d] = type(self.registers[r])

    def type_attr(self, d: int, r: int, name: str) -> None:
        self.load(d, _type_attr(self.registers[r], name))

    def getattr_(self, d: int, r: int, name: str) -> None:
        try:
            self.registers[d] = getattr(self.registers[r], name)
        except Exception as error:
            raise Failed(Said("there"), MISSING) from error

    def context(self, d: int, r: int) -> None:
        self.load(d, _context(self.registers[r]))

    def func(self, d: int, r: int) -> None:
        held = self.registers[r]
        self.load(d, held.__func__ if is_a(held, types.MethodType) else MISSING)

    def self_(self, d: int, r: int) -> None:
        held = self.registers[r]
        bound = is_a(held, (types.MethodType, types.BuiltinMethodType))
        self.load(d, MISSING if not bound or held.__self__ is None else held.__self__)

    # checks

    def demand(self, holds: bool, was: Value, now: Value) -> None:
        if not holds:
            raise Failed(was, now)

    def is_(self, r: int, value: Value) -> None:
        self.demand(self.registers[r] is value, value, self.registers[r])

    def type_is(self, r: int, kind: Value) -> None:
        self.demand(type(self.registers[r]) is kind, kind, type(self.registers[r]))

    def equal(self, r: int, value: Value) -> None:
        self.demand(same_atom(self.registers[r], value), value, self.registers[r])

    def answer(self, r: int, question: tuple[Value, Arguments, Arguments, Value]) -> None:
        function, before, behind, answer = question
        held = self.registers[r]
        try:
            said = function(*before, held, *behind) if type(held) is str else MISSING
        except Exception:
            said = MISSING
        self.demand(same_atom(said, answer), Said(repr(answer)), held)

    def length(self, r: int, count: int) -> None:
        held = self.registers[r]
        size = _size(held)
        self.demand(size == count, Said(count), Said("no container" if size < 0 else size))

    def keys(self, r: int, keys: Arguments) -> None:
        held = self.registers[r]
        if type(held) in (set, frozenset):
            self.demand(same_atom(tuple(held), keys), keys, held)
            return
        if not is_a(held, dict):
            raise Failed(keys, held)
        if type(held).__iter__ not in (dict.__iter__, OrderedDict.__iter__):
            raise Failed(keys, type(held))
        now = tuple(type(held).__iter__(held))
        self.demand(same_atom(now, keys), keys, now)

    def absent(self, r: int, key: Value) -> None:
        held = self.registers[r]
        lacks = key not in held if is_a(held, SETS) else is_a(held, dict) and _entry(held, key) is MISSING
        now = Said("there") if is_a(held, SETS) else _entry(held, key) if is_a(held, dict) else held
        self.demand(lacks, Said("absent"), now)

    def present(self, r: int, key: Value) -> None:
        held = self.registers[r]
        holds = key in held if is_a(held, SETS) else _entry(held, key) is not MISSING
        self.demand(holds, Said("present"), MISSING)

    def type_absent(self, r: int, name: str) -> None:
        held = self.registers[r]
        self.demand(is_a(held, type) and _type_attr(held, name) is MISSING, Said("absent"), held)

    def bare(self, r: int, absent: tuple[str, ...], empty: tuple[str, ...]) -> None:
        held = self.registers[r]
        self.demand(is_a(held, dict), Said("attributes"), held)
        for name in absent:
            if _entry(held, name) is not MISSING:
                raise Failed(Said("absent"), _entry(held, name), f".{name}")
        for name in empty:
            found = _entry(held, name)
            if type(found) not in (dict, OrderedDict) or found:
                raise Failed(Said("empty"), found, f".{name}")

    def unset(self, r: int, kind: str, key: Value) -> None:
        self.demand(UNSET[kind](self.registers[r], key), Said("unset"), Said("set"))

    def tensor(self, r: int, spec: TensorSpec, binds: tuple[tuple[str, int, int], ...]) -> None:
        held = self.registers[r]
        different = _tensor_difference(held, spec)
        if different is not None:
            raise different
        for kind, dimension, number in binds:
            with torch._C.DisableTorchFunctionSubclass():
                self.numbers[number] = held.shape[dimension] if kind == "size" else held.stride()[dimension]

    def integer(self, r: int, number: int) -> None:
        held = self.registers[r]
        self.demand(type(held) is int and -(2**63) <= held < 2**63, Said("a 64-bit int"), held)
        self.numbers[number] = held

    def real(self, r: int, number: int) -> None:
        held = self.registers[r]
        self.demand(type(held) is float, Said("a float"), held)
        self.numbers[number] = word_of(held)

    def scalar(self, r: int, number: int) -> None:
        held = self.registers[r]
        good = is_a(held, torch.Tensor) and held.ndim == 0 and held.device.type == "cpu"
        self.demand(good and held.dtype in SCALARS, Said("a tensor of one number"), held)
        element = held.item()
        self.numbers[number] = element if type(element) is int else word_of(element)

    def count(self, r: int, number: int) -> None:
        held = self.registers[r]
        self.numbers[number] = size = len(held) if type(held) is str else _size(held)
        self.demand(size >= 0, Said("a length"), self.registers[r])

    def code(self, r: int, code: Value, defaults: Value, keyword_defaults: Value) -> None:
        held = self.registers[r]
        good = is_a(held, types.FunctionType) and held.__code__ is code
        same = good and held.__defaults__ is defaults and held.__kwdefaults__ is keyword_defaults
        self.demand(same, Said("the code and defaults seen"), Said("others"))

    def same(self, r: int, other: int) -> None:
        self.demand(self.registers[r] is self.registers[other], Said("the same object"), Said("another"))

    def different(self, r: int, other: int) -> None:
        self.demand(self.registers[r] is not self.registers[other], Said("different objects"), Said("the same"))

    def disjoint(self, r: int, other: int) -> None:
        spans = [_span(self.registers[each]) for each in (r, other)]
        if spans[0] is None or spans[1] is None:
            raise Failed(Said("tensors"), Said("other objects"))
        (a, a_end), (b, b_end) = spans[0], spans[1]
        self.demand(
            a_end <= b or b_end <= a or a == a_end or b == b_end, Said("separate memory"), Said("shared memory")
        )

    def apart(self, registers: tuple[int, ...], written: int, spans: tuple[int, ...]) -> None:
        memories = []
        for place, (register, _) in enumerate(zip(registers, spans, strict=True)):
            place_in_memory = _span(self.registers[register])
            if place_in_memory is None:
                raise Failed(Said("tensors"), Said("other objects"))
            memories.append((*place_in_memory, place < written))
        ends = [0, 0]  # of all tensors so far, of those that are written
        for begin, end, changes in sorted(memories):
            if begin < end:
                self.demand(begin >= ends[0 if changes else 1], Said("separate memory"), Said("shared memory"))
                ends = [max(ends[0], end), max(ends[1], end) if changes else ends[1]]

    def distinct(self, registers: tuple[int, ...]) -> None:
        held = {id(self.registers[each]) for each in registers}
        self.demand(len(held) == len(registers), Said(f"{len(registers)} objects"), Said(f"{len(held)}"))

    def address(self, r: int, number: int) -> None:
        self.numbers[number] = id(self.registers[r])

    def version(self, r: int, seen: Value) -> None:
        held = self.registers[r]
        tag, members = seen if isinstance(seen, tuple) else (seen, None)
        now = _native.type_tag(held) if is_a(held, type) else 0
        good = tag != 0 and now == tag
        if not good and members is not None and is_a(held, type):
            good = members(held)
        self.demand(good, Said("attributes as seen"), Said("an attribute was assigned"))

    def relation(self, op: str, left: int, right: int) -> None:
        a, b = self.numbers[left], self.numbers[right]
        self.demand(RELATIONS[op](a, b), Said(f"left {op} right"), Said(f"{a} and {b}"))

    def real_number(self, op: str, left: Value, right: int) -> int:
        """The word of a float that is computed of others."""
        if op == "const":
            return word_of(left)
        if op == "of_int":
            return word_of(float(self.numbers[left]))
        args = [float_of(self.numbers[number]) for number in ((left,) if op in UNARY_REALS else (left, right))]
        try:
            return word_of(float(REAL_OPS[op](*args)))
        except (ArithmeticError, ValueError, TypeError) as error:
            raise Failed(Said("a float"), Said("none")) from error

    def real_relation(self, op: str, left: int, right: int, holds: bool) -> None:
        a, b = float_of(self.numbers[left]), float_of(self.numbers[right])
        wanted = f"left {op} right" if holds else f"not left {op} right"
        self.demand(REAL_RELATIONS[op](a, b) is holds, Said(wanted), Said(f"{a} and {b}"))

    def number(self, instruction: tuple[str, int, Value, int]) -> None:
        op, to, left, right = instruction
        if op.startswith("real_"):
            self.numbers[to] = self.real_number(op[5:], left, right)
            return
        try:
            if op in ROUNDINGS:
                self.numbers[to] = ROUNDINGS[op](float_of(self.numbers[left]))
            else:
                self.numbers[to] = ARITHMETIC[op](left if op == "const" else self.numbers[left], self.numbers[right])
        except (ArithmeticError, ValueError, TypeError, KeyError) as error:
            raise Failed(Said("a number"), Said("none")) from error
        self.demand(-(2**63) <= self.numbers[to] < 2**63, Said("64 bits"), Said("more"))


SETS = (set, frozenset)
PLAIN = (torch.Tensor, torch.nn.Parameter)


def _size(held: Value) -> int:
    """The length of a container as its builtin class tells it, -1 for anything else."""
    if type(held) is deque:
        return len(held)
    kinds: Arguments = (list, tuple, dict, set, frozenset)
    return next((int(kind.__len__(held)) for kind in kinds if is_a(held, kind)), -1)


def _entry(holder: Value, key: Value) -> Value:
    return dict.get(holder, key, MISSING) if is_a(holder, dict) else MISSING


def _global(function: Value, name: str) -> Value:
    if not is_a(function, types.FunctionType):
        return MISSING
    held = function.__globals__.get(name, MISSING)
    return dict.get(getattr(function, "__builtins__"), name, MISSING) if held is MISSING else held  # noqa: B009


def _context(variable: Value) -> Value:
    return variable.get(MISSING) if is_a(variable, contextvars.ContextVar) else MISSING


def _cells(function: Value) -> Arguments:
    return (function.__closure__ or ()) if is_a(function, types.FunctionType) else ()


def _cell(function: Value, index: int) -> Value:
    cells = _cells(function)
    try:
        return cells[index].cell_contents if 0 <= index < len(cells) else MISSING
    except ValueError:
        return MISSING


def _type_attr(kind: Value, name: str) -> Value:
    if not is_a(kind, type):
        return MISSING
    return next((base.__dict__[name] for base in kind.__mro__ if name in base.__dict__), MISSING)


def _lacks(holder: Value, name: str) -> bool:
    try:
        getattr(holder, name)
    except AttributeError:
        return True
    return False


def _span(tensor: Value) -> tuple[int, int] | None:
    with torch._C.DisableTorchFunctionSubclass():
        if not is_a(tensor, torch.Tensor) or tensor.layout is not torch.strided or tensor.is_meta:
            return None
        begin = tensor.data_ptr()
        if tensor.numel() == 0:
            return begin, begin
        last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
        return begin, begin + (last + 1) * tensor.element_size()


def _tensor_difference(tensor: Value, spec: TensorSpec) -> Failed | None:
    """What was and what is, None when the tensor agrees with the spec. No class of the program's sees what is asked."""
    with torch._C.DisableTorchFunctionSubclass():
        return _difference(tensor, spec)


def _difference(tensor: Value, spec: TensorSpec) -> Failed | None:
    kind: type = type(tensor)
    if kind is not spec.type:
        return Failed(spec.type, kind)
    if tensor.dtype is not spec.dtype.torch:
        return Failed(Said(spec.dtype.name), Said(str(tensor.dtype).removeprefix("torch.")), ".dtype")
    if str(tensor.device) != spec.device:
        return Failed(Said(spec.device), Said(tensor.device), ".device")
    if int(torch._C._dispatch_keys(tensor).raw_repr()) != spec.keys:
        return Failed(Said(f"{spec.keys:#x}"), Said(torch._C._dispatch_keys(tensor)), "'s dispatch keys")
    if spec.requires_grad is not None and tensor.requires_grad is not spec.requires_grad:
        return Failed(spec.requires_grad, tensor.requires_grad, ".requires_grad")
    sizes = tuple(tensor.shape)
    if len(sizes) != len(spec.sizes):
        return Failed(Said(f"({', '.join(map(str, spec.sizes))})"), sizes, ".shape")
    for dimension, (size, now) in enumerate(zip(spec.sizes, sizes, strict=True)):
        if isinstance(size, int) and size != now:
            return Failed(size, now, f".shape[{dimension}]")
    if spec.order is not None:
        if is_dense(sizes, tensor.stride(), spec.order):
            return None
        return Failed(Said(f"dense in order {spec.order}"), tensor.stride(), ".stride()")
    for dimension, (stride, now) in enumerate(zip(spec.strides or (), tensor.stride(), strict=True)):
        if isinstance(stride, int) and stride != now:
            return Failed(stride, now, f".stride({dimension})")
    return None


def is_dense(sizes: tuple[int, ...], strides: tuple[int, ...], order: tuple[int, ...]) -> bool:
    """Whether a tensor without a hole lies in ``order``, its dimensions outermost first."""
    if 0 in sizes:
        return True
    expected = 1
    for dimension in reversed(order):
        if sizes[dimension] != 1:
            if strides[dimension] != expected:
                return False
            expected *= sizes[dimension]
    return True


UNSET: dict[str, Callable[[Value, Value], bool]] = {
    "cell": lambda f, index: 0 <= index < len(_cells(f)) and _cell(f, index) is MISSING,
    "getattr": _lacks,
    "context": lambda held, key: is_a(held, contextvars.ContextVar) and _context(held) is MISSING,
    "attr": lambda held, key: key not in (_native.instance_dict(held) or {}),
    "item": lambda held, key: is_a(held, dict) and _entry(held, key) is MISSING,
    "global": lambda held, key: is_a(held, types.FunctionType) and _global(held, key) is MISSING,
}
RELATIONS: dict[str, Callable[[int, int], bool]] = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
}  # fmt: skip
REAL_RELATIONS: dict[str, Callable[[float, float], bool]] = {
    "==": lambda a, b: a == b, "!=": lambda a, b: a != b, "<": lambda a, b: a < b, "<=": lambda a, b: a <= b,
}  # fmt: skip
UNARY_REALS = frozenset(("neg", "abs", "sqrt", "floor", "float32", *C_FUNCTIONS))
ARITHMETIC: dict[str, Callable[[int, int], int]] = {
    "const": lambda a, b: a, "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b, "mod": lambda a, b: a % b, "min": min, "max": max, **WHOLE_OPS,
}  # fmt: skip
RULES: dict[str, Callable[..., None]] = {
    "arg": Run.arg, "object": Run.object, "dict": Run.dict, "item_dict": Run.item_dict, "item_seq": Run.item_seq,
    "entry": Run.entry, "bare": Run.bare,
    "global": Run.global_, "cell": Run.cell, "type": Run.type, "type_attr": Run.type_attr, "getattr": Run.getattr_,
    "func": Run.func, "self": Run.self_, "is": Run.is_, "type_is": Run.type_is, "int_eq": Run.equal,
    "float_eq": Run.equal, "str_eq": Run.equal, "length": Run.length, "keys": Run.keys, "absent": Run.absent,
    "answer": Run.answer, "context": Run.context,
    "present": Run.present, "type_absent": Run.type_absent, "unset": Run.unset, "tensor": Run.tensor, "integer":
    Run.integer, "real": Run.real, "scalar": Run.scalar, "count": Run.count, "code": Run.code,
    "same": Run.same, "different": Run.different, "disjoint":
    Run.disjoint, "apart": Run.apart, "distinct": Run.distinct, "address": Run.address,
    "version": Run.version, "relation": Run.relation,
    "real_relation": Run.real_relation, "number": Run.number,
}  # fmt: skip
