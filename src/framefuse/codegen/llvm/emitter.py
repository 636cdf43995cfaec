"""Turns a Kernel into the text of an LLVM module with one function, ``kernel``."""

from __future__ import annotations

from dataclasses import dataclass, replace

from framefuse.codegen.llvm.builder import Builder, Reg, Region
from framefuse.codegen.llvm.loops import Loops
from framefuse.codegen.llvm.memory import Area, Memory
from framefuse.codegen.llvm.target import Target
from framefuse.codegen.llvm.values import Values
from framefuse.codegen.optimise import optimised
from framefuse.ir.dtypes import INT64
from framefuse.ir.loops import Kernel, Load, Loop
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.loops.rewrite import with_positions
from framefuse.ir.loops.walk import positions, values_of
from framefuse.ir.numbers import expr

SIGNATURE = "i64 @kernel(ptr noalias %buffers, ptr noalias %numbers, i64 %begin, i64 %end)"


@dataclass(frozen=True, slots=True)
class Module:
    """LLVM IR text and the symbols of other libraries that it calls."""

    text: str
    imports: frozenset[str]

    def heading(self, kernel: Kernel) -> str:
        """The kernel that this is the code of, with the user's lines, as comments."""
        return "".join(f"; {line}".rstrip() + "\n" for line in kernel_text(kernel).splitlines())


def emit(kernel: Kernel, target: Target) -> Module:
    """The module of ``kernel``: ``int64_t kernel(char **buffers, const int64_t *numbers, int64_t begin, int64_t end)``.

    It returns 0, or 1 when a check failed or an integer was divided by zero. Where numbers may be 1, a second function
    is written for that, and ``kernel`` chooses.
    """
    lines: list[str] = []
    if not kernel.ones:
        parts = [_function(kernel, target, f"define {SIGNATURE}")]
    else:
        shapes = (("@any", replace(kernel, ones=())), ("@ones", _with_ones(kernel)))
        heads = [f"define internal {SIGNATURE.replace('@kernel', name)}" for name, _ in shapes]
        parts = [_function(shape, target, head) for head, (_, shape) in zip(heads, shapes, strict=True)]
        lines = _choice(kernel)
    declared = dict.fromkeys(declaration for part in parts for declaration in part.declarations)
    text = [f'target triple = "{target.triple}"', *declared, *(line for part in parts for line in part.lines), *lines]
    return Module("\n".join(text) + "\n", frozenset(name for part in parts for name in part.imports))


@dataclass(frozen=True, slots=True)
class _Function:
    lines: list[str]
    declarations: list[str]
    imports: set[str]


def _with_ones(kernel: Kernel) -> Kernel:
    """The kernel where its ``ones`` are 1."""
    known = dict.fromkeys(kernel.ones, expr(1))
    places = {index: index.substitute(known) for index in positions(kernel.body)}
    return replace(kernel, body=with_positions(kernel.body, places), extent=kernel.extent.substitute(known), ones=())


def _choice(kernel: Kernel) -> list[str]:
    """The function that looks at the numbers and calls one of two."""
    lines, met = [f"define {SIGNATURE} nounwind {{", "entry:"], "true"
    for k, number in enumerate(kernel.numbers):
        if number.symbol in kernel.ones:
            lines.append(f"  %p{k} = getelementptr inbounds i64, ptr %numbers, i64 {k}")
            lines.append(f"  %n{k} = load i64, ptr %p{k}, align 8")
            lines.append(f"  %e{k} = icmp eq i64 %n{k}, 1")
            lines.append(f"  %c{k} = and i1 %e{k}, {met}")
            met = f"%c{k}"
    lines += [f"  br i1 {met}, label %single, label %many"]
    for label, name in (("single", "@ones"), ("many", "@any")):
        call = f"call i64 {name}(ptr %buffers, ptr %numbers, i64 %begin, i64 %end)"
        lines += [f"{label}:", f"  %{label}.result = {call}", f"  ret i64 %{label}.result"]
    return [*lines, "}"]


def _function(kernel: Kernel, target: Target, head: str) -> _Function:
    """The function of one kernel, whose first line begins with ``head``."""
    nest = optimised(kernel)
    kernel = nest.kernel
    b = Builder(target, kernel.exact)
    function = Region("entry")
    entry, start, main = Region("entry"), Region("entry"), Region("entry")
    for part in (entry, start, main):
        function.append(part)
    b.region = start
    memory, failure = Memory(), _Failure(b, entry)
    values = Values(b, memory, nest.numbers, failure.mark)
    for k, buffer in enumerate(kernel.buffers):
        slot = b.op("ptr", 0, f"getelementptr inbounds ptr, ptr %buffers, i64 {k}")
        pointer = b.op("ptr", 0, f"load ptr, {slot}, align 8")
        memory.areas[buffer.name] = Area(buffer.dtype, pointer, 0, alias=buffer.aliases)
    for k, number in enumerate(kernel.numbers):
        slot = b.op("ptr", 0, f"getelementptr inbounds i64, ptr %numbers, i64 {k}")
        if number.real:
            values.reals[number.symbol] = b.op("double", 0, f"load double, {slot}, align 8")
        else:
            register = b.op("i64", 0, f"load i64, {slot}, align 8")
            values.bind(number.symbol, values.fresh("computed", INT64, lambda group, r=register: r, 0))
    if _reads_zero_word(kernel):
        b.region = entry
        memory.zero = b.op("ptr", 0, "alloca i64, align 8")
        b.line(f"store i64 0, {memory.zero}, align 8")
    b.region = main
    loops = Loops(b, memory, values, entry, failure.mark)
    if any(isinstance(s, Loop) and s.kind.parallel for s in kernel.body):
        loops.limits = (Reg("%begin", "i64"), Reg("%end", "i64"))
    loops.statements(kernel.body)
    b.line(f"ret {failure.result()}")
    attributes = "nounwind alignstack(64)" if b.calls_vectors else "nounwind"
    lines = [f"{head} {attributes} {{", "entry:", *function.lines(), "}"]
    return _Function(lines, list(b.declarations.values()), set(b.imports))


class _Failure:
    """The flag that the function returns, in memory because most kernels have none and others rarely set it."""

    def __init__(self, b: Builder, entry: Region) -> None:
        self.b, self.entry = b, entry
        self.flag: Reg | None = None

    def mark(self, lanes: Reg) -> None:
        """Sets the flag if a lane of the mask is on."""
        b = self.b
        if self.flag is None:
            here, b.region = b.region, self.entry
            self.flag = b.op("ptr", 0, "alloca i64, align 8")
            b.line(f"store i64 0, {self.flag}, align 8")
            b.region = here
        seen = b.convert("zext", b.any_lane(lanes), "i64")
        before = b.op("i64", 0, f"load i64, {self.flag}, align 8")
        b.line(f"store {b.bit_or(before, seen)}, {self.flag}, align 8")

    def result(self) -> Reg:
        return self.b.op("i64", 0, f"load i64, {self.flag}, align 8") if self.flag else self.b.const(0, "i64")


def _reads_zero_word(kernel: Kernel) -> bool:
    """Whether a load may read the zero word: those with a mask, and gathers of small elements in masked tails."""
    loads = [value for value in values_of(kernel.body) if isinstance(value, Load)]
    return any(value.mask is not None or value.dtype.size < 4 for value in loads)
