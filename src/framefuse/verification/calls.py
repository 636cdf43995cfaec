"""Compares the torch calls that eager makes with those that framefuse captured, one by one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.fx
from torch.overrides import TorchFunctionMode

from framefuse.ir.values import Arguments, Function, Keywords, Value
from framefuse.verification.case import Case
from framefuse.verification.nearness import unlike
from framefuse.verification.runs import Program, shown
from framefuse.verification.shrink import computed


@dataclass(frozen=True, slots=True)
class Call:
    """A torch call and what it gave."""

    name: str
    value: Value


class _Log(TorchFunctionMode):
    """Keeps each torch call that gives tensors, with copies of these."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[Call] = []

    def __torch_function__(
        self, func: Function, types: Sequence[type], args: Arguments = (), kwargs: Keywords | None = None
    ) -> Value:
        found = func(*args, **(kwargs or {}))
        if isinstance(found, (torch.Tensor, tuple, list)):
            self.calls.append(Call(_name(func), shown(found)))
        return found


def _name(target: Value) -> str:
    name = target if isinstance(target, str) else getattr(target, "__name__", "")
    return name.strip("_")


def eager_calls(program: Program) -> list[Call]:
    """The torch calls that the program makes under eager."""
    log = _Log()
    with log:
        program.run(program.function)
    return log.calls


def first_other(program: Program, cases: Sequence[Case]) -> tuple[str, str]:
    """The name and line of the first captured call that gives another value than eager's; empty where all give its."""
    log, place = eager_calls(program), 0
    for node, value in _captured(cases):
        name = _name(node.target)
        found = next((number for number in range(place, len(log)) if log[number].name == name), None)
        if found is None:  # eager's own functions call it out of sight
            continue
        place = found + 1
        if unlike(shown(value), log[found].value, None):
            return name, str(node.meta.get("stack_trace") or "")
    return "", ""


def _captured(cases: Sequence[Case]) -> Iterator[tuple[torch.fx.Node, Value]]:
    for case in cases:
        values = computed(case)
        for node in case.graph.nodes:
            if node.op in ("call_function", "call_method") and "stack_trace" in node.meta:
                yield node, values[node.name]

