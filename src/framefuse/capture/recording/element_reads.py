"""Reads the element of a tensor during a recording: as a run-time number, or as an outcome that each run checks."""

from __future__ import annotations

import torch

from framefuse.capture.facts.numbers import floating, integer
from framefuse.capture.recording import call_names
from framefuse.capture.recording.recorder import Recorder
from framefuse.ir import elements
from framefuse.ir.numbers import Real, float_of_bits
from framefuse.ir.values import Arguments, Function


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
        value = tensor.detach().item()
        if whole and not abs(value) < 2**63:  # also what is no number
            return None
    if recorder.machine is not None and not recorder.machine.exits.reads_elements:
        return None
    return word(recorder, elements.integer_word if whole else elements.float_word, (tensor,), whole)


def decided(recorder: Recorder, tensor: torch.Tensor) -> bool:
    """The truth of a tensor of one element, which the call checks at each run: another outcome is eager's."""
    with torch._C.DisableTorchFunction():
        outcome = bool(tensor)
        recorder.run(elements.decided, "decided", (tensor, outcome), {})
    return outcome


def expected(recorder: Recorder, tensor: torch.Tensor, outcome: bool, branch: str) -> bool | None:
    """The truth of a tensor at a ``branch`` where the program raises for another than ``outcome``: each run checks it.
    None where it is another, may well be, or cannot be checked here: the eager run makes the calls before it again.
    """
    machine = recorder.machine
    if machine is None or not machine.exits.reads_elements or branch in elements.EITHER:
        return None
    if not recorder.symbolic or recorder.transformed is not None or recorder.region or recorder.number(tensor) is None:
        return None
    if any(size != 1 for size in recorder.sizes.of(tensor)) or any(map(call_names.is_once, recorder.calls)):
        return None
    with torch._C.DisableTorchFunction():
        if bool(tensor) is not outcome:
            return None
        recorder.run(elements.decided, "decided", (tensor, outcome, branch), {})
    return outcome if recorder.alive else None


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
        recorder.readers[symbol] = machine.exits.place() if machine is not None else None
        if whole:
            return integer(bits, symbol.expr, relations)
        return floating(float_of_bits(bits), Real("bits", (symbol.expr,)), relations)
    return bits if whole else float_of_bits(bits)
