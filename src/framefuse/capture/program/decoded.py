"""Turns a code object into the list of (handler, argument) pairs that the interpreter walks, decoded once."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from types import CodeType
from typing import TypeAlias

from framefuse.capture.program.markers import Outcome
from framefuse.capture.program.rare_ways import expected_ways
from framefuse.capture.program.versions import CURRENT
from framefuse.capture.program.versions.listing import exception_table, local_names
from framefuse.ir.source import Line

# What executes an instruction: it is given the machine, the frame and the argument.
Step: TypeAlias = Callable[..., Outcome]
# Handlers by opcode name; the modules of capture.opcodes fill it.
HANDLERS: dict[str, Step] = {}

COROUTINE_FLAGS = inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE


GROWING = frozenset("append appendleft extend insert add update setdefault pop popleft popitem remove discard".split())


def unknown(*given: object) -> Outcome:
    """Stands for an opcode without a handler: code that has one is never run here."""
    raise AssertionError("an opcode without a handler")


class Code:
    """A decoded code object; ``steps`` pairs handlers with arguments, jump arguments are indices into it."""

    __slots__ = (
        "code", "steps", "offsets", "index", "handlers", "names", "constants", "local_names", "free_start",
        "missing", "stores", "grows", "expected", "watched", "stub", "standing", "_lines",
    )  # fmt: skip

    def __init__(self, code: CodeType) -> None:
        assert CURRENT is not None
        self.code = code
        instructions, self.index = CURRENT.instructions(code)
        self.missing = next((i.name for i in instructions if i.name not in HANDLERS), None)
        if self.missing is None and code.co_flags & COROUTINE_FLAGS:
            self.missing = "coroutine"
        self.steps: list[tuple[Step, int]] = []
        for instruction in instructions:
            target = instruction.target
            argument = instruction.argument if target is None else self.index[target]
            self.steps.append((HANDLERS.get(instruction.name, unknown), argument))
        self.offsets = [instruction.offset for instruction in instructions]
        self.handlers = exception_table(code)
        self.names, self.constants = code.co_names, code.co_consts
        self.local_names = local_names(code)
        self.free_start = len(self.local_names) - len(code.co_freevars)
        # Names that this code writes: a number read from such a place is a run-time value, not a constant.
        self.stores = frozenset(
            self.names[i.argument] for i in instructions if i.name in ("STORE_ATTR", "STORE_GLOBAL")
        ) | frozenset(self.local_names[i.argument] for i in instructions if i.name == "STORE_DEREF")
        # Whether this code may change the length of a container or an entry of it.
        self.grows = any(i.name == "STORE_SUBSCR" for i in instructions) or bool(GROWING & set(self.names))
        self.expected = expected_ways(instructions, self.index, self.names)
        self.watched: Code | None = None  # with handlers that remember what they find
        self.stub: CodeType | None = None  # stands for this code in tracebacks
        self.standing: dict[int, CodeType] = {}  # stand for it in calls that look at the stack, by step
        self._lines: list[Line] = []

    def line(self, step: int) -> Line:
        """The place of a step in the user's program."""
        lines = self._lines or self._read_lines()
        return lines[step] if 0 <= step < len(lines) else lines[min(max(step, 0), len(lines) - 1)]

    def branch(self, step: int) -> str:
        """The name of the branch at a step."""
        return f"{self.code.co_filename}:{self.code.co_firstlineno}:{self.code.co_qualname}:{step}"

    def line_number(self, step: int) -> int:
        """The source line of a step, 1-based."""
        return self.line(step).line

    def _read_lines(self) -> list[Line]:
        """The place of every step."""
        code = self.code
        table = [(start, line) for start, _, line in code.co_lines() if line is not None]
        places: dict[int, Line] = {}
        at, current = 0, code.co_firstlineno
        for offset in self.offsets:
            while at < len(table) and table[at][0] <= offset:
                current = table[at][1]
                at += 1
            if current not in places:
                places[current] = Line(code.co_filename, current, code.co_qualname)
            self._lines.append(places[current])
        return self._lines


# A model of transformers runs some hundred code objects; beyond this many the oldest decoded one goes.
DECODED_LIMIT = 2_000
_decoded: OrderedDict[int, Code] = OrderedDict()


def decode(code: CodeType) -> Code:
    """The decoded form of ``code``; the newest ones are kept, with their code objects."""
    decoded = _decoded.get(id(code))
    if decoded is not None and decoded.code is code:
        return decoded
    decoded = _decoded[id(code)] = Code(code)
    if len(_decoded) > DECODED_LIMIT:
        with suppress(KeyError):  # another thread may have dropped it
            _decoded.popitem(last=False)
    return decoded
