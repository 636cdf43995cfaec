"""Turns a loop nest into text that reads like Python, for people and for golden files."""

from __future__ import annotations

from collections.abc import Iterator

from framefuse.ir.kernel import Kernel
from framefuse.ir.loops.nodes import (
    Accumulate,
    Accumulator,
    Apply,
    AtomicAdd,
    Check,
    Const,
    Index,
    Let,
    Load,
    Local,
    Loop,
    Scalar,
    Scratch,
    Statement,
    Store,
    Value,
)

INFIX = {
    "add": "+", "sub": "-", "mul": "*", "div": "/", "floordiv": "//", "remainder": "%", "eq": "==", "ne": "!=",
    "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "bit_and": "&", "bit_or": "|", "bit_xor": "^",
}  # fmt: skip


def kernel_text(kernel: Kernel) -> str:
    """The whole kernel; written buffers are marked ``out``, and in-place ones with the buffer they overwrite."""
    parameters = [f"{b.name}: {'out ' if b.written else ''}{b.dtype}" for b in kernel.buffers]
    parameters += [f"{n.symbol}: {'real' if n.real else 'int'}" for n in kernel.numbers]
    lines = [f"def {kernel.title}({', '.join(parameters)}):"]
    lines += [f"    # {line}: {line.text}".rstrip(": ") for line in kernel.lines]
    lines += [f"    # {b.name} is the memory of {b.aliases}" for b in kernel.buffers if b.aliases]
    lines += [f"    # and once more for {' = '.join(map(str, kernel.ones))} = 1"] if kernel.ones else []
    lines += [f"    {line}" for line in _statements(kernel.body)]
    return "\n".join(lines) + "\n"


def value_text(value: Value) -> str:
    """One value as an expression."""
    match value:
        case Load(buffer, index, _, mask):
            text = f"{buffer}[{index}]"
            return text if mask is None else f"({text} if {value_text(mask)} else 0)"
        case Const(constant, dtype):
            return f"{dtype}({constant!r})"
        case Scalar(symbol, dtype, _):
            return f"{dtype}({symbol})"
        case Index(index, dtype):
            return f"{dtype}({index})"
        case Local(name, _):
            return name
        case Apply("cast", args, dtype):
            return f"{dtype}({value_text(args[0])})"
        case Apply(op, args, _) if op in INFIX:
            return f"({value_text(args[0])} {INFIX[op]} {value_text(args[1])})"
        case Apply(op, args, _):
            return f"{op}({', '.join(map(value_text, args))})"


def _statements(body: tuple[Statement, ...]) -> Iterator[str]:
    for statement in body:
        yield from _statement(statement)


def _statement(statement: Statement) -> Iterator[str]:
    match statement:
        case Let(name, value):
            yield f"{name} = {value_text(value)}"
        case Accumulator(name, op, dtype, of, running):
            yield f"{name} = {'running_' if running else ''}{op}_of_{of or dtype}()"
        case Accumulate(name, value, index):
            yield f"{name} <- {value_text(value)}" + (f" at {index}" if index is not None else "")
        case Store(buffer, index, value):
            yield f"{buffer}[{index}] = {value_text(value)}"
        case AtomicAdd(buffer, index, value, mask):
            condition = "" if mask is None else f"if {value_text(mask)}: "
            yield f"{condition}{buffer}[{index}] += {value_text(value)}  # atomically"
        case Scratch(name, dtype, size):
            yield f"{name} = scratch({dtype}, {size})"
        case Check(ok):
            yield f"check({value_text(ok)})"
        case Loop(axis, extent, body, kind):
            yield f"for {axis} in {kind.word}({extent}):"
            yield from (f"    {line}" for line in (_statements(body) if body else ("pass",)))
