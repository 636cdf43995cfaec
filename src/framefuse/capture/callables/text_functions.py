"""Records methods of tracked strings by their answer alone: a fact on the answer is enough."""

from __future__ import annotations

from framefuse.capture.facts.texts import ASKING, Text
from framefuse.capture.interp.machine import Machine, Special
from framefuse.capture.interp.registry import special
from framefuse.capture.program.frame import Frame
from framefuse.ir.values import Arguments, Function, Keywords


def _as_special(method: Function) -> Special:
    def ask(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> None:
        frame.stack.append(method(*args, **kwargs))

    return ask


for _name in ASKING:
    special(getattr(Text, _name))(_as_special(getattr(Text, _name)))
