"""Records calls of operators and whole functions whose results hold numbers: these are run-time numbers."""

from __future__ import annotations

from typing import TypeAlias

import torch

from framefuse.capture.recording import element_reads
from framefuse.capture.recording.call_names import call_name
from framefuse.capture.recording.recorder import Recorder
from framefuse.ir.elements import float_word, integer_word
from framefuse.ir.number_tensors import WithNumbers, number_kind
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Function, Keywords, Value

Operator: TypeAlias = torch._ops.OpOverload | torch._ops.OpOverloadPacket
NUMBERS = ("int", "float")  # as the schema of an operator names them
TENSORS = ("Tensor", "List[Tensor]", "Optional[Tensor]")


def gives_numbers(operator: Operator) -> bool:
    """Whether an operator gives more than tensors. Torch's own that give no tensor tell of one, and are answered: a
    name such as ``add`` has overloads of that kind, for Python's numbers, beside those for tensors.
    """
    return any(kind not in TENSORS for kind in _given(operator))


def is_recorded(recorder: Recorder, operator: Operator) -> bool:
    """Whether all that an operator gives can be held in tensors, and numbers be read from these."""
    machine = recorder.machine
    reads = recorder.symbolic and recorder.transformed is None and machine is not None and machine.exits.reads_elements
    return reads and all(kind in NUMBERS + TENSORS for kind in _given(operator))


def call(recorder: Recorder, function: Function, name: str, args: Arguments, kwargs: Keywords) -> Value:
    """The result of ``function``, run for real and recorded."""
    with torch._C.DisableTorchFunction():
        given = recorder.run(WithNumbers(function), name, args, kwargs)
    return _read(recorder, given)


def _read(recorder: Recorder, value: Value) -> Value:
    """What a result is for the program: a number in the place of each tensor that stands for one."""
    kind = number_kind(value) if is_a(value, torch.Tensor) else None
    if kind is not None:
        if not recorder.symbolic or (recorder.machine is not None and not recorder.machine.exits.reads_elements):
            recorder.kill("native-call", "A call that gives a number")
        number = element_reads.word(recorder, integer_word if kind is int else float_word, (value,), kind is int)
        if recorder.alive and recorder.machine is not None:
            recorder.machine.exits.watch()
        return number
    if type(value) is bool:  # an outcome that may be another at each call
        recorder.kill("native-call", "A call that gives a truth value")
    if type(value) in (list, tuple):
        return type(value)([_read(recorder, part) for part in value])
    return value


def _given(operator: Operator) -> list[str]:
    """What an operator gives, by the schemas of all of its overloads; of torch's own, those that give a tensor."""
    if is_a(operator, torch._ops.OpOverload):
        schemas = [operator._schema]
    else:
        schemas = [getattr(operator, name)._schema for name in operator.overloads()]
    given = [[str(part.type) for part in schema.returns] for schema in schemas]
    if "::" not in call_name(operator):
        given = [kinds for kinds in given if any(kind in TENSORS for kind in kinds)]
    return [kind for kinds in given for kind in kinds]
