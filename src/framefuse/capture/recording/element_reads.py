"""Reads the element of a tensor during a recording: as a run-time number, or as an outcome that each run checks."""

from __future__ import annotations

import math

import torch

from framefuse.capture.facts.nested_numbers import pin_nested
from framefuse.capture.facts.numbers import NUMBERS, TRACKED, Integer, bare, floating, form_of, integer
from framefuse.capture.program.frame import Frame
from framefuse.capture.recording import call_names
from framefuse.capture.recording.recorder import Recorder
from framefuse.ir import elements
from framefuse.ir.numbers import Real, float_of_bits
from framefuse.ir.values import Arguments, Function, Value

LISTED = 64  # elements of a tensor that a whole graph reads one by one


def read(recorder: Recorder, tensor: torch.Tensor, whole: bool | None = None) -> float | None:
    """The element of a tensor as a run-time number, an int where it is ``whole`` (None: as it lies there); None where
    reading it must be a step.
    """
    number = recorder.number(tensor) if recorder.symbolic or recorder.moves_floats else None
    if number is None or not recorder.alive:
        return None
    if any(size != 1 for size in recorder.sizes.of(tensor)):  # of one with more, later, torch raises
        return None
    form = recorder.scalars.form(number) if not whole else None
    with torch._C.DisableTorchFunction():
        if form is not None:
            return floating(float(tensor.item()), form, recorder.relations)
        if not recorder.symbolic:
            return None
        if tensor.dtype is torch.bool or tensor.is_complex():
            return None
        if whole is None:
            whole = not tensor.is_floating_point()
        elif tensor.requires_grad:  # torch warns of it
            return None
        kept = recorder.scalars.whole(number, tensor) if whole else None
        if kept is not None:
            return kept
        value = tensor.detach().item()
        if whole and not abs(value) < 2**63:  # also what is no number
            return None
    if recorder.machine is not None and not recorder.machine.exits.reads_elements:
        return None
    return word(recorder, elements.integer_word if whole else elements.float_word, (tensor,), whole)


def listed(recorder: Recorder, tensor: torch.Tensor) -> list[Value] | None:
    """``tensor.tolist()`` of a few ints as run-time numbers, where it may be no step; None where it must be one."""
    if type(tensor) is not torch.Tensor or tensor.is_floating_point() or tensor.is_complex() or not tensor.ndim:
        return None
    if tensor.dtype is torch.bool or recorder.number(tensor) is None or not recorder.symbolic:
        return None
    sizes = [bare(size) for size in tensor.shape]
    if math.prod(sizes) > LISTED:
        return None
    for size in tensor.shape:
        pin_nested(size)
    return [
        listed(recorder, part) if part.ndim else word(recorder, elements.integer_word, (part,), True)
        for part in tensor.unbind(0)
    ]


def decided(recorder: Recorder, tensor: torch.Tensor) -> bool:
    """The truth of a tensor of one element, which the call checks at each run: another outcome is eager's."""
    with torch._C.DisableTorchFunction():
        outcome = bool(tensor)
        recorder.run(elements.decided, "decided", (tensor, outcome), {})
    return outcome


def expected(recorder: Recorder, frame: Frame, step: int, tensor: torch.Tensor) -> bool | None:
    """The truth of a tensor at the branch at ``step``, of which the other way is rare: each run checks it. None where
    it is the other, may well be, or cannot be checked here: the eager run makes the calls before it again.
    """
    if not _may_check(recorder, frame, step):
        made = recorder.numbers.get(id(tensor)) if recorder.symbolic else None
        return None if made is None else recorder.scalars.truth(made)
    if recorder.number(tensor) is None:
        return None
    if any(size != 1 for size in recorder.sizes.of(tensor)):
        return None
    outcome = frame.code.expected[step]
    with torch._C.DisableTorchFunction():
        if bool(tensor) is not outcome:
            return None
        recorder.run(elements.decided, "decided", (tensor, outcome, frame.code.branch(step)), {})
    return outcome if recorder.alive else None


def known(recorder: Recorder, value: Value) -> int | None:
    """An int, or the element of a tensor that guards read from what modules keep; None for anything else."""
    if type(value) in (int, Integer):
        whole: int = value
        return whole
    number = recorder.numbers.get(id(value)) if type(value) is torch.Tensor and recorder.symbolic else None
    return None if number is None else recorder.scalars.whole(number, value)


def all_known(recorder: Recorder, values: Arguments) -> list[int] | None:
    """What :func:`known` says of each, where it says all and one lies in a tensor."""
    if not any(type(value) is torch.Tensor for value in values):
        return None
    numbers = [known(recorder, value) for value in values]
    found = [number for number in numbers if number is not None]
    return found if len(found) == len(values) else None


def contained(
    recorder: Recorder, frame: Frame, step: int, tensor: torch.Tensor, value: Value, negated: bool
) -> bool | None:
    """As :func:`expected`, of ``value in tensor``."""
    if type(value) not in NUMBERS or not _may_check(recorder, frame, step) or recorder.number(tensor) is None:
        return None
    found = (tensor != value).all() if negated else (tensor == value).any()
    return expected(recorder, frame, step, found)


def compared(recorder: Recorder, frame: Frame, step: int, test: str, *numbers: float) -> bool | None:
    """As :func:`expected`, of a test of ``numbers`` of which some are known only while the trace runs."""
    if not recorder.readers or not _may_check(recorder, frame, step):
        return None
    relations = recorder.relations
    read = {symbol for number in numbers if type(number) in TRACKED for symbol in form_of(number).symbols}
    if relations.data_symbols.isdisjoint(read) or not read & relations.data_symbols <= relations.element_symbols:
        return None
    outcome = frame.code.expected[step]
    if elements.TESTS[test](*map(bare, numbers)) is not outcome:
        return None
    recorder.run(elements.compared, "compared", (test, outcome, frame.code.branch(step), *numbers), {})
    return outcome if recorder.alive else None


def _may_check(recorder: Recorder, frame: Frame, step: int) -> bool:
    """Whether one way of a branch is seldom taken, and a run may be given up here."""
    machine = recorder.machine
    if machine is None or not machine.exits.reads_elements or not recorder.symbolic or not recorder.alive:
        return False
    if step not in frame.code.expected:
        return False
    if machine.exits.points is not None and frame.code.branch(step) in elements.EITHER:  # else it can be no break
        return False
    return recorder.transformed is None and not recorder.region and not any(map(call_names.is_once, recorder.calls))


def word(recorder: Recorder, function: Function, args: Arguments, whole: bool) -> float:
    """The number that the element of ``function(*args)`` is: known only while the trace runs."""
    with torch._C.DisableTorchFunction():
        tensor = recorder.run(function, function.__name__, args, {})
        bits = int(tensor.item())
    if recorder.alive:
        relations, machine = recorder.relations, recorder.machine
        symbol = relations.new_symbol("m", bits)
        recorder.sizes.symbols[recorder.numbers[id(tensor)], elements.ELEMENT] = symbol
        relations.data_symbols.add(symbol)
        relations.element_symbols.add(symbol)
        relations.element_types[symbol] = args[0].dtype if args else tensor.dtype
        recorder.readers[symbol] = machine.exits.place() if machine is not None else None
        if whole:
            return integer(bits, symbol.expr, relations)
        return floating(float_of_bits(bits), Real("bits", (symbol.expr,)), relations)
    return bits if whole else float_of_bits(bits)
