"""Turns the bytes of a code object into plain instructions by the rules of a version; all versions share it."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable
from types import CodeType
from typing import NamedTuple

Parts = tuple[tuple[str, int], ...]

# Not instructions of a function: padding, and what CPython's own loop puts into frames and never into a code object.
INTERNAL = frozenset(
    ("CACHE", "EXTENDED_ARG", "RESERVED", "INTERPRETER_EXIT", "EXIT_INIT_CHECK", "ENTER_EXECUTOR")
)
# Stand in coroutines and asynchronous generators only; those run eagerly.
COROUTINE = frozenset(
    ("GET_AWAITABLE", "GET_AITER", "GET_ANEXT", "BEFORE_ASYNC_WITH", "END_ASYNC_FOR", "ASYNC_GEN_WRAP")
)
# Stand in the code of a module or of the prompt only.
MODULE = frozenset(("IMPORT_STAR", "PRINT_EXPR", "PRINT"))
# Do nothing here. A jump to one of them goes to what follows it.
DROPPED = frozenset(("RESUME", "NOP", "PRECALL"))
JUMPS = frozenset(("JUMP_FORWARD", "JUMP_BACKWARD", "JUMP_BACKWARD_NO_INTERRUPT"))
ENDS = frozenset(("RETURN_VALUE", "RERAISE", "RAISE_VARARGS"))  # nothing goes on to what stands behind


class Raw(NamedTuple):
    """One instruction of CPython with its extended argument folded in; ``start`` (of the extension), ``offset`` and
    ``following`` (after the caches) are byte offsets.
    """

    name: str
    argument: int
    start: int
    offset: int
    following: int


class Instruction(NamedTuple):
    """One plain instruction, as the handlers know it; ``target`` is the byte offset that it may jump to."""

    name: str
    argument: int
    offset: int
    target: int | None


class Handler(NamedTuple):
    """A row of the exception table: offsets ``start`` to ``end`` go to ``target`` with ``depth`` values left on the
    stack.
    """

    start: int
    end: int
    target: int
    depth: int
    lasti: bool


def _cache_widths() -> tuple[int, ...]:
    """The width of the inline caches behind each opcode, in code units: a private table of dis, by number or name."""
    table = dis._inline_cache_entries  # type: ignore[attr-defined]
    if isinstance(table, dict):
        return tuple([table.get(name, 0) for name in dis.opname])
    return tuple(table)


CACHES = _cache_widths()


def raw_instructions(code: CodeType) -> list[Raw]:
    """The instructions of ``code`` as CPython has them, without caches and specialisation."""
    units, raw = code.co_code, []
    at = start = extended = 0
    while at < len(units):
        if not extended:
            start = at
        name, argument = dis.opname[units[at]], units[at + 1] | extended
        if name == "EXTENDED_ARG":
            extended, at = argument << 8, at + 2
            continue
        following = at + 2 + 2 * CACHES[units[at]]
        raw.append(Raw(name, argument, start, at, following))
        at, extended = following, 0
    return raw


def plain_instructions(
    raw: Iterable[Raw], expand: Callable[[str, int], Parts]
) -> tuple[list[Instruction], dict[int, int]]:
    """The plain instructions that ``expand`` makes of each raw one, and the index of the first for each byte offset."""
    plain: list[Instruction] = []
    index: dict[int, int] = {}
    for row in raw:
        index[row.start] = index[row.offset] = len(plain)
        target = _jump_target(row)
        for name, argument in expand(row.name, row.argument):
            plain.append(Instruction(name, argument, row.offset, target))
    return plain, index


def _jump_target(row: Raw) -> int | None:
    if "JUMP" not in row.name and row.name not in ("FOR_ITER", "SEND"):
        return None
    distance = 2 * row.argument
    return row.following - distance if "BACKWARD" in row.name else row.following + distance


def exception_table(code: CodeType) -> list[Handler]:
    """The handlers of ``code``, in the order in which they are looked up."""
    parse = dis._parse_exception_table  # type: ignore[attr-defined]
    return [Handler(e.start, e.end, e.target, e.depth, e.lasti) for e in parse(code)]


def local_names(code: CodeType) -> list[str]:
    """Names of the slots of a frame: locals, then cells that are no locals, then free variables."""
    cells = [name for name in code.co_cellvars if name not in code.co_varnames]
    return [*code.co_varnames, *cells, *code.co_freevars]
