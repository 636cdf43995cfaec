"""Turns a CPython 3.13 code object into plain instructions: pairs are split, functions are made in one step."""

from __future__ import annotations

from types import CodeType

from framefuse.capture.program.versions.listing import (
    DROPPED,
    Instruction,
    Parts,
    Raw,
    plain_instructions,
    raw_instructions,
)
from framefuse.capture.program.versions.py312 import expand_common

# Pairs of one instruction: the argument holds two slots of four bits.
PAIRS = {
    "LOAD_FAST_LOAD_FAST": ("LOAD_FAST", "LOAD_FAST"),
    "STORE_FAST_LOAD_FAST": ("STORE_FAST", "LOAD_FAST"),
    "STORE_FAST_STORE_FAST": ("STORE_FAST", "STORE_FAST"),
}
# These ask for the truth of what they take, so that no TO_BOOL is needed before them.
ASK_TRUTH = frozenset(("POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "UNARY_NOT"))
TO_TRUTH = 16  # the flag of COMPARE_OP
# Gone once the code is folded; one that is left has no handler, and the code runs eagerly.
FOLDED = frozenset(("END_FOR", "SET_FUNCTION_ATTRIBUTE"))


def instructions(code: CodeType) -> tuple[list[Instruction], dict[int, int]]:
    """The plain instructions of ``code`` and the index of the one that starts at each byte offset."""
    return plain_instructions(_folded(raw_instructions(code)), expand)


def _folded(raw: list[Raw]) -> list[Raw]:
    """The instructions with those made void that the one before or after them does in 3.12: the compiler of 3.13 writes
    them side by side.
    """
    maker = -1
    for number, row in enumerate(raw):
        after = raw[number + 1].name if number + 1 < len(raw) else ""
        if row.name == "SET_FUNCTION_ATTRIBUTE" and maker >= 0:
            raw[maker] = raw[maker]._replace(argument=raw[maker].argument | row.argument)
            raw[number] = row._replace(name="NOP")
            continue
        maker = -1
        match row.name:
            case "CONVERT_VALUE" if after == "FORMAT_SIMPLE":
                raw[number] = row._replace(name="NOP")
                raw[number + 1] = raw[number + 1]._replace(argument=row.argument)
            case "CONVERT_VALUE" if after == "LOAD_CONST" and raw[number + 2].name == "FORMAT_WITH_SPEC":
                raw[number] = row._replace(name="NOP")
                raw[number + 2] = raw[number + 2]._replace(argument=row.argument)
            case "MAKE_FUNCTION":
                maker, raw[number] = number, row._replace(argument=0)
            case "END_FOR" if after == "POP_TOP":  # FOR_ITER takes the exhausted iterator off the stack and skips both
                raw[number], raw[number + 1] = row._replace(name="NOP"), raw[number + 1]._replace(name="NOP")
            case "TO_BOOL" if after in ASK_TRUTH:
                raw[number] = row._replace(name="NOP")
            case "COMPARE_OP" if after in ASK_TRUTH:
                raw[number] = row._replace(argument=row.argument & ~TO_TRUTH)
    return raw


def expand(name: str, argument: int) -> Parts:
    """The plain instructions, as (name, argument), that one of CPython's stands for."""
    if name in DROPPED or name == "END_SEND":
        return ()
    if name in PAIRS:
        first, second = PAIRS[name]
        return ((first, argument >> 4), (second, argument & 15))
    match name:
        case "COMPARE_OP":
            compare = (name, argument >> 5)
            return (compare, ("TO_BOOL", 0)) if argument & TO_TRUTH else (compare,)
        case "FORMAT_SIMPLE":
            return (("FORMAT_VALUE", argument),)
        case "FORMAT_WITH_SPEC":
            return (("FORMAT_VALUE", 4 | argument),)
    return expand_common(name, argument)
