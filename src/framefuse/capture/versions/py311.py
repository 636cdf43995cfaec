"""Turns a CPython 3.11 code object into plain instructions: names, arguments, jump targets and exception handlers."""

from __future__ import annotations

import dis
from types import CodeType
from typing import NamedTuple

# dis keeps the width of the inline caches in a private table in 3.11; 3.13 makes it public.
CACHES: tuple[int, ...] = tuple(dis._inline_cache_entries)  # type: ignore[attr-defined]
BINARY_INPLACE_OFFSET = 13


class Instruction(NamedTuple):
    """One instruction with its extended argument folded in; ``offset`` and ``following`` are byte offsets."""

    name: str
    argument: int
    offset: int
    following: int


class Handler(NamedTuple):
    """A row of the exception table: offsets ``start`` to ``end`` go to ``target`` with ``depth`` values left on the
    stack.
    """

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


def instructions(code: CodeType) -> tuple[list[Instruction], dict[int, int]]:
    """The instructions of ``code`` and the index of the instruction that starts at each byte offset."""
    raw = code.co_code
    found: list[Instruction] = []
    index: dict[int, int] = {}
    at = start = extended = 0
    while at < len(raw):
        if not extended:
            start = at
        name, argument = dis.opname[raw[at]], raw[at + 1] | extended
        if name == "EXTENDED_ARG":
            extended, at = argument << 8, at + 2
            continue
        following = at + 2 + 2 * CACHES[raw[at]]
        index[start] = index[at] = len(found)
        found.append(Instruction(name, argument, at, following))
        at, extended = following, 0
    return found, index


def jump_target(instruction: Instruction) -> int | None:
    """The byte offset that an instruction may jump to, None for those that never jump."""
    name = instruction.name
    if "JUMP" not in name and name not in ("FOR_ITER", "SEND"):
        return None
    distance = 2 * instruction.argument
    return instruction.following - distance if "BACKWARD" in name else instruction.following + distance


def exception_table(code: CodeType) -> list[Handler]:
    """The handlers of ``code``, in the order in which they are looked up."""
    parse = dis._parse_exception_table  # type: ignore[attr-defined]
    return [Handler(e.start, e.end, e.target, e.depth, e.lasti) for e in parse(code)]


def local_names(code: CodeType) -> list[str]:
    """Names of the slots of a frame: locals, then cells that are no locals, then free variables."""
    cells = [name for name in code.co_cellvars if name not in code.co_varnames]
    return [*code.co_varnames, *cells, *code.co_freevars]
