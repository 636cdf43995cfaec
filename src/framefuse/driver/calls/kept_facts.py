"""Writes the facts of a kept call and what explains its guards, and reads them when somebody asks: a hit does not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from framefuse.driver.calls.descriptions import Made
from framefuse.driver.calls.objects import Reading, Writing
from framefuse.driver.programs.records import read, written
from framefuse.guards.registers import Reason
from framefuse.ir.facts import Fact
from framefuse.ir.values import Value


def written_rest(facts: Sequence[Fact], reasons: Sequence[object], writing: Writing) -> bytes:
    """The facts, and what explains the instructions of a guard program."""
    return written([[_portable(each, writing) for each in part] for part in (facts, reasons)], writing.described)


def _portable(part: object, writing: Writing) -> Value:
    """A fact as it is written: of what is held by identity the object is named, of code nothing stands there."""
    if isinstance(part, Reason):
        return (part.source, writing.held(part.value))
    if not isinstance(part, Fact):
        return part
    if part.kind == "is":
        return Fact(part.source, "is", writing.held(part.value), part.line)
    return Fact(part.source, "code", None, part.line) if part.kind == "code" else part


class Rest:
    """What :func:`written_rest` has written, read once."""

    def __init__(self, data: bytes, reading: Reading, made: Mapping[int, Made]) -> None:
        self._unread: tuple[bytes, Reading, Mapping[int, Made]] | None = (data, reading, made)
        self._facts: tuple[Fact, ...] = ()
        self._reasons: tuple[object, ...] = ()

    def facts(self) -> tuple[Fact, ...]:
        """The facts of the call."""
        self._read()
        return self._facts

    def reasons(self) -> tuple[object, ...]:
        """What explains the instructions of its guards."""
        self._read()
        return self._reasons

    def _read(self) -> None:
        unread = self._unread
        if unread is None:
            return
        data, reading, made = unread
        facts, reasons = read(data, reading.stranger)
        codes = {id(reading.source(number)): code for number, code in made.items()}
        self._facts = tuple([_with_code(fact, codes) for fact in facts])
        self._reasons = tuple([Reason(*each) if type(each) is tuple else each for each in reasons])
        self._unread = None


def _with_code(fact: Fact, codes: Mapping[int, Made]) -> Fact:
    return Fact(fact.source, "code", codes[id(fact.source)], fact.line) if fact.kind == "code" else fact


class Late(Sequence[Value]):
    """Facts or reasons that are read for the first that asks for one."""

    def __init__(self, read: Callable[[], Sequence[Value]]) -> None:
        self._read = read

    def __len__(self) -> int:
        return len(self._read())

    def __getitem__(self, index: Value) -> Value:
        return self._read()[index]

    def __iter__(self) -> Iterator[Value]:
        return iter(self._read())
