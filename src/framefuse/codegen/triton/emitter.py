"""Turns a Kernel into the text of one Triton module with one function."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from framefuse.codegen.triton.blocks import Blocks, choose
from framefuse.codegen.triton.builder import Builder, Tile
from framefuse.codegen.triton.loops import Loops
from framefuse.codegen.triton.values import Values
from framefuse.codegen.triton.widths import Width, width
from framefuse.ir.dtypes import FLOAT64, INT64
from framefuse.ir.loop_printer import kernel_text
from framefuse.ir.loops import Kernel
from framefuse.ir.numbers import Symbol

STEP = 16  # of which a size must be a multiple for rows to begin at multiples of 16 bytes, whatever their dtype
IMPORTS = """import triton
import triton.language as tl
from triton.language.extra import libdevice

from framefuse.codegen.triton import device
"""


@dataclass(frozen=True, slots=True)
class Module:
    """The text of a module without its heading, the function's ``name``, how it is cut into blocks, and ``constants``,
    the values of the parameters of the function that are known when it is compiled.
    """

    text: str
    name: str
    blocks: Blocks
    width: Width
    parameters: tuple[str, ...]
    constants: tuple[tuple[str, int], ...]
    checks: bool

    def heading(self, kernel: Kernel) -> str:
        """The user's lines and the loop nest that this is the code of, as comments."""
        return "".join(f"# {line}".rstrip() + "\n" for line in kernel_text(kernel).splitlines()) + "\n"


def emit(kernel: Kernel, hints: Mapping[Symbol, int], guarded: bool = False, aligned: bool = True) -> Module:
    """The module of ``kernel``: a function of its buffers, then its numbers in order, for a grid of
    ``ceil(extent / points)`` programs. Right for any sizes, good for those in ``hints``.

    ``guarded`` says that a launch checks ``width.limits`` before it runs the kernel: then integers may be narrow
    although sizes are not known. ``aligned`` code is for pointers that are multiples of 16: where sizes that are
    numbers were multiples of 16 too, it is written once for such and once for any. Raises Unsupported.
    """
    blocks = choose(kernel, hints)
    integers = width(kernel, hints, guarded)
    b = Builder()
    values = Values(b, kernel, integers.integer, blocks.rank, blocks.shape)
    for buffer in kernel.buffers:
        values.buffers[buffer.name] = b.fresh(buffer.name)
    for number in kernel.numbers:
        dtype = FLOAT64 if number.real else INT64
        values.indices.symbols[number.symbol] = Tile(b.fresh(number.symbol.name), dtype)
    parameters = (*values.buffers.values(), *(values.indices.symbols[n.symbol].text for n in kernel.numbers))
    constants = tuple((f"BLOCK{place}", size) for place, size in enumerate(blocks.shape))
    b.taken.update(name for name, _ in constants)
    Loops(b, values, blocks).statements(kernel.body)
    name = function_name(kernel.title)
    names = [*parameters, *(constant for constant, _ in constants)]
    signature = ", ".join([*parameters, *(f"{constant}: tl.constexpr" for constant, _ in constants)])
    body = "\n".join(b.lines or ["    pass"])
    sizes = [n.symbol for n in kernel.numbers if n.symbol in integers.numbers and hints.get(n.symbol, 0) % STEP == 0]
    sizes = [size for size in sizes if hints.get(size, 0)]
    if aligned and sizes and blocks.simple:
        numbers = [values.indices.symbols[size].text for size in sizes]
        work = b.fresh("work")
        text = f"{IMPORTS}\n\n@triton.jit\ndef {work}({signature}):\n{body}\n"
        text += f"\n\n@triton.jit\ndef {name}({signature}):\n{_branch(work, names, numbers)}"
    else:
        text = f"{IMPORTS}\n\n@triton.jit\ndef {name}({signature}):\n{body}\n"
    return Module(text, name, blocks, integers, parameters, constants, "tl.device_assert(" in text)


def _branch(function: str, names: Sequence[str], sizes: Sequence[str]) -> str:
    """Calls of the function that does the work: with sizes that are seen to be multiples of 16, so that memory is moved
    by 16 bytes, and with any others.
    """
    test = " & ".join(f"({size} % {STEP} == 0)" for size in sizes)
    whole = ", ".join(f"{name} // {STEP} * {STEP}" if name in sizes else name for name in names)
    return f"    if {test}:\n        {function}({whole})\n    else:\n        {function}({', '.join(names)})\n"


def function_name(title: str) -> str:
    """What a profiler shows."""
    return "framefuse_" + re.sub(r"\W+", "_", title)
