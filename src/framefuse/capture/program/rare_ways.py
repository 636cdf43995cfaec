"""Finds the branches of which one way is seldom taken: it only raises, or it warns.

This is a guess that costs no result: each run checks the way, and a call that takes the other runs eagerly.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from framefuse.capture.program.versions.listing import ENDS, JUMPS, Instruction

BRANCHES = frozenset(("POP_JUMP_IF_FALSE", "POP_JUMP_IF_TRUE"))
CHECKED = 6  # instructions between the name of a check and the comparison
NAMED = frozenset(("LOAD_GLOBAL", "LOAD_ATTR", "LOAD_METHOD"))


def expected_ways(
    instructions: Sequence[Instruction], index: Mapping[int, int], names: Sequence[str]
) -> dict[int, bool]:
    """The branches of which one way is rare, by their steps, with the truth that goes the other way."""
    rare = _rare(instructions, index, names)
    expected = {}
    for step, instruction in enumerate(instructions):
        if instruction.name in BRANCHES and instruction.target is not None:
            there, on = index[instruction.target] in rare, step + 1 in rare
            if there is not on:
                expected[step] = (instruction.name == "POP_JUMP_IF_TRUE") is not there
        elif instruction.name == "COMPARE_OP" and _is_checked(instructions, step, names):
            expected[step + 1] = True
    return expected


def _is_checked(instructions: Sequence[Instruction], step: int, names: Sequence[str]) -> bool:
    """Whether a comparison is what a check is handed (``torch._check(n <= 16)``), which raises where it is false."""
    for name, argument, _, _ in reversed(instructions[max(step - CHECKED, 0) : step]):
        if name in NAMED and names[argument >> (name == "LOAD_GLOBAL")] == "_check":
            return True
        if not name.startswith("LOAD_"):
            return False
    return False


def _rare(instructions: Sequence[Instruction], index: Mapping[int, int], names: Sequence[str]) -> frozenset[int]:
    """The steps from which the program raises or warns whichever way it goes, in no loop."""
    rare: dict[int, bool] = {}
    for step in range(len(instructions) - 1, -1, -1):
        name, argument, _, target = instructions[step]
        there = target is not None and rare.get(index[target], False)
        if name in JUMPS:
            rare[step] = there
        elif name in ENDS or name == "YIELD_VALUE":
            rare[step] = name == "RAISE_VARARGS"
        elif name in NAMED and _warns(names[argument >> (name == "LOAD_GLOBAL")]):
            rare[step] = True
        else:
            rare[step] = rare.get(step + 1, False) and (there or target is None)
    return frozenset(step for step, is_rare in rare.items() if is_rare)


def _warns(name: str) -> bool:
    """Whether a function of this name tells of what should not be: ``warnings.warn``, ``logger.warning_once``."""
    return "warn" in name.lower() and not name.endswith("warnings")
