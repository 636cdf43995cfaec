"""Writes products of matrices and convolutions of an exported program in C, and what stands around kernels."""

from __future__ import annotations

from collections.abc import Iterator

from framefuse.aot.c_checks import Checks
from framefuse.aot.derived import derived
from framefuse.aot.exported_program import Program
from framefuse.aot.own_code import Convolution
from framefuse.aot.own_views import root_of
from framefuse.aot.tails import Tail
from framefuse.ir.plan import KernelStep, MatmulStep

REAL = {"float32": "float", "float64": "double"}  # the types of products in C


class Products(Checks):
    """Writes products and convolutions of a program, with places for the panels of weights."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.plan = program.plan
        self.derived = derived(program)
        self.packs = 0  # places for panels of weights

    def operands(self, item: KernelStep) -> str:
        """Opens a block that has what a kernel takes: ``b`` and ``a``."""
        buffers = ", ".join(f"p[{slot}]" for slot in item.buffers)
        numbers = ", ".join(f"n[{number}].i" for number in item.numbers)
        return f"    {{ char *b[] = {{{buffers or '0'}}}; const int64_t a[] = {{{numbers or '0'}}};"

    def extent(self, item: KernelStep) -> str:
        """The turns of a kernel, and its nanoseconds."""
        return f"n[{item.extent}].i, " + (f"n[{item.work}].i" if item.parallel else "0")

    def array(self, name: str, numbers: tuple[int, ...]) -> str:
        values = ", ".join(f"n[{number}].i" for number in numbers) or "0"
        return f"const int64_t {name}[] = {{{values}}};"

    def product(self, item: MatmulStep) -> Iterator[str]:
        dtype = self.plan.slots[item.out].dtype
        kind = REAL[dtype]

        def operand(slot: int, strides: tuple[int, int, int]) -> str:
            return f"({kind} *)p[{slot}], " + ", ".join(f"n[{stride}].i" for stride in strides)

        sizes = ", ".join(f"n[{size}].i" for size in (item.batch, item.m, item.n, item.k))
        yield f"    {{ const operands_{dtype} of = {{{sizes}, {operand(item.a, item.a_strides)},"
        yield f"        {operand(item.c, item.c_strides)}, {operand(item.out, item.out_strides)}}};"
        yield f"      if (product_{dtype}(model, &of, {self.pack(item.c)})) goto failed; }}"

    def convolution(self, item: Convolution, tail: Tail | None) -> Iterator[str]:
        """The call, and with it the kernel that follows it."""
        slots, dtype = self.plan.slots, self.plan.slots[item.out].dtype
        rank = len(item.stride)

        def sized(slot: int) -> list[str]:
            return [f"n[{number}].i" for number in slots[slot].sizes]

        def operand(slot: int, batched: bool) -> str:
            strides = [f"n[{number}].i" for number in slots[slot].strides]
            lead = [] if batched else ["0"]
            flat = ["0"] if rank == 1 else []
            strides = [*lead, *strides[: len(strides) - rank], *flat, *strides[len(strides) - rank :]]
            return f"({REAL[dtype]} *)p[{slot}], " + ", ".join(strides)

        def window(values: tuple[int, ...], flat: int) -> str:
            return ", ".join(map(str, values if rank == 2 else (flat, *values)))

        x, weight, out = sized(item.input), sized(item.weight), sized(item.out)
        batched = len(x) == rank + 2
        flat = ["1"] if rank == 1 else []
        sizes = [x[0] if batched else "1", x[-rank - 1], *flat, *x[-rank:], out[-rank - 1], *flat, *out[-rank:]]
        sizes += [*flat, *weight[-rank:], str(item.groups)]
        bias = "NULL, 0"
        if item.bias is not None:
            bias = f"({REAL[dtype]} *)p[{item.bias}], n[{slots[item.bias].strides[0]}].i"
        yield f"    {{ const convolved_{dtype} of = {{{', '.join(sizes)},"
        yield f"        {window(item.stride, 1)}, {window(item.pad, 0)}, {window(item.hole, 1)},"
        yield f"        {operand(item.input, batched)}, {operand(item.weight, True)}, {bias},"
        yield f"        {operand(item.out, batched)}, NULL}};"
        behind = "NULL"
        if tail is not None:
            step = self.plan.steps[tail.step]
            assert isinstance(step, KernelStep), step
            yield self.operands(step)
            kernel = self.program.kernels[tail.step]
            yield f"      tail behind = {{{kernel}, b, a, {self.extent(step)}, 0, 0}};"
            behind = "&behind"
        yield f"      if (convolution_{dtype}(model, &of, {self.pack(item.weight)}, {behind})) goto failed;"
        yield "      if (finish(model, &behind)) goto failed; } }" if tail is not None else "    }"

    def pack(self, slot: int) -> int:
        """The first of two places for the panels of a right factor, plain and of sums; -1 where it is no weight."""
        root = root_of(self.plan, slot)
        sources = self.program.sources
        weight = root < len(sources) and sources[root] >= len(self.program.inputs)
        if not weight and root not in self.derived.slots:
            return -1
        self.packs += 2
        return self.packs - 2
