"""Runs a small program twice, eagerly and compiled, and says how what it saw differs and how often code was compiled.

A program is a generator function of one argument, ``compiled``, which turns a function or module into its compiled form
(or, in the eager run, gives it back). Whatever it yields is compared: results, state after the calls, errors.
"""

from __future__ import annotations

import copy
import functools
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from tests.unit.differential import compared

import framefuse
from framefuse.api import compiled_function
from framefuse.errors import Reason

Program = Callable[[Any], Iterator[Any]]


@dataclass(frozen=True)
class Trap:
    """A program with what its compiled run may cost: at most ``traces`` compilations, at least ``hits`` calls that ran
    compiled code. While recordings end for one of the reasons in ``waits``, only the results are held to eager;
    ``fails`` says what is wrong with a program that is known to differ.
    """

    program: Program
    traces: int
    hits: int
    waits: tuple[str, ...] = ()
    fails: str = ""
    options: dict[str, Any] = field(default_factory=dict)


class Table(list[Trap]):
    """The programs of one file."""

    def trap(
        self, traces: int, hits: int, waits: str = "", fails: str = "", **options: Any
    ) -> Callable[[Program], Program]:
        """Adds the decorated program to the table."""

        def add(program: Program) -> Program:
            self.append(Trap(program, traces, hits, tuple(waits.split()), fails, options))
            return program

        return add

    def parametrize(self) -> Any:
        """The decorator of the test that runs the table."""
        rows = [pytest.param(trap, id=trap.program.__name__, marks=_marks(trap)) for trap in self]
        return pytest.mark.parametrize("trap", rows)


def _marks(trap: Trap) -> list[Any]:
    return [pytest.mark.xfail(strict=True, reason=trap.fails)] if trap.fails else []


class Compiler:
    """``framefuse.compile`` that counts what its functions compile and hit, and keeps none of them alive."""

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.made: list[weakref.ref[Any]] = []
        self.counts: dict[int, tuple[int, int, list[Reason]]] = {}

    def __call__(self, model: Any) -> Any:
        made = framefuse.compile(model, **self.options)
        self.made.append(weakref.ref(compiled_function(made.func if type(made) is functools.partial else made)))
        return made

    def count(self) -> None:
        """Reads the counters of the functions that live: traces, calls that ran compiled code, reasons for none."""
        for number, there in enumerate(self.made):
            record = there()
            if record is not None:
                hits = record.dispatch.hits
                stretches = sum(1 for point in record.resume_dispatches if point.bound.made)  # no compilations more
                self.counts[number] = (len(record.products) - stretches, hits, list(record.reasons))


def outcome(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """The result of the call, or the type and text of its exception."""
    try:
        return function(*args, **kwargs)
    except Exception as error:
        return ("raised", type(error).__qualname__, str(error))


def seen(value: Any) -> Any:
    """What a program saw, as it was then: later writes do not reach it. Dimensions of size 1 have no stride to see."""
    if isinstance(value, torch.Tensor):
        plain = value.detach()
        strides = [stride for size, stride in zip(value.shape, value.stride(), strict=True) if size > 1]
        kept = plain if plain.is_meta else plain.clone(memory_format=torch.contiguous_format)
        return (kept, strides, value.requires_grad)
    if type(value) in (list, tuple):
        return type(value)(seen(part) for part in value)
    if type(value) is dict:
        return {key: seen(part) for key, part in value.items()}
    return value if type(value) in (int, float, bool, str, complex, type(None)) else copy.copy(value)


def run(program: Program, compiled: Any) -> list[Any]:
    """All that the program yields, under a fixed seed."""
    torch.manual_seed(11)
    found = []
    for value in program(compiled):
        found.append(seen(value))
        if isinstance(compiled, Compiler):
            compiled.count()
    return found


def hold(trap: Trap) -> None:
    """Fails unless the compiled run saw what the eager run saw, within the stated number of compilations."""
    expected = run(trap.program, lambda model: model)
    compiler = Compiler(trap.options)
    found = run(trap.program, compiler)
    assert len(found) == len(expected)
    for number, (mine, eager) in enumerate(zip(found, expected, strict=True)):
        problem = compared(mine, eager, True)
        assert not problem, f"yield {number}: {problem}"
    traces, hits = (sum(count[place] for count in compiler.counts.values()) for place in (0, 1))
    reasons = [reason for count in compiler.counts.values() for reason in count[2]]
    if trap.waits and any(reason.code in trap.waits for reason in reasons):
        return
    told = f"{traces} traces, {hits} hits; {'; '.join(map(str, reasons))}"
    assert traces <= trap.traces, told
    assert hits >= trap.hits, told
