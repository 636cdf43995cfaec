"""Turns a CPython 3.11 code object into plain instructions: jumps by one name whatever their direction."""

from __future__ import annotations

from types import CodeType

from framefuse.capture.program.versions.listing import DROPPED, Instruction, Parts, plain_instructions, raw_instructions


def instructions(code: CodeType) -> tuple[list[Instruction], dict[int, int]]:
    """The plain instructions of ``code`` and the index of the one that starts at each byte offset."""
    return plain_instructions(raw_instructions(code), expand)


def expand(name: str, argument: int) -> Parts:
    """The plain instructions, as (name, argument), that one of CPython's stands for."""
    if name in DROPPED:
        return ()
    if name.startswith("POP_JUMP_"):
        name = name.replace("FORWARD_", "").replace("BACKWARD_", "")
    return ((name, argument),)
