"""Turns a code object and a step into the local variables that may still be read from there on."""

from __future__ import annotations

from types import CodeType

from framefuse.capture.program.decoded import Code
from framefuse.capture.program.versions import CURRENT
from framefuse.capture.program.versions.listing import ENDS, JUMPS

READS = frozenset(("LOAD_FAST", "DELETE_FAST", "LOAD_FAST_AND_CLEAR"))
# Functions that look at the variables of their caller.
LOOKERS = frozenset(("locals", "vars", "dir", "eval", "exec", "super", "_getframe", "stack", "currentframe"))

_known: dict[CodeType, list[int]] = {}
KNOWN_LIMIT = 1_000


def live(code: Code, step: int, targets: tuple[int, ...] = ()) -> int:
    """The slots that may be read by the instructions from ``step`` on, by handlers of the one before, or from the steps
    ``targets``, as bits.
    """
    slots = _known.get(code.code)
    if slots is None:
        if len(_known) >= KNOWN_LIMIT:
            _known.clear()
        slots = _known[code.code] = _solve(code)
    bits = slots[step]
    for target in targets:
        bits |= slots[target]
    if step > 0:
        for target in _handlers(code, step - 1):
            bits |= slots[target]
    return bits


def _handlers(code: Code, step: int) -> list[int]:
    offset = code.offsets[step]
    return [code.index[row.target] for row in code.handlers if row.start <= offset < row.end]


def _solve(code: Code) -> list[int]:
    """Live slots before each step, by iteration of the backward data-flow equations to their fixed point."""
    assert CURRENT is not None
    instructions = CURRENT.instructions(code.code)[0]
    count = len(instructions)
    everything = (1 << len(code.local_names)) - 1
    if LOOKERS & set(code.names):
        return [everything] * (count + 1)
    following: list[list[int]] = []
    for step, instruction in enumerate(instructions):
        after = _handlers(code, step)
        if instruction.target is not None:
            after.append(code.index[instruction.target])
        if instruction.name not in JUMPS and instruction.name not in ENDS:
            after.append(step + 1)
        following.append(after)
    slots = [0] * (count + 1)
    changed = True
    while changed:
        changed = False
        for step in range(count - 1, -1, -1):
            name, slot = instructions[step].name, instructions[step].argument
            bits = 0
            for there in following[step]:
                bits |= slots[there]
            if name == "STORE_FAST":
                bits &= ~(1 << slot)
            elif name in READS:
                bits |= 1 << slot
            if bits != slots[step]:
                slots[step] = bits
                changed = True
    return slots
