"""Records torch's functional collectives: what starts one where the program does, and the wait for it before the first
call that reads what it gives.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from framefuse.capture.recording.recorder import Recorder
from framefuse.ir.collectives import Started
from framefuse.ir.values import Arguments, Keywords, Value

SPACE = "_c10d_functional"
WAIT = "wait_tensor"
STARTING = frozenset(
    ("all_reduce", "broadcast", "all_gather_into_tensor", "reduce_scatter_tensor", "all_to_all_single")
)


WAITING = frozenset(("wait", "trigger_wait"))  # methods of the tensor that eager gives


def waited(self: torch.Tensor) -> torch.Tensor:
    """The tensor itself, once the collective has filled it; runs in frames."""
    filled: torch.Tensor = torch.ops._c10d_functional.wait_tensor(self)
    return filled


def name_of(target: Value) -> str | None:
    """The name of a functional collective, or of the wait for one; None for anything else."""
    if isinstance(target, torch._ops.OpOverload):
        target = target._overloadpacket
    if not isinstance(target, torch._ops.OpOverloadPacket):
        return None
    space, _, name = target._qualified_op_name.partition("::")
    return name if space == SPACE else None


def is_one(target: Value) -> bool:
    """Whether a callable is one of these operators, those that write their operand included."""
    return name_of(target) is not None


def may_record(recorder: Recorder, target: Value, args: Arguments, kwargs: Keywords) -> bool:
    """Whether a call of such an operator can be a call of the trace; else it is an opaque step."""
    name = name_of(target)
    if kwargs or not args or any(map(_is_complex, args)):
        return False
    if name == WAIT:
        return recorder.waits.knows(recorder.numbers.get(id(args[0])))
    return name in STARTING and isinstance(args[-1], str)


def _is_complex(value: Value) -> bool:
    return isinstance(value, torch.Tensor) and value.is_complex()


def call(recorder: Recorder, target: Value, args: Arguments) -> Value:
    """Runs one for real and records it."""
    with torch._C.DisableTorchFunction():
        return _waited(recorder, target, args[0]) if name_of(target) == WAIT else _started(recorder, target, args)


def _started(recorder: Recorder, target: Value, args: Arguments) -> Value:
    name = name_of(target)
    assert name is not None
    value = recorder.run(target, name, args, {})
    if recorder.alive:
        recorder.calls[-1] = replace(recorder.calls[-1], target=Started(name))
        recorder.waits.begin(recorder.numbers[id(value)])
    return value


def _waited(recorder: Recorder, target: Value, tensor: torch.Tensor) -> torch.Tensor:
    """Waits for real. In the trace the wait stands before the first call that reads the tensor. The program gets the
    tensor itself, which it may write as it may what eager's functions give.
    """
    target(tensor.detach())
    recorder.waits.give(tensor)
    number = recorder.numbers.get(id(tensor))
    if number is not None:
        recorder.waits.ask(number)
    return tensor
