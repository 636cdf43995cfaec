"""Writes the C text of an exported program for a GPU: launches of kernels and products by the vendor's library."""

from __future__ import annotations

from collections.abc import Iterator

from framefuse.aot.c_text import Writer
from framefuse.aot.c_words import integer, quoted
from framefuse.aot.exported_program import Image, Program
from framefuse.ir.plan import CallStep, LaunchStep, MatmulStep
from framefuse.runtime.item_steps import ByLibrary

ALIGNMENT = 16  # of addresses, in bytes, for the faster code
WORDS = {"pointer": "address(p[{}])", "real32": "single(n[{}].r)"}  # others are the number's own 64 bits
INTEGERS = 2**63 - 1


class Launches(Writer):
    """Writes the function ``program`` for a GPU."""

    RUNTIME, MODEL = "gpu_runtime.c", "gpu_model.c"

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        assert program.gpu is not None, "an exported program for a GPU"
        self.gpu = program.gpu
        self.rows: dict[Image, int] = {}  # the numbers of codes
        for image in (image for images in self.gpu.images.values() for image in images):
            self.rows.setdefault(image, len(self.rows))

    def settings(self) -> Iterator[str]:
        """The macros that the runtime is compiled with."""
        yield f"#define CODES {len(self.rows)}"
        called = [step.function if isinstance(step, CallStep) else step for step in self.plan.steps]
        yield f"#define PRODUCTS {int(any(isinstance(step, (MatmulStep, ByLibrary)) for step in called))}"
        yield f"#define ROUNDED_PRODUCTS {int(self.gpu.rounded)}"
        major, minor = self.gpu.capability
        yield f"enum {{ CAPABILITY_MAJOR = {major}, CAPABILITY_MINOR = {minor} }};"

    def code(self) -> Iterator[str]:
        """The images of the kernels, and the table of what is launched."""
        files = list(dict.fromkeys(image.file for image in self.rows))
        for number, file in enumerate(files):
            symbol = f"framefuse_image_{number}"
            yield f'__asm__(".pushsection .rodata\\n.balign 64\\n.globl {symbol}\\n.hidden {symbol}\\n"'
            yield f'        "{symbol}: .incbin \\"{file}\\"\\n.byte 0\\n.popsection\\n");'
            yield f"extern const char {symbol}[];"
        yield "static const code codes[CODES + 1] = {"
        for image in self.rows:
            yield f"    {{framefuse_image_{files.index(image.file)}, {quoted(image.function)}, {image.shared}}},"
        yield "    {0}};"

    def step(self, number: int, item: object) -> Iterator[str]:
        if isinstance(item, LaunchStep):
            yield from self.launch(item, [self.rows[each] for each in self.gpu.images[self.program.kernels[number]]])
        elif isinstance(item, CallStep) and isinstance(item.function, ByLibrary):
            yield from self.product(item.function.step)
        else:
            yield from super().step(number, item)

    def launch(self, item: LaunchStep, rows: list[int]) -> Iterator[str]:
        """Chooses the code for these numbers and addresses."""
        words = [WORDS.get(kind, "(uint64_t)n[{}].i").format(index) for kind, index in item.arguments]
        narrow = [f"is_narrow(n[{index}].i)" for kind, index in item.arguments if kind == "int32"]
        pointers = [f"w[{place}]" for place, (kind, _) in enumerate(item.arguments) if kind == "pointer"]
        fitted, aligned, anywhere = rows
        yield f"    {{ uint64_t w[] = {{{', '.join(words) or '0'}}};"
        if narrow:
            yield f"      if (!({' && '.join(dict.fromkeys(narrow))})) {{"
            yield '        fail(model, "the sizes of the inputs are too large for a kernel"); goto failed; }'
        chosen = str(aligned)
        if fitted != aligned:
            chosen = f"{self.fits(item)} ? {fitted} : {chosen}"
        if anywhere not in (fitted, aligned):
            chosen = f"({' | '.join(pointers)}) % {ALIGNMENT} ? {anywhere} : {chosen}"
        grid = f"n[{item.extent}].i, {item.blocks}, {item.threads}"
        yield f"      if (launch(model, {chosen}, {grid}, w, {len(words)})) goto failed; }}"

    def fits(self, item: LaunchStep) -> str:
        """Whether numbers are like the recorded ones."""
        asked = []
        for index, multiple, low, high in item.fits:
            number = f"n[{index}].i"
            asked.append(f"{number} >= {integer(low)}")
            asked += [f"{number} <= {integer(high)}"] if high < INTEGERS else []
            asked += [f"{number} % {multiple} == 0"] if multiple > 1 else []
        return f"({' && '.join(asked) or '1'})"

    def product(self, item: MatmulStep) -> Iterator[str]:
        def operand(slot: int, strides: tuple[int, int, int]) -> str:
            return f"{{p[{slot}], " + ", ".join(f"n[{stride}].i" for stride in strides) + "}"

        sizes = ", ".join(f"n[{size}].i" for size in (item.batch, item.m, item.n, item.k))
        kinds = ", ".join(self.plan.slots[slot].dtype.upper() for slot in (item.a, item.out))
        yield f"    {{ const product of = {{{kinds}, {sizes}, {operand(item.a, item.a_strides)},"
        yield f"        {operand(item.c, item.c_strides)}, {operand(item.out, item.out_strides)}}};"
        yield "      if (multiply(model, &of)) goto failed; }"
