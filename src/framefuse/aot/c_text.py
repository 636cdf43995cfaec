"""Writes the C text of an exported program: its checks, numbers, kernel calls and products, over runtime.c."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from framefuse.aot.exported_program import DLPACK, Program
from framefuse.errors import UserError
from framefuse.ir.dtypes import BY_NAME
from framefuse.ir.facts import TensorSpec
from framefuse.ir.numbers import Symbol
from framefuse.ir.plan import AllocStep, KernelStep, MatmulStep, ReleaseStep, Slot

CHECKED = {"add": "__builtin_add_overflow", "sub": "__builtin_sub_overflow", "mul": "__builtin_mul_overflow"}
CHOSEN = {"min": "<", "max": ">"}
DIVIDING = {"floordiv": "floor_divide", "mod": "floor_remainder"}
REALS = {"real_add": "+", "real_sub": "-", "real_mul": "*", "real_div": "/"}


def c_text(program: Program, places: list[int], wide: bool) -> str:
    """The translation unit of a program whose weights lie at ``places`` of their file; ``wide`` says whether kernels
    hold 64 bytes in a vector.
    """
    weights = program.weights
    lines = [
        f"#define INPUTS {len(program.inputs)}",
        f"#define OUTPUTS {len(program.results)}",
        f"#define CONSTANTS {len(weights)}",
        f"#define WIDE_VECTORS {int(wide)}",
        '#include "runtime.c"',
        '__asm__(".pushsection .rodata\\n.balign 64\\n.globl framefuse_weights\\n.hidden framefuse_weights\\n"',
        '        "framefuse_weights: .incbin \\"weights.safetensors\\"\\n.byte 0\\n.popsection\\n");',
        "extern const char framefuse_weights[];",
        f"static const char description[] = {_quoted(json.dumps(program.description))};",
    ]
    rows = []
    for k, (weight, place) in enumerate(zip(weights, places, strict=True)):
        shape = ", ".join(map(str, weight.tensor.shape)) or "0"
        strides = ", ".join(map(str, weight.strides)) or "0"
        lines += [f"static const int64_t sizes_{k}[] = {{{shape}}}, strides_{k}[] = {{{strides}}};"]
        code, bits = DLPACK[weight.tensor.dtype]
        size = weight.tensor.numel() * weight.tensor.element_size()
        kind = f"{_quoted(weight.name)}, {code}, {bits}, {weight.tensor.ndim}"
        rows.append(f"    {{{kind}, sizes_{k}, strides_{k}, {place}, {size}}},")
    lines += ["static const constant constants[CONSTANTS + 1] = {", *rows, "    {0}};"]
    for name in dict.fromkeys(program.kernels.values()):
        lines.append(f"int64_t {name}(char **buffers, const int64_t *numbers, int64_t begin, int64_t end);")
    lines += _Writer(program).function()
    return "\n".join([*lines, '#include "model.c"', ""])


def _quoted(text: str) -> str:
    """A C string: every byte that is no plain character by its number."""
    plain = (chr(b) if 32 <= b < 127 and chr(b) not in '"\\?' else f"\\{b:03o}" for b in text.encode())
    return '"' + "".join(plain) + '"'


class _Writer:
    """Writes the function ``program``."""

    def __init__(self, program: Program) -> None:
        self.program, self.plan = program, program.plan
        self.names: dict[str, int] = {}  # of sizes: the number of the variable

    def function(self) -> Iterator[str]:
        plan = self.plan
        yield "static int program(framefuse_model *model, const DLTensor *const *in, DLManagedTensor **out) {"
        yield f"    word n[{plan.count + 1}];"
        yield f"    char *p[{len(plan.slots) + 1}] = {{0}};"
        yield "    (void)in;"
        yield from (f"    n[{number}].i = {_word(value)};" for number, value in self.program.fixed.items())
        for check in self.program.checks:
            yield from self.check(check)
        for instruction in plan.numbers:
            yield from self.number(instruction)
        if plan.arena >= 0:
            yield f"    if (arena(model, n[{plan.arena}].i)) return -1;"
        for slot, source in enumerate(self.program.sources):
            yield f"    p[{slot}] = {self.origin(source)};"
        for slot, place in enumerate(plan.slots):
            if place.place == "arena":
                yield f"    p[{slot}] = model->arena + n[{place.base}].i;"
            elif place.place == "view" and plan.slots[self.root(slot)].place != "fresh":
                yield self.view(slot, place)
        for step, item in enumerate(plan.steps):
            yield from self.step(step, item)
        yield from self.finish()
        yield "failed:"
        yield from (f"    free(p[{slot}]);" for slot in self.fresh())
        yield "    return -1;"
        yield "}"

    def fresh(self) -> list[int]:
        return [slot for slot, place in enumerate(self.plan.slots) if place.place == "fresh"]

    def root(self, slot: int) -> int:
        """The slot whose memory a view shows in the end."""
        while self.plan.slots[slot].place == "view":
            slot = self.plan.slots[slot].base
        return slot

    def origin(self, source: int) -> str:
        given = len(self.program.inputs)
        return f"data_of(in[{source}])" if source < given else f"(char *)model->constants[{source - given}]"

    # ---- what must hold ----------------------------------------------------------------------------------------------

    def check(self, check: tuple[Any, ...]) -> Iterator[str]:
        if check[0] == "tensor":
            yield from self.tensor(check[1], check[2], check[3])
        elif check[0] == "number":
            yield from self.number(check[1])
        else:
            _, op, left, right = check
            text = "the sizes of the inputs do not fit together: %lld is to be %s %lld"
            yield f"    if (!(n[{left}].i {op} n[{right}].i))"
            values = f"(long long)n[{left}].i, {_quoted(op)}, (long long)n[{right}].i"
            yield f"        return fail(model, {_quoted(text)}, {values});"

    def tensor(self, place: int, spec: TensorSpec, free: tuple[tuple[str, int, int], ...]) -> Iterator[str]:
        given = self.program.inputs[place]
        what, tensor = _quoted(given.name), f"in[{place}]"
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
        if spec.order is not None:
            order = ", ".join(map(str, spec.order)) or "0"
            yield f"    {{ static const int order[] = {{{order}}};"
            yield f"      if (check_order(model, {what}, {tensor}, order)) return -1; }}"
        for d, stride in enumerate(spec.strides or ()):
            if not isinstance(stride, Symbol):
                yield f"    if (check_stride(model, {what}, {tensor}, {d}, {stride})) return -1;"
        for kind, d, number in free:
            value = f"{tensor}->shape[{d}]" if kind == "size" else f"stride_of({tensor}, {d})"
            yield f"    n[{number}].i = {value};"

    def number(self, instruction: tuple[Any, ...]) -> Iterator[str]:
        op, to, left, right = instruction
        if op == "const":
            yield f"    n[{to}].i = {_word(left)};"
        elif op == "real_const":
            yield f"    n[{to}].r = {float(left).hex() if left == left and abs(left) != float('inf') else _odd(left)};"
        elif op in CHECKED:
            yield f"    if ({CHECKED[op]}(n[{left}].i, n[{right}].i, &n[{to}].i))"
            yield '        return fail(model, "the sizes of the inputs are too large");'
        elif op in CHOSEN:
            yield f"    n[{to}].i = n[{left}].i {CHOSEN[op]} n[{right}].i ? n[{left}].i : n[{right}].i;"
        elif op in DIVIDING:
            yield f"    if (!divides(n[{left}].i, n[{right}].i))"
            yield '        return fail(model, "the program divides by a size that is zero");'
            yield f"    n[{to}].i = {DIVIDING[op]}(n[{left}].i, n[{right}].i);"
        elif op == "real_of_int":
            yield f"    n[{to}].r = (double)n[{left}].i;"
        elif op in REALS:
            yield f"    n[{to}].r = n[{left}].r {REALS[op]} n[{right}].r;"
        elif op == "real_sqrt":
            yield f"    n[{to}].r = sqrt(n[{left}].r);"
        else:
            text = f"the program computes a number by {op}, which export does not know"
            raise UserError(f"{text}. Compute it before the call, or with tensors")

    # ---- what is done ------------------------------------------------------------------------------------------------

    def step(self, number: int, item: object) -> Iterator[str]:
        plan = self.plan
        if isinstance(item, KernelStep):
            buffers = ", ".join(f"p[{slot}]" for slot in item.buffers)
            numbers = ", ".join(f"n[{number}].i" for number in item.numbers)
            yield f"    {{ char *b[] = {{{buffers or '0'}}}; const int64_t a[] = {{{numbers or '0'}}};"
            yield f"      if ({self.program.kernels[number]}(b, a, 0, n[{item.extent}].i)) {{"
            yield '        fail(model, "an index is out of bounds, or an integer is divided by zero"); goto failed; } }'
        elif isinstance(item, MatmulStep):
            yield self.product(item)
        elif isinstance(item, AllocStep):
            place = plan.slots[item.slot]
            sizes = ", ".join(f"n[{size}].i" for size in place.sizes) or "0"
            element = BY_NAME[place.dtype].size
            yield f"    {{ const int64_t sizes[] = {{{sizes}}};"
            yield f"      p[{item.slot}] = room(dense_bytes({len(place.sizes)}, sizes, {element})); }}"
            yield f'    if (!p[{item.slot}]) {{ fail(model, "there is no memory for a result"); goto failed; }}'
            for slot, view in enumerate(plan.slots):
                if view.place == "view" and self.root(slot) == item.slot:
                    yield self.view(slot, view)
        elif isinstance(item, ReleaseStep):
            for slot in item.slots:
                if plan.slots[slot].place == "fresh" and slot not in self.program.results:
                    yield f"    free(p[{slot}]); p[{slot}] = NULL;"

    def view(self, slot: int, place: Slot) -> str:
        offset = f" + n[{place.offset}].i * {BY_NAME[place.dtype].size}" if place.offset >= 0 else ""
        return f"    p[{slot}] = p[{place.base}]{offset};"

    def product(self, item: MatmulStep) -> str:
        dtype = self.plan.slots[item.out].dtype

        def factor(slot: int, strides: tuple[int, int, int], const: str = "const ") -> str:
            kind = "float" if dtype == "float32" else "double"
            return f"({const}{kind} *)p[{slot}], " + ", ".join(f"n[{stride}].i" for stride in strides)

        sizes = ", ".join(f"n[{size}].i" for size in (item.batch, item.m, item.n, item.k))
        operands = f"{factor(item.a, item.a_strides)}, {factor(item.c, item.c_strides)}"
        return f"    product_{dtype}(model, {sizes}, {operands}, {factor(item.out, item.out_strides, '')});"

    def finish(self) -> Iterator[str]:
        results = self.program.results
        for k, slot in enumerate(results):
            place = self.plan.slots[slot]
            dtype = BY_NAME[place.dtype].torch
            code, bits = DLPACK[dtype]
            sizes, strides = (", ".join(map(str, each)) or "0" for each in (place.sizes, place.strides))
            yield f"    {{ static const int sizes[] = {{{sizes}}}, strides[] = {{{strides}}};"
            yield f"      out[{k}] = give(p[{slot}], {code}, {bits}, {len(place.sizes)}, n, sizes, strides); }}"
            yield f"    if (!out[{k}]) {{ {self.undone(k)} goto failed; }}"
        for slot in self.fresh():
            if slot not in results:
                yield f"    free(p[{slot}]);"
        yield "    return 0;"

    def undone(self, count: int) -> str:
        """Takes back the first results, whose memory is freed with the rest."""
        taken = "".join(f"free(out[{k}]->manager_ctx); out[{k}] = NULL; " for k in range(count))
        return taken + 'fail(model, "there is no memory for a result");'


def _word(value: int) -> str:
    return "INT64_MIN" if value == -(2**63) else f"INT64_C({value})"


def _odd(value: float) -> str:
    return "NAN" if value != value else "INFINITY" if value > 0 else "-INFINITY"
