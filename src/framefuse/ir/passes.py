"""Runs a list of named passes over a value: times each, verifies what it gave, and keeps what it changed as text."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Pass:
    """A row of a list: ``run(value, setting)`` takes what the pass before it gave and returns a value of ``stage``, the
    same object where it changes nothing. It changes nothing in place.
    """

    name: str
    stage: str
    run: Callable[[Any, Any], Any]


@dataclass(frozen=True, slots=True)
class UserPass(Pass):
    """A pass of a user. With ``check`` what it gives is run beside what it got; ``version`` stands for what it does in
    the keys of kept programs: with None nothing is kept.
    """

    check: bool = True
    version: str | None = None


@dataclass(frozen=True, slots=True)
class Stage:
    """What is known of the values between passes: ``verify(value, name)`` raises CompilerBug for one that breaks a rule
    after the pass of that name, ``text(value, before)`` prints it and what became of the value ``before`` the pass,
    which may be of another stage.
    """

    verify: Callable[[Any, str], None]
    text: Callable[[Any, Any], str]


@dataclass(frozen=True, slots=True)
class Step:
    """One pass that ran: the ``seconds`` that it took, whether it ``changed`` the value, and the value's ``text`` where
    it did and somebody asked.
    """

    name: str
    stage: str
    seconds: float
    changed: bool
    text: str = ""


def placed(
    passes: Sequence[Pass], row: Pass, *, before: str | None = None, after: str | None = None
) -> tuple[Pass, ...]:
    """The list with one more pass, right before or after the one of that name, else at the end of its stage. Raises
    ValueError for a name that is taken or unknown, and where a value of another stage would stand there.
    """
    names = [each.name for each in passes]
    known = ", ".join(names)
    if row.name in names:
        raise ValueError(f"there is a pass {row.name!r} already")
    if before is not None and after is not None:
        raise ValueError("a pass stands before one or after one; give one of both")
    anchor = before if before is not None else after
    if anchor is not None and anchor not in names:
        raise ValueError(f"there is no pass {anchor!r}. Choose from: {known or 'none is there yet'}")
    if not passes:
        return (row,)
    if anchor is None:
        place = max((n + 1 for n, each in enumerate(passes) if each.stage == row.stage), default=0)
    else:
        place = names.index(anchor) + (after is not None)
    stage = passes[max(place - 1, 0)].stage  # a list begins with a value of its first pass's stage
    if stage != row.stage:
        raise ValueError(f"{row.name!r} takes a value of stage {row.stage!r}; there it would meet one of {stage!r}")
    return (*passes[:place], row, *passes[place:])


def run(
    passes: Sequence[Pass],
    value: Any,
    setting: Any,
    stages: Mapping[str, Stage],
    *,
    check: bool = False,
    dump: bool = False,
) -> tuple[Any, tuple[Step, ...]]:
    """The value behind the last pass, and what each of them did. With ``check`` every changed value is verified, with
    ``dump`` it is printed.
    """
    steps: list[Step] = []
    for each in passes:
        start = time.perf_counter()
        result = each.run(value, setting)
        seconds = time.perf_counter() - start
        changed = result is not value
        if check and changed:
            stages[each.stage].verify(result, each.name)
        text = stages[each.stage].text(result, value) if dump and changed else ""
        steps.append(Step(each.name, each.stage, seconds, changed, text))
        value = result
    return value, tuple(steps)
