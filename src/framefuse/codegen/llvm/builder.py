"""Writes LLVM IR as text: typed registers, regions that can be filled out of order, and one method an instruction."""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from functools import cache, lru_cache

from framefuse.codegen.llvm.target import Target

FLOATS = {"half", "bfloat", "float", "double"}
BITS = {"i1": 1, "i8": 8, "i16": 16, "i32": 32, "i64": 64, "half": 16, "float": 32, "double": 64, "ptr": 64}
SHORT = {"half": "f16", "float": "f32", "double": "f64", "ptr": "p0"}


@cache
def type_text(elem: str, lanes: int) -> str:
    """The LLVM type; 0 lanes are a scalar."""
    return f"<{lanes} x {elem}>" if lanes else elem


class Reg:
    """A value of the function being written: a register or a constant (``name`` is then its text)."""

    __slots__ = ("name", "elem", "lanes")

    def __init__(self, name: str, elem: str, lanes: int = 0) -> None:
        self.name, self.elem, self.lanes = name, elem, lanes

    @property
    def type(self) -> str:
        return type_text(self.elem, self.lanes)

    def __str__(self) -> str:
        """The operand as instructions name it, with its type."""
        return f"{type_text(self.elem, self.lanes)} {self.name}"


class Region:
    """A piece of the function's text that may still grow after what follows it was written.

    ``end`` says in which basic block the region ends: a label, or the nested region that decides it.
    """

    __slots__ = ("parts", "end")

    def __init__(self, label: str) -> None:
        self.parts: list[str | Region | Callable[[], str]] = []
        self.end: str | Region = label

    def append(self, inner: Region) -> Region:
        """Puts a region in this place; this one then ends where the inner one ends."""
        self.parts.append(inner)
        self.end = inner
        return inner

    def lines(self) -> list[str]:
        """The text, once every label is final."""
        lines: list[str] = []
        waiting: list[str | Region | Callable[[], str]] = [self]
        while waiting:
            part = waiting.pop()
            if isinstance(part, str):
                lines.append(part)
            elif isinstance(part, Region):
                waiting += reversed(part.parts)
            else:
                lines.append(part())
        return lines


def label_of(end: str | Region) -> str:
    """The label of a region's last block; final only when the whole function is written."""
    while isinstance(end, Region):
        end = end.end
    return end


class Builder:
    """Writes into ``region``; registers and labels are numbered, declarations are collected. ``exact`` asks for the
    mathematical functions that eager's vectors call.
    """

    def __init__(self, target: Target, exact: bool = False) -> None:
        self.target = target
        self.exact = exact
        self.region = Region("entry")
        self.declarations: dict[str, str] = {}
        self.imports: set[str] = set()
        self.calls_vectors = False
        self._count = 0

    # ---- structure

    def name(self) -> str:
        self._count += 1
        return f"%t{self._count}"

    def label(self, stem: str) -> str:
        self._count += 1
        return f"{stem}{self._count}"

    def line(self, text: str) -> None:
        self.region.parts.append(f"  {text}")

    def start_block(self, label: str) -> None:
        self.region.parts.append(f"{label}:")
        self.region.end = label

    def op(self, elem: str, lanes: int, text: str) -> Reg:
        self._count += 1
        name = f"%t{self._count}"
        self.region.parts.append(f"  {name} = {text}")
        return Reg(name, elem, lanes)

    # ---- constants and widening

    def const(self, value: float | int | bool, elem: str, lanes: int = 0) -> Reg:
        text = constant_text(value, elem)
        return Reg(f"splat ({elem} {text})" if lanes else text, elem, lanes)

    def vector(self, values: Sequence[float], elem: str) -> Reg:
        """A constant with a value for each lane."""
        return Reg("<" + ", ".join(f"{elem} {constant_text(v, elem)}" for v in values) + ">", elem, len(values))

    def like(self, value: float | int | bool, other: Reg) -> Reg:
        """A constant of another value's type."""
        return self.const(value, other.elem, other.lanes)

    def is_number(self, value: Reg) -> bool:
        """Whether this is a constant other than NaN."""
        return not value.name.startswith("%") and "0x7FF8" not in value.name

    def splat(self, value: Reg, lanes: int) -> Reg:
        """A scalar in all lanes; a vector and 0 lanes pass."""
        if value.lanes or not lanes:
            return value
        if not value.name.startswith("%"):
            return Reg(f"splat ({value.elem} {value.name})", value.elem, lanes)
        wide = type_text(value.elem, lanes)
        first = self.op(value.elem, lanes, f"insertelement {wide} poison, {value}, i32 0")
        return self.op(
            value.elem, lanes, f"shufflevector {first}, {wide} poison, {type_text('i32', lanes)} zeroinitializer"
        )

    def match(self, *values: Reg) -> list[Reg]:
        """The values with scalars widened where one of them is a vector."""
        lanes = max(value.lanes for value in values)
        return [self.splat(value, lanes) for value in values]

    def iota(self, elem: str, lanes: int) -> Reg:
        return Reg("<" + ", ".join(f"{elem} {k}" for k in range(lanes)) + ">", elem, lanes)

    def half_of(self, value: Reg, upper: bool) -> Reg:
        """The lower or upper half of the lanes; two lanes give a scalar."""
        lanes = value.lanes // 2
        if lanes == 1:
            return self.extract(value, int(upper))
        first = lanes if upper else 0
        return self.shuffle(value, value, range(first, first + lanes))

    def turned(self, value: Reg) -> Reg:
        """The lanes from the last to the first."""
        order = ", ".join(f"i32 {k}" for k in reversed(range(value.lanes)))
        return self.op(
            value.elem, value.lanes, f"shufflevector {value}, {value.type} poison, <{value.lanes} x i32> <{order}>"
        )

    def join(self, low: Reg, high: Reg) -> Reg:
        """The lanes of both, low first."""
        return self.shuffle(low, high, range(2 * low.lanes))

    def shuffle(self, low: Reg, high: Reg, order: Sequence[int]) -> Reg:
        """The lanes of both, low first, that ``order`` names."""
        places = ", ".join(f"i32 {place}" for place in order)
        return self.op(low.elem, len(order), f"shufflevector {low}, {high}, <{len(order)} x i32> <{places}>")

    def interleaved(self, parts: Sequence[Reg]) -> Reg:
        """The first lanes of all parts, two to four, then the second ones, and so on."""
        lanes, count = parts[0].lanes, len(parts)
        if count == 4:
            return self.interleaved([self.interleaved(parts[::2]), self.interleaved(parts[1::2])])
        low, high = parts[0], parts[1]
        if count == 3:
            low = self.join(low, high)
            high = self.shuffle(parts[2], parts[2], [lane % lanes for lane in range(2 * lanes)])
        return self.shuffle(low, high, [part * lanes + lane for lane in range(lanes) for part in range(count)])

    def extract(self, value: Reg, lane: int) -> Reg:
        return self.op(value.elem, 0, f"extractelement {value}, i32 {lane}")

    # ---- arithmetic

    def binary(self, opcode: str, a: Reg, b: Reg) -> Reg:
        if a.lanes != b.lanes:
            a, b = self.match(a, b)
        return self.op(a.elem, a.lanes, f"{opcode} {a}, {b.name}")

    def add(self, a: Reg, b: Reg) -> Reg:
        return self.binary("fadd" if a.elem in FLOATS else "add", a, b)

    def sub(self, a: Reg, b: Reg) -> Reg:
        return self.binary("fsub" if a.elem in FLOATS else "sub", a, b)

    def mul(self, a: Reg, b: Reg) -> Reg:
        return self.binary("fmul" if a.elem in FLOATS else "mul", a, b)

    def div(self, a: Reg, b: Reg) -> Reg:
        return self.binary("fdiv", a, b)

    def neg(self, a: Reg) -> Reg:
        if a.elem in FLOATS:
            return self.op(a.elem, a.lanes, f"fneg {a}")
        return self.sub(self.like(0, a), a)

    def bit_and(self, a: Reg, b: Reg) -> Reg:
        return self.binary("and", a, b)

    def bit_or(self, a: Reg, b: Reg) -> Reg:
        return self.binary("or", a, b)

    def bit_xor(self, a: Reg, b: Reg) -> Reg:
        return self.binary("xor", a, b)

    def bit_not(self, a: Reg) -> Reg:
        return self.binary("xor", a, self.like(True if a.elem == "i1" else -1, a))

    def compare(self, predicate: str, a: Reg, b: Reg) -> Reg:
        """``fcmp`` for floats (ogt, uno, ...), ``icmp`` for integers (eq, slt, ...)."""
        if a.lanes != b.lanes:
            a, b = self.match(a, b)
        return self.op("i1", a.lanes, f"{'fcmp' if a.elem in FLOATS else 'icmp'} {predicate} {a}, {b.name}")

    def is_nan(self, a: Reg) -> Reg:
        return self.compare("uno", a, a)

    def select(self, condition: Reg, a: Reg, b: Reg) -> Reg:
        condition, a, b = self.match(condition, a, b)
        return self.op(a.elem, a.lanes, f"select {condition}, {a}, {b}")

    def convert(self, opcode: str, a: Reg, elem: str) -> Reg:
        """bitcast, trunc, zext, sext, fpext, fptrunc, sitofp, uitofp, fptosi."""
        if a.elem == elem:
            return a
        return self.op(elem, a.lanes, f"{opcode} {a} to {type_text(elem, a.lanes)}")

    def intrinsic(self, name: str, *args: Reg) -> Reg:
        """An LLVM intrinsic overloaded on the type of its operands, all of one type."""
        operands = self.match(*args) if len(args) > 1 else list(args)
        first = operands[0]
        scalar = SHORT.get(first.elem, first.elem)
        return self.call(f"llvm.{name}.{f'v{first.lanes}' if first.lanes else ''}{scalar}", operands)

    def fma(self, a: Reg, b: Reg, c: Reg) -> Reg:
        return self.intrinsic("fma", a, b, c)

    def polynomial(self, x: Reg, coefficients: Sequence[float]) -> Reg:
        """Horner's rule, highest power first, each step a fused multiply-add."""
        total = self.like(coefficients[0], x)
        for coefficient in coefficients[1:]:
            total = self.fma(total, x, self.like(coefficient, x))
        return total

    # ---- calls and memory

    def call(self, symbol: str, args: Sequence[Reg], result: Reg | None = None, extra: str = "") -> Reg:
        """Calls ``symbol``; the result has the type of ``result`` or of the first operand."""
        shape = result or args[0]
        if symbol not in self.declarations:
            types = ", ".join([arg.type for arg in args] + [part.split()[0] for part in extra.split(", ") if part])
            self.declarations[symbol] = f"declare {shape.type} @{symbol}({types})"
        operands = ", ".join([*map(str, args), *([extra] if extra else [])])
        return self.op(shape.elem, shape.lanes, f"call {shape.type} @{symbol}({operands})")

    def call_void(self, symbol: str, args: Sequence[Reg]) -> None:
        if symbol not in self.declarations:
            self.declarations[symbol] = f"declare void @{symbol}({', '.join(arg.type for arg in args)})"
        self.line(f"call void @{symbol}({', '.join(map(str, args))})")

    def address(self, elem: str, base: Reg, index: Reg) -> Reg:
        """``base + index`` in elements of ``elem``; a vector of indices gives a vector of pointers."""
        if index.name == "0" and not index.lanes:
            return base
        return self.op("ptr", index.lanes, f"getelementptr inbounds {elem}, ptr {base.name}, {index}")

    def opaque(self, value: Reg) -> Reg:
        """The value, of which LLVM asks no longer how it was computed: strength reduction tries each way to write each
        address in a loop, in time that grows with the product of the terms of their bases.
        """
        return self.op(value.elem, value.lanes, f"freeze {value}")

    # ---- control

    def phi(self, like: Reg, name: str, *sources: tuple[Reg, str | Region]) -> Callable[[], str]:
        """A phi node's text, written when the labels of its sources are final."""
        kind = like.type
        return lambda: (
            f"  {name} = phi {kind} " + ", ".join(f"[ {value.name}, %{label_of(end)} ]" for value, end in sources)
        )

    def counted(
        self,
        start: Reg,
        end: Reg,
        step: int,
        carried: Sequence[Reg],
        body: Callable[[Reg, list[Reg]], Sequence[Reg]],
        before: Region | None = None,
    ) -> list[Reg]:
        """``for i in range(start, end, step)`` with values carried from turn to turn, given and returned; no turn at
        all is right. ``body`` writes one turn and returns the new carried values. What is put into ``before`` runs
        once, when there is a first turn.
        """
        outer = self.region
        loop, leave, enter = self.label("loop"), self.label("done"), self.label("enter")
        inside = self.compare("slt", start, end)
        self.line(f"br {inside}, label %{enter}, label %{leave}")
        guard = outer.end
        self.start_block(enter)
        if before is not None:
            before.end = enter
            outer.append(before)
        entry = outer.end
        self.line(f"br label %{loop}")
        phis, inner = Region(loop), Region(loop)
        outer.parts += [f"{loop}:", phis, inner]
        index = Reg(self.name(), "i64")
        turns = [Reg(self.name(), value.elem, value.lanes) for value in carried]
        self.region = inner
        results = list(body(index, turns))
        following = self.op("i64", 0, f"add nsw i64 {index.name}, {step}")
        again = self.compare("slt", following, end)
        self.line(f"br {again}, label %{loop}, label %{leave}")
        last = inner.end
        for turn, first, result in zip([index, *turns], [start, *carried], [following, *results], strict=True):
            phis.parts.append(self.phi(turn, turn.name, (first, entry), (result, last)))
        self.region = outer
        self.start_block(leave)
        return [self._join_values((a, guard), (z, last)) for a, z in zip(carried, results, strict=True)]

    def guarded(self, condition: Reg, otherwise: Sequence[Reg], body: Callable[[], Sequence[Reg]]) -> list[Reg]:
        """``body()`` if ``condition`` (a scalar i1) else ``otherwise``."""
        then, join = self.label("then"), self.label("join")
        before = self.region.end
        self.line(f"br {condition}, label %{then}, label %{join}")
        self.start_block(then)
        results = list(body())
        last = self.region.end
        self.line(f"br label %{join}")
        self.start_block(join)
        return [self._join_values((a, last), (z, before)) for a, z in zip(results, otherwise, strict=True)]

    def _join_values(self, *sources: tuple[Reg, str | Region]) -> Reg:
        value = sources[0][0]
        joined = Reg(self.name(), value.elem, value.lanes)
        self.region.parts.append(self.phi(value, joined.name, *sources))
        return joined

    def any_lane(self, mask: Reg) -> Reg:
        """Whether a lane of a mask is set, as a scalar i1."""
        if not mask.lanes:
            return mask
        bits = self.op(f"i{mask.lanes}", 0, f"bitcast {mask} to i{mask.lanes}")
        return self.op("i1", 0, f"icmp ne {bits}, 0")


@lru_cache(maxsize=4096)
def _float_text(bits: int, elem: str) -> str:
    return f"0x{bits:016X}"


def constant_text(value: float | int | bool, elem: str) -> str:
    """A constant as LLVM writes it: floats as the hexadecimal digits of the double of equal value."""
    if elem == "i1":
        return "true" if value else "false"
    if elem not in FLOATS:
        return str(int(value))
    number = float(value)
    if elem == "float" and number == number and abs(number) != float("inf"):
        try:
            number = struct.unpack("<f", struct.pack("<f", number))[0]
        except OverflowError:
            number = float("inf") if number > 0 else -float("inf")
    if number != number:
        return "0x7FF8000000000000"
    return _float_text(struct.unpack("<Q", struct.pack("<d", number))[0], elem)
