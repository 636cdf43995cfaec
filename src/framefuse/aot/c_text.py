"""Writes the C text of an exported program: its checks, numbers, kernel calls and products, over runtime.c."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from framefuse.aot.c_products import Products
from framefuse.aot.c_torch_calls import call_of_torch, interface_version
from framefuse.aot.c_words import integer, order_of, quoted, real
from framefuse.aot.exported_program import DLPACK, Program, Result
from framefuse.aot.own_code import (
    NUMBERS,
    POSITIONS,
    AtPositions,
    Chosen,
    Convolution,
    Counted,
    Elements,
    Exponentials,
    Joined,
    Matrices,
    Part,
    Pieces,
    Placed,
    Read,
    Sorted,
    Written,
    is_idle,
    read,
)
from framefuse.aot.own_views import Number, Shown, Word, parts, root_of
from framefuse.aot.weights import CHECKSUM_AT, Laid
from framefuse.ir.dtypes import BY_NAME
from framefuse.ir.plan import AllocStep, CallStep, KernelStep, MatmulStep, NumbersStep, ReleaseStep, Slot

OWNED = ("fresh", "call")  # slots with memory of their own


def c_text(writer: Writer, placed: Laid) -> str:
    """The translation unit of a program whose weights are ``placed`` so in their file."""
    program = writer.program
    weights = program.weights
    lines = [
        f"#define INPUTS {len(program.inputs)}",
        f"#define OUTPUTS {len(program.results)}",
        f"#define CONSTANTS {len(weights)}",
        *writer.settings(),
        *_beside(program, placed),
        f'#include "{writer.RUNTIME}"',
        *(['#include "libtorch.c"'] if program.torch_calls else []),
        '__asm__(".pushsection .rodata\\n.balign 64\\n.globl framefuse_weights\\n.hidden framefuse_weights\\n"',
        '        "framefuse_weights: .incbin \\"weights.safetensors\\"\\n.byte 0\\n.popsection\\n");',
        "extern const char framefuse_weights[];",
        f"static const char description[] = {quoted(json.dumps(program.description))};",
    ]
    rows = []
    for k, (weight, place) in enumerate(zip(weights, placed.places, strict=True)):
        shape = ", ".join(map(str, weight.tensor.shape)) or "0"
        strides = ", ".join(map(str, weight.strides)) or "0"
        lines += [f"static const int64_t sizes_{k}[] = {{{shape}}}, strides_{k}[] = {{{strides}}};"]
        code, bits = DLPACK[weight.tensor.dtype]
        size = weight.tensor.numel() * weight.tensor.element_size()
        kind = f"{quoted(weight.name)}, {code}, {bits}, {weight.tensor.ndim}"
        rows.append(f"    {{{kind}, sizes_{k}, strides_{k}, {place}, {size}}},")
    lines += ["static const constant constants[CONSTANTS + 1] = {", *rows, "    {0}};"]
    lines += [*writer.code(), *_orders(program), *writer.derive(), *writer.function()]
    return "\n".join([*lines, f'#include "{writer.MODEL}"', '#include "model.c"', ""])


def _beside(program: Program, placed: Laid) -> list[str]:
    """Of weights in a file of their own: what it is called, how long it is, and how much of it the library holds."""
    if program.beside is None:
        return []
    return [
        f"#define WEIGHTS_FILE {quoted(program.beside.name)}",
        f"#define WEIGHTS_BYTES {placed.size}",
        f"#define WEIGHTS_HEAD {len(placed.head)}",
        f"#define CHECKSUM_AT {CHECKSUM_AT}",
    ]


def _orders(program: Program) -> list[str]:
    """The order of dimensions, outermost first, in which each input is read; none where any will do."""
    checks: list[Any] = [check for check in program.checks if check[0] == "tensor"]
    known = {place: spec.order for _, place, spec, _ in checks}
    lines, rows, steps = [], [], 0
    for place in range(len(program.inputs)):
        order = known.get(place)
        if not order:
            rows.append("{0, NULL}")
            continue
        steps += len(order)
        lines.append(f"static const int order_{place}[] = {{{', '.join(map(str, order))}}};")
        rows.append(f"{{{len(order)}, order_{place}}}")
    table = f"static const struct {{ int ndim; const int *order; }} orders[] = {{{', '.join([*rows, '{0, NULL}'])}}};"
    return [f"#define STEPS {steps}", *lines, table]


class Writer(Products):
    """Writes the function ``program`` for the CPU: ``wide`` says whether kernels hold 64 bytes in a vector. ``RUNTIME``
    is the file of C before it, ``MODEL`` the one behind it.
    """

    RUNTIME, MODEL = "runtime.c", "cpu_model.c"

    def __init__(self, program: Program, wide: bool = False) -> None:
        super().__init__(program)
        self.wide = wide
        self.shown = parts(program.plan)
        roots = [result.slot for result in program.results]
        self.leaving = {slot for slot in roots if slot >= 0 and self.plan.slots[slot].place in OWNED}
        self.shared = {slot for slot in self.leaving if roots.count(slot) > 1}
        self.copies = [k for k, slot in enumerate(roots) if slot not in self.leaving]
        tails = program.tails.values()
        self.within = {tail.out: tail.input for tail in tails}  # in whose memory slots lie
        self.followers = {tail.step for tail in tails}
        self.behind: object = None  # the step behind the one that is written

    def settings(self) -> Iterator[str]:
        """The macros that the runtime is compiled with."""
        yield f"#define PACKS {2 * sum(isinstance(step, (MatmulStep, CallStep)) for step in self.plan.steps)}"
        yield f"#define DERIVED {len(self.derived.slots)}"
        yield f"#define WIDE_VECTORS {int(self.wide)}"
        if self.program.torch_calls:
            yield f"#define LIBTORCH UINT64_C({interface_version():#x})"
            operators = dict.fromkeys(map(str, self.program.torch_calls.values()))
            yield f"#define CALLS_OF_TORCH {quoted(', '.join(operators))}"

    def code(self) -> Iterator[str]:
        """Declares the code of the kernels."""
        for name in dict.fromkeys(self.program.kernels.values()):
            yield f"int64_t {name}(char **buffers, const int64_t *numbers, int64_t begin, int64_t end);"

    def function(self) -> Iterator[str]:
        plan = self.plan
        yield "SEQUENCE static int program(framefuse_model *model, const DLTensor *const *in, DLManagedTensor **out) {"
        yield f"    word n[{plan.count + 1}];"
        yield f"    char *p[{len(plan.slots) + 1}] = {{0}};"
        yield from (f"    char *copy_{k} = NULL;" for k in self.copies)
        yield from (f"    int *owners_{slot} = NULL;" for slot in sorted(self.shared))
        yield "    (void)in;"
        yield from (f"    n[{number}].i = {integer(value)};" for number, value in self.program.fixed.items())
        for check in self.program.checks:
            yield from self.check(check)
        for instruction in plan.numbers:
            yield from self.number(instruction)
        for number in ([plan.arena] if plan.arena >= 0 else []) + [number for _, number in plan.arenas]:
            yield f"    if (arena(model, n[{number}].i)) return -1;"
        for slot, source in enumerate(self.program.sources):
            yield f"    p[{slot}] = {self.origin(source)};"
        if self.derived.slots:
            yield "    derived_values *known = model->replaced ? &model->derived : &shared_derived;"
            yield "    if (!__atomic_load_n(&known->ready, __ATOMIC_ACQUIRE) && derive(model, known, n, p)) return -1;"
        for place_of, slot in enumerate(self.derived.slots):
            yield f"    p[{slot}] = known->values[{place_of}];"
        for slot, place in enumerate(plan.slots):
            root = root_of(plan, slot)
            if slot in self.derived.slots or root in self.within:
                continue
            if place.place == "arena":
                yield f"    p[{slot}] = model->arena + n[{place.base}].i;"
            elif place.place == "view" and plan.slots[root].place not in OWNED:
                yield self.view(slot, place)
        for step, item in enumerate(plan.steps):
            self.behind = plan.steps[step + 1] if step + 1 < len(plan.steps) else None
            if step not in self.derived.steps and step not in self.followers:
                yield from self.step(step, item)
            for tail in self.program.tails.values():
                if tail.last == step:
                    yield f"    give_back(model, p[{tail.input}]); p[{tail.input}] = NULL;"
        yield from self.finish()
        yield "failed:"
        yield from (f"    {self.freed(slot)}" for slot in self.owned())
        yield from (f"    let_go(copy_{k});" for k in self.copies)
        yield from (f"    free(owners_{slot});" for slot in sorted(self.shared))
        yield "    return -1;"
        yield "}"

    def derive(self) -> Iterator[str]:
        """The function that computes what depends on weights alone, where no other model of the library has."""
        if not self.derived.slots:
            return
        yield "SEQUENCE static int derive(framefuse_model *model, derived_values *known, const word *n, char **p) {"
        yield "    int answer = 0;"
        yield "    pthread_mutex_lock(&packing);"
        yield "    if (known->ready) goto done;"
        for slot, place in enumerate(self.plan.slots):
            root = root_of(self.plan, slot)
            if place.place == "view" and self.plan.slots[root].place == "input":
                yield self.view(slot, place)
        for number, slot in enumerate(self.derived.slots):
            place = self.plan.slots[slot]
            yield f"    {{ {self.array('sizes', place.sizes)} {self.array('strides', place.strides)}"
            bytes = f"spanned_bytes({len(place.sizes)}, sizes, strides, {BY_NAME[place.dtype].size})"
            yield f"      p[{slot}] = known->values[{number}] = room({bytes}); }}"
            yield f'    if (!p[{slot}]) {{ answer = fail(model, "there is no memory for weights"); goto done; }}'
        for step in self.derived.steps:
            lines = self.step(step, self.plan.steps[step])
            yield from (line.replace("goto failed", "answer = -1; goto done") for line in lines)
        yield "    __atomic_store_n(&known->ready, 1, __ATOMIC_RELEASE);"
        yield "done:"
        yield "    if (answer) drop_derived(known);"
        yield "    pthread_mutex_unlock(&packing);"
        yield "    return answer;"
        yield "}"

    def owned(self) -> list[int]:
        """The slots whose memory is not in the arena: it leaves with a result, or is kept for the next call."""
        slots = enumerate(self.plan.slots)
        return [slot for slot, place in slots if place.place in OWNED and slot not in self.shown]

    def freed(self, slot: int) -> str:
        return f"let_go(p[{slot}]);" if slot in self.leaving else f"give_back(model, p[{slot}]);"

    def origin(self, source: int) -> str:
        given = len(self.program.inputs)
        return f"data_of(in[{source}])" if source < given else f"(char *)model->constants[{source - given}]"

    # ---- what is done ------------------------------------------------------------------------------------------------

    def step(self, number: int, item: object) -> Iterator[str]:
        plan = self.plan
        if isinstance(item, KernelStep):
            yield self.operands(item)
            yield f"      if (run(model, {self.program.kernels[number]}, b, a, {self.extent(item)})) {{"
            yield "        fail(model, UNMET); goto failed; } }"
        elif isinstance(item, MatmulStep):
            yield from self.product(item)
        elif isinstance(item, AllocStep):
            yield from self.memory(item.slot)
        elif isinstance(item, CallStep):
            yield from self.call(number, item)
        elif isinstance(item, NumbersStep):
            yield from self.further(item)
        elif isinstance(item, ReleaseStep):
            for slot in item.slots:
                kept = (*self.leaving, *self.shown, *self.within.values())
                if plan.slots[slot].place in OWNED and slot not in kept:
                    yield f"    give_back(model, p[{slot}]); p[{slot}] = NULL;"

    def memory(self, slot: int) -> Iterator[str]:
        place = self.plan.slots[slot]
        bytes = f"spanned_bytes({len(place.sizes)}, sizes, strides, {BY_NAME[place.dtype].size})"
        taken = f"lasting(model, {bytes})" if slot in self.leaving else f"take(model, {bytes})"
        yield f"    {{ {self.array('sizes', place.sizes)} {self.array('strides', place.strides)}"
        yield f"      p[{slot}] = {taken}; }}"
        yield f'    if (!p[{slot}]) {{ fail(model, "there is no memory for a result"); goto failed; }}'
        for other, view in enumerate(self.plan.slots):
            root = root_of(self.plan, other)
            if self.within.get(other) == slot:
                yield f"    p[{other}] = p[{slot}];"
            elif view.place == "view" and slot in (root, self.within.get(root)):
                yield self.view(other, view)

    def view(self, slot: int, place: Slot) -> str:
        offset = f" + n[{place.offset}].i * {BY_NAME[place.dtype].size}" if place.offset >= 0 else ""
        return f"    p[{slot}] = p[{place.base}]{offset};"

    def further(self, item: NumbersStep) -> Iterator[str]:
        """Numbers that depend on sizes of results, within the steps: what they refuse gives memory back."""
        for instruction in item.numbers:
            for line in self.number(instruction):
                failing = line.lstrip().startswith("return fail(")
                yield line.replace("return", "{", 1).replace(");", "); goto failed; }") if failing else line
        set_here = {instruction[1] for instruction in item.numbers}
        for slot, place in enumerate(self.plan.slots):
            given = self.plan.slots[root_of(self.plan, slot)].place == "input"
            if place.place == "view" and place.offset in set_here and not given:
                yield f"    if (p[{place.base}]) {self.view(slot, place).lstrip()}"

    def call(self, number: int, item: CallStep) -> Iterator[str]:
        if is_idle(item) or any(out in self.shown for _, out in item.outs):
            return
        torch_call = self.program.torch_calls.get(number)
        if torch_call is not None:
            further = list(self.further(self.behind)) if isinstance(self.behind, NumbersStep) else []
            yield from call_of_torch(self.plan, torch_call, further if item.binds else [], self.memory)
            return
        called = read(self.plan, item)
        assert not isinstance(called, str), called
        if isinstance(called, Sorted):
            yield from self.sorted(called)
            return
        if isinstance(called, Matrices):
            yield from self.matrices(called)
            return
        if isinstance(called, (Chosen, Counted)):
            yield from self.found(item, called)
            return
        yield from self.memory(called.out)
        if isinstance(called, Placed):
            yield from self.placed(called)
        elif isinstance(called, Exponentials):
            yield from self.exponentials(called)
        elif isinstance(called, Convolution):
            yield from self.convolution(called, self.program.tails.get(number))
        elif isinstance(called, Part):
            yield from self.part(called)
        elif isinstance(called, Read):
            yield from self.read(called)
        elif isinstance(called, Written):
            yield from self.written(called)
        elif isinstance(called, Joined):
            yield from self.joined(called)
        elif isinstance(called, Pieces):
            yield from self.pieces(called)
        else:
            yield from self.elements(called)

    def found(self, step: CallStep, item: Chosen | Counted) -> Iterator[str]:
        """Counts, sets the numbers that this binds and those that follow from them, and writes so many."""
        axis, looked = 0, item.input
        counting = "count_true(&looked)"
        if isinstance(item, Chosen):
            axis, looked = item.axis, item.mask
        elif item.work != "places":
            more = f", {item.least}" if item.work == "bins" else ""
            counting = f"count_{item.work}(model, &looked{more})"
        out, source = self.plan.slots[item.out], self.plan.slots[looked]
        shape = f"{BY_NAME[source.dtype].size}, {len(source.sizes)}, source, apart"
        yield f"    {{ {self.array('source', source.sizes)} {self.array('apart', source.strides)}"
        yield f"      const view looked = view_of(p[{looked}], {shape});"
        yield f"      const int64_t count = {counting};"
        yield "      if (count < 0) goto failed;"
        yield from (f"      n[{number}].i = count;" for _, _, number in step.binds)
        yield f"      if (n[{out.sizes[axis]}].i != count) {{"
        yield '        fail(model, "%lld elements are found where there are to be %lld", (long long)count,'
        yield f"             (long long)n[{out.sizes[axis]}].i); goto failed; }}"
        if isinstance(self.behind, NumbersStep):  # they may say how the result lies
            yield from self.further(self.behind)
        yield from self.memory(item.out)
        yield f"      {self.array('to', out.strides)}"
        if isinstance(item, Chosen):
            yield from self.seen(item.input, item.steps)
            yield f"      if (chosen(model, &v, &looked, {axis}, p[{item.out}], to)) goto failed; }}"
        else:
            count = "count, " if item.work == "bins" else ""
            yield f"      {item.work}(&looked, {count}p[{item.out}], to); }}"

    def sorted(self, item: Sorted) -> Iterator[str]:
        source = self.plan.slots[item.input]
        results = []
        for name, slot in (("value", item.values), ("place", item.places)):
            if slot is None:
                results.append("NULL, NULL")
            else:
                yield from self.memory(slot)
                results.append(f"p[{slot}], {name}_strides")
        yield f"    {{ {self.array('sizes', source.sizes)} {self.array('from_strides', source.strides)}"
        for name, slot in (("value", item.values), ("place", item.places)):
            if slot is not None:
                yield f"      {self.array(f'{name}_strides', self.plan.slots[slot].strides)}"
        kind, size = order_of(source.dtype), BY_NAME[source.dtype].size
        wide = int(source.dtype == "bfloat16")
        out = self.plan.slots[next(slot for slot in (item.values, item.places) if slot is not None)]
        taken = f"n[{out.sizes[item.dim]}].i" if out.sizes else "1"
        shape = f"{len(source.sizes)}, {item.dim}, {size}, {wide}, {int(item.descending)}, {kind}, sizes, {taken}"
        yield f"      const sorting of = {{{shape}, p[{item.input}], from_strides, {', '.join(results)}}};"
        yield "      if (sorted(model, &of)) goto failed; }"

    def placed(self, item: Placed) -> Iterator[str]:
        slots = self.plan.slots
        out, source, places, terms = (slots[slot] for slot in (item.out, item.input, item.positions, item.terms))
        size = BY_NAME[out.dtype].size
        yield f"    {{ {self.array('whole', out.sizes)} {self.array('to', out.strides)}"
        yield f"      {self.array('from', source.strides)} {self.array('sizes', places.sizes)}"
        yield f"      {self.array('place', places.strides)} {self.array('term', terms.strides)}"
        yield f"      copy({len(out.sizes)}, whole, p[{item.input}], from, p[{item.out}], to, {size});"
        shape = f"{len(out.sizes)}, {item.dim}, {size}, {POSITIONS[places.dtype]}, {order_of(out.dtype)}, sizes, whole"
        yield f"      const placing of = {{{item.met}, {shape}, p[{item.positions}], place, p[{item.terms}], term,"
        yield f"                          p[{item.out}], to}};"
        yield "      if (place_at(model, &of)) goto failed; }"

    def matrices(self, item: Matrices) -> Iterator[str]:
        """Each matrix of the batch; what is 1 in a dimension of the batch stands still there."""
        slots = self.plan.slots
        left, right = slots[item.input], None if item.right is None else slots[item.right]
        rank = len(left.sizes) - 2
        written = [(slot, wide) for slot, wide in zip(item.outs, item.ranks, strict=True) if slot is not None]
        for slot, _ in written:
            yield from self.memory(slot)

        def strides(name: str, slot: Slot) -> str:
            steps = [f"n[{stride}].i" for stride in slot.strides]
            pairs = zip(slot.sizes[:rank], steps[:rank], strict=True)
            still = [f"n[{size}].i == 1 ? 0 : {step}" for size, step in pairs]
            return f"const int64_t {name}[] = {{{', '.join([*still, *steps[rank:], '0', '0'])}}};"

        def sizes(slot: Slot) -> list[str]:
            return [*(f"n[{size}].i" for size in slot.sizes[rank:]), "1", "1"][:2]

        yield f"    {{ {self.array('sizes', slots[written[0][0]].sizes)} {strides('of_a', left)}"
        beside = "0, NULL, NULL"
        if right is not None:
            yield f"      {strides('of_b', right)}"
            beside = f"{sizes(right)[1]}, p[{item.right}], of_b"
        outs = []
        for k, out in enumerate(item.outs):
            if out is None:
                outs.append("{NULL, NULL, 0, 0}")
                continue
            yield f"      {strides(f'to_{k}', slots[out])}"
            outs.append(f"{{p[{out}], to_{k}, {', '.join(sizes(slots[out]))}}}")
        size = BY_NAME[left.dtype].size
        yield f"      const matrices of = {{{rank}, {size}, sizes, {', '.join(sizes(left))}, p[{item.input}], of_a,"
        yield f"          {beside}, {{{', '.join(outs)}}}}};"
        yield f"      if (each_matrix(model, &of, {item.work})) goto failed; }}"

    def exponentials(self, item: Exponentials) -> Iterator[str]:
        out, source = self.plan.slots[item.out], self.plan.slots[item.input]
        yield f"    {{ {self.array('sizes', out.sizes)} {self.array('to', out.strides)}"
        yield f"      {self.array('from', source.strides)}"
        taken = f"{len(out.sizes)}, sizes, {item.dim}, p[{item.input}], from"
        yield f"      sums_of_exponentials({taken}, p[{item.out}], to, {BY_NAME[out.dtype].size}); }}"

    def part(self, item: Part) -> Iterator[str]:
        place = self.plan.slots[item.out]
        element = BY_NAME[place.dtype].size
        yield f"    {{ {self.array('sizes', place.sizes)} {self.array('to', place.strides)}"
        yield from self.seen(item.input, item.steps)
        yield f"      if (is_other(model, &v, {len(place.sizes)}, sizes)) goto failed;"
        moved = f"v.ndim, v.sizes, v.data, v.strides, p[{item.out}], to, {element}"
        yield f"      if (move(model, {moved})) goto failed; }}"

    def joined(self, item: Joined) -> Iterator[str]:
        out, real, imag = (self.plan.slots[slot] for slot in (item.out, item.real, item.imag))
        yield f"    {{ {self.array('sizes', out.sizes)} {self.array('to', out.strides)}"
        yield f"      {self.array('real', real.strides)} {self.array('imag', imag.strides)}"
        parts = f"p[{item.real}], real, p[{item.imag}], imag"
        yield f"      join({len(out.sizes)}, sizes, {parts}, p[{item.out}], to, {BY_NAME[real.dtype].size}); }}"

    def written(self, item: Written) -> Iterator[str]:
        """A copy, with values at positions."""
        slots = self.plan.slots
        out, source = slots[item.out], slots[item.input]
        size = BY_NAME[out.dtype].size
        yield f"    {{ {self.array('sizes', source.sizes)} {self.array('of', source.strides)}"
        yield f"      {self.array('to', out.strides)}"
        yield f"      copy({len(out.sizes)}, sizes, p[{item.input}], of, p[{item.out}], to, {size});"
        kind, *rest = item.values
        if kind == "tensor":
            given = slots[rest[0]]
            yield f"      {self.array('spread', given.sizes)} {self.array('apart', given.strides)}"
            yield f"      const view values = view_of(p[{rest[0]}], {size}, {len(given.sizes)}, spread, apart);"
        else:
            constant = integer(int(rest[0])) if isinstance(rest[0], int) else real(float(rest[0]))
            value = constant if kind == "const" else f"n[{rest[0]}].{'i' if kind == 'int' else 'r'}"
            yield f"      {NUMBERS[out.dtype]} number = ({NUMBERS[out.dtype]}){value};"
            yield f"      const view values = view_of((char *)&number, {size}, 0, NULL, NULL);"
        yield from self.at_positions(item, item.out)

    def read(self, item: Read) -> Iterator[str]:
        out = self.plan.slots[item.out]
        yield f"    {{ {self.array('sizes', out.sizes)} {self.array('to', out.strides)}"
        shape = f"{BY_NAME[out.dtype].size}, {len(out.sizes)}, sizes, to"
        yield f"      const view values = view_of(p[{item.out}], {shape});"
        yield from self.at_positions(item, item.input)

    def at_positions(self, item: AtPositions, slot: int) -> Iterator[str]:
        """Moves ``values`` to or from the positions in a slot, and ends the block."""
        rows = []
        for number, positions in enumerate(item.positions):
            where = self.plan.slots[positions]
            yield f"      {self.array(f'sizes_{number}', where.sizes)} {self.array(f'steps_{number}', where.strides)}"
            shape = f"{POSITIONS[where.dtype]}, {len(where.sizes)}, sizes_{number}, steps_{number}"
            rows.append(f"{{p[{positions}], {shape}}}")
        yield f"      const positioned at[] = {{{', '.join(rows)}}};"
        yield from self.seen(slot, item.steps)
        dims = f"{len(item.dims)}, (const int[]){{{', '.join(map(str, item.dims))}}}"
        moved = f"at, {item.front}, &values, {int(isinstance(item, Read))}"
        yield f"      if (at_positions(model, &v, {dims}, {moved})) goto failed; }}"

    def pieces(self, item: Pieces) -> Iterator[str]:
        out, size = self.plan.slots[item.out], BY_NAME[self.plan.slots[item.out].dtype].size
        yield f"    {{ {self.array('to', out.strides)} char *place = p[{item.out}];"
        for slot in item.inputs:
            piece = self.plan.slots[slot]
            yield f"      {{ {self.array('sizes', piece.sizes)} {self.array('from', piece.strides)}"
            moved = f"{len(out.sizes)}, sizes, p[{slot}], from, place, to, {size}"
            yield f"        if (move(model, {moved})) goto failed;"
            yield f"        place += sizes[{item.dim}] * to[{item.dim}] * {size}; }}"
        yield "    }"

    def seen(self, slot: int, steps: tuple[Shown, ...]) -> Iterator[str]:
        """The view ``v`` of a part of a slot, or of an input that has none."""
        given = len(self.program.inputs)
        if slot < -given:
            number = -1 - slot - given
            tensor = self.program.weights[number].tensor
            shape = f"{tensor.element_size()}, {tensor.ndim}, sizes_{number}, strides_{number}"
            yield f"      view v = view_of((char *)model->constants[{number}], {shape});"
        elif slot < 0:
            what = quoted(self.program.inputs[-1 - slot].name)
            yield f"      view v; if (read_input(model, {what}, in[{-1 - slot}], &v)) goto failed;"
        else:
            place = self.plan.slots[slot]
            yield f"      {self.array('whole', place.sizes)} {self.array('from', place.strides)}"
            element = BY_NAME[place.dtype].size
            yield f"      view v = view_of(p[{slot}], {element}, {len(place.sizes)}, whole, from);"
        for step in steps:
            numbers = ", ".join(map(_number, step.numbers)) or "0"
            called = f"view_{step.function}(model, &v, (const int64_t[]){{{numbers}}}, {len(step.numbers)})"
            yield f"      if ({called}) goto failed;"

    def elements(self, item: Elements) -> Iterator[str]:
        slots = self.plan.slots
        place, source = slots[item.out], slots[item.input]
        yield f"    {{ {self.array('sizes', place.sizes)} {self.array('to', place.strides)}"
        yield f"      {self.array('whole', source.sizes)} {self.array('from', source.strides)}"
        lead = len(place.sizes) - (len(source.sizes) - len(item.positions))
        rows = []
        for number, slot in enumerate(item.positions):
            where = slots[slot]
            missing = ["0"] * (lead - len(where.sizes))
            pairs = zip(where.sizes, where.strides, strict=True)
            steps = [f"n[{size}].i == 1 ? 0 : n[{stride}].i" for size, stride in pairs]
            yield f"      const int64_t steps_{number}[] = {{{', '.join([*missing, *steps]) or '0'}}};"
            rows.append(f"{{p[{slot}], steps_{number}, {POSITIONS[where.dtype]}}}")
        yield f"      const positions at[] = {{{', '.join(rows)}}};"
        shape = f"{lead}, {len(place.sizes)}, sizes, {len(item.positions)}, at"
        element = BY_NAME[place.dtype].size
        yield f"      if (elements(model, {shape}, whole, p[{item.input}], from, p[{item.out}], to, {element}))"
        yield "          goto failed; }"

    def finish(self) -> Iterator[str]:
        for k, result in enumerate(self.program.results):
            if k in self.copies or result.steps:
                yield "    {"
                yield from self.seen(result.slot, result.steps)
                if k in self.copies:
                    yield f"      copy_{k} = copied(model, &v);"
                    yield f"      if (!copy_{k}) {{ {self.undone(k)} goto failed; }}"
                yield from (f"      {line}" for line in self.given(k, result, "v.ndim, v.sizes, v.strides"))
                yield "    }"
            else:
                place = self.plan.slots[result.slot]
                yield f"    {{ {self.array('sizes', place.sizes)} {self.array('strides', place.strides)}"
                yield from (f"      {line}" for line in self.given(k, result, f"{len(place.sizes)}, sizes, strides"))
                yield "    }"
        yield from (f"    {self.freed(slot)}" for slot in self.owned() if slot not in self.leaving)
        yield "    return 0;"

    def given(self, k: int, result: Result, shape: str) -> Iterator[str]:
        """Makes the output of a result, of the ``shape`` that is said in C."""
        count = len(self.program.inputs)
        if result.dtype is not None:
            kind = "{}, {}".format(*DLPACK[BY_NAME[result.dtype].torch])
        elif result.slot < -count:
            kind = "{}, {}".format(*DLPACK[self.program.weights[-1 - result.slot - count].tensor.dtype])
        elif result.slot < 0:
            given = f"in[{-1 - result.slot}]->dtype"
            kind = f"{given}.code, {given}.bits"
        else:
            kind = "{}, {}".format(*DLPACK[BY_NAME[self.plan.slots[result.slot].dtype].torch])
        memory = f"copy_{k}" if k in self.copies else f"p[{result.slot}]"
        owners = f"owners_{result.slot}" if result.slot in self.shared else "NULL"
        if result.slot in self.shared:
            count = sum(other.slot == result.slot for other in self.program.results)
            yield f"if (!{owners} && ({owners} = malloc(sizeof(int)))) *{owners} = {count};"
            yield f"if (!{owners}) {{ {self.undone(k)} goto failed; }}"
        data = "v.data" if "v." in shape else f"p[{result.slot}]"
        yield f"out[{k}] = give(model, {memory}, {data}, {owners}, {kind}, {shape});"
        yield f"if (!out[{k}]) {{ {self.undone(k)} goto failed; }}"

    def undone(self, count: int) -> str:
        """Takes back the first results, whose memory is freed with the rest."""
        taken = "".join(f"free(out[{k}]->manager_ctx); out[{k}] = NULL; " for k in range(count))
        return taken + 'fail(model, "there is no memory for a result");'


def _number(number: Number) -> str:
    return f"n[{number.number}].i" if isinstance(number, Word) else integer(number)
