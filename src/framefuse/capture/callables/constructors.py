"""Records constructors that function modes do not see (``torch.LongTensor``, ``nn.Buffer``) as calls that they do."""

from __future__ import annotations

import torch

from framefuse.capture.facts.numbers import Float, Integer
from framefuse.capture.interp.machine import Machine, Special
from framefuse.capture.interp.registry import special
from framefuse.capture.program import equivalents
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.ir.values import Arguments, Keywords, Value

WHOLE = frozenset((int, Integer))
NUMBERS = WHOLE | {bool, float, Float}


def _constructor(dtype: torch.dtype | None) -> Special:
    def construct(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        """Pushes the tensor that is made of sizes, or of numbers in lists; MISSING for anything else."""
        if kwargs or not machine.recorder.alive:
            return MISSING
        options: dict[str, Value] = {"dtype": dtype or torch.get_default_dtype(), "device": "cpu"}
        first = args[0] if args else 0
        if len(args) == 1 and type(first) is torch.Size:
            tensor = torch.empty(first, **options)
        elif all(type(part) in WHOLE for part in args):
            tensor = torch.empty(args or (0,), **options)
        elif len(args) == 1 and type(first) in (list, tuple) and _all_numbers(first):
            tensor = torch.tensor(first, **options)
        else:
            return MISSING
        frame.stack.append(tensor)
        return None

    return construct


def _all_numbers(value: Value) -> bool:
    if type(value) in (list, tuple):
        return all(map(_all_numbers, value))
    return type(value) in NUMBERS


@special(torch.nn.Buffer)
def _buffer(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """A tensor with marks, as ``nn.Buffer`` makes it."""
    if not machine.recorder.alive:
        return MISSING
    return machine.calls.call(frame, equivalents.buffer_, args, kwargs)


# By constructor. Those of accelerators and of sparse tensors are left to torch.
special(torch.Tensor)(_constructor(None))
for _kind in [kind for kind in vars(torch).values() if type(kind) is type(torch.LongTensor)]:
    special(_kind)(_constructor(_kind.dtype))
