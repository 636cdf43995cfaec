"""Puts the interpreter of one recording together: the machine with its services, and the handlers of all opcodes."""

from __future__ import annotations

from framefuse.capture import known, opcodes
from framefuse.capture.callables import (
    attribute_functions,
    autocast,
    checkpoints,
    chosen_kernels,
    class_making,
    compiler_questions,
    constructors,
    control_flow,
    conversions,
    copy_functions,
    custom_functions,
    data_parallel,
    flexible_attention,
    frame_readers,
    fused_steps,
    heaps,
    hook_handles,
    identities,
    index_modes,
    module_calls,
    number_functions,
    quiet,
    random_calls,
    scans,
    slot_methods,
    specials,
    subclasses,
    text_functions,
    transforms,
    triton_kernels,
    waiting,
    warning_filters,
)
from framefuse.capture.callables.native_calls import Natives
from framefuse.capture.callables.operations import Operations
from framefuse.capture.exits import buckets
from framefuse.capture.exits.machine_exits import Exits
from framefuse.capture.interp.attribute_writes import AttributeWrites
from framefuse.capture.interp.attributes import Attributes
from framefuse.capture.interp.calls import Calls
from framefuse.capture.interp.generators import Generators
from framefuse.capture.interp.machine import Machine
from framefuse.capture.opcodes import operator_functions
from framefuse.capture.program import itertools_equivalents
from framefuse.capture.program.services import Breaks
from framefuse.capture.recording.recorder import Recorder


def interpreter(recorder: Recorder, points: Breaks | None, divides: bool = False) -> Machine:
    """A machine that records for ``recorder``; it breaks at the ``points``, and without these where it must end.
    ``divides`` says that it breaks there at what torch has for control flow all the same.
    """
    machine = Machine(recorder)
    triton_kernels.meet()
    machine.exits = Exits(machine, points, divides)
    machine.attributes = Attributes(machine)
    machine.attribute_writes = AttributeWrites(machine)
    machine.operations = Operations(machine)
    machine.natives = Natives(machine)
    machine.calls = Calls(machine)
    machine.generators = Generators(machine)
    return machine


# What fills the tables of handlers and of callables.
ROWS = (
    attribute_functions,
    autocast,
    buckets,
    checkpoints,
    chosen_kernels,
    class_making,
    constructors,
    compiler_questions,
    control_flow,
    conversions,
    copy_functions,
    custom_functions,
    data_parallel,
    flexible_attention,
    frame_readers,
    fused_steps,
    random_calls,
    heaps,
    hook_handles,
    identities,
    index_modes,
    itertools_equivalents,
    known,
    module_calls,
    number_functions,
    operator_functions,
    quiet,
    scans,
    slot_methods,
    specials,
    subclasses,
    text_functions,
    transforms,
    waiting,
    warning_filters,
    opcodes,
)
