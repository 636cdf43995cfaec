"""Writes what must hold of the inputs of an exported program, and the numbers that follow from their sizes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from framefuse.aot.c_words import integer, quoted, real
from framefuse.aot.exported_program import DLPACK, Program
from framefuse.errors import UserError
from framefuse.ir.facts import TensorSpec
from framefuse.ir.numbers import C_FUNCTIONS, Symbol

CHECKED = {"add": "__builtin_add_overflow", "sub": "__builtin_sub_overflow", "mul": "__builtin_mul_overflow"}
CHOSEN = {"min": "<", "max": ">"}
DIVIDING = {"floordiv": "floor_divide", "mod": "floor_remainder"}
WHOLE = {"trunc": "trunc", "floor": "floor", "ceil": "ceil", "round": "nearbyint"}  # integers of reals
WORDS = {"and": "&", "or": "|", "xor": "^"}
REALS = {"real_add": "{} + {}", "real_sub": "{} - {}", "real_mul": "times({}, {})"}
# Defined where they are finite: elsewhere Python raises, or has a complex number.
DEFINED = {
    "real_div": "{} / {}", "real_neg": "-{}", "real_abs": "fabs({})", "real_pow": "pow({}, {})",
    "real_sqrt": "sqrt({})", "real_floor": "floor({}) + 0.0", "real_float32": "(double)(float){}",
    "real_fmod": "fmod({}, {})", "real_atan2": "atan2({}, {})", "real_copysign": "copysign({}, {})",
    **{f"real_{name}": f"{name}({{}})" for name in C_FUNCTIONS},
}  # fmt: skip


class Checks:
    """Writes checks and number instructions of a program."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.names: dict[str, int] = {}  # of sizes: the number of the variable

    def check(self, check: tuple[Any, ...]) -> Iterator[str]:
        if check[0] == "tensor":
            yield from self.tensor(check[1], check[2], check[3])
        elif check[0] == "number":
            yield from self.number(check[1])
        else:
            _, op, left, right = check
            text = "the sizes of the inputs do not fit together: %lld is to be %s %lld"
            yield f"    if (!(n[{left}].i {op} n[{right}].i))"
            values = f"(long long)n[{left}].i, {quoted(op)}, (long long)n[{right}].i"
            yield f"        return fail(model, {quoted(text)}, {values});"

    def tensor(self, place: int, spec: TensorSpec, free: tuple[tuple[str, int, int], ...]) -> Iterator[str]:
        given = self.program.inputs[place]
        what, tensor = quoted(given.name), f"in[{place}]"
        code, bits = DLPACK[given.dtype]
        yield f"    if (check_kind(model, {what}, {tensor}, {code}, {bits}, {len(spec.sizes)})) return -1;"
        for d, size in enumerate(given.sizes):
            if isinstance(size, str):
                if size in self.names:
                    yield f"    if (check_size(model, {what}, {tensor}, {d}, size_{self.names[size]})) return -1;"
                else:
                    self.names[size] = len(self.names)
                    yield f"    const int64_t size_{self.names[size]} = {tensor}->shape[{d}];"
            elif size is not None:
                yield f"    if (check_size(model, {what}, {tensor}, {d}, {size})) return -1;"
        for d, fixed in enumerate(spec.sizes):
            if not isinstance(fixed, Symbol):
                yield f"    if (check_size(model, {what}, {tensor}, {d}, {fixed})) return -1;"
        for d, stride in enumerate(spec.strides or ()):
            if not isinstance(stride, Symbol):
                yield f"    if (check_stride(model, {what}, {tensor}, {d}, {stride})) return -1;"
        for kind, d, number in free:
            value = f"{tensor}->shape[{d}]" if kind == "size" else f"stride_of({tensor}, {d})"
            yield f"    n[{number}].i = {value};"

    def number(self, instruction: tuple[Any, ...]) -> Iterator[str]:
        op, to, left, right = instruction
        if op == "const":
            yield f"    n[{to}].i = {integer(left)};"
        elif op == "real_const":
            yield f"    n[{to}].r = {real(float(left))};"
        elif op in CHECKED:
            yield f"    if ({CHECKED[op]}(n[{left}].i, n[{right}].i, &n[{to}].i))"
            yield '        return fail(model, "the sizes of the inputs are too large");'
        elif op in CHOSEN:
            yield f"    n[{to}].i = n[{left}].i {CHOSEN[op]} n[{right}].i ? n[{left}].i : n[{right}].i;"
        elif op in WORDS:
            yield f"    n[{to}].i = n[{left}].i {WORDS[op]} n[{right}].i;"
        elif op in DIVIDING:
            yield f"    if (!divides(n[{left}].i, n[{right}].i))"
            yield '        return fail(model, "the program divides by a size that is zero");'
            yield f"    n[{to}].i = {DIVIDING[op]}(n[{left}].i, n[{right}].i);"
        elif op in WHOLE:
            yield f"    if (!(fabs(n[{left}].r) < 9e18))"
            yield '        return fail(model, "a number of the program is no integer");'
            yield f"    n[{to}].i = (int64_t){WHOLE[op]}(n[{left}].r);"
        elif op == "real_of_int":
            yield f"    n[{to}].r = (double)n[{left}].i;"
        elif op in REALS:
            yield f"    n[{to}].r = {REALS[op].format(f'n[{left}].r', f'n[{right}].r')};"
        elif op in DEFINED:
            yield f"    n[{to}].r = {DEFINED[op].format(f'n[{left}].r', f'n[{right}].r')};"
            yield f"    if (!isfinite(n[{to}].r))"
            yield '        return fail(model, "a number of the program is not defined for these sizes");'
        elif op in ("real_min", "real_max"):
            chosen = f"n[{right}].r {CHOSEN[op[5:]]} n[{left}].r ? n[{right}].r : n[{left}].r"
            yield f"    n[{to}].r = {chosen};"
        else:
            text = f"the program computes a number by {op}, which export does not know"
            raise UserError(f"{text}. Compute it before the call, or with tensors")
