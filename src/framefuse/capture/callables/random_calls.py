"""Records what sets or reads the state of a random number generator, in its place among the calls that draw."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from framefuse.capture.facts.numbers import Integer
from framefuse.capture.interp.machine import Machine, Special
from framefuse.capture.interp.registry import special
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.capture.recording import element_reads
from framefuse.capture.recording.recorder import Recorder
from framefuse.ir.elements import initial_seed_word, seed_word
from framefuse.ir.values import Arguments, Function, Keywords, Value

STATES = ("manual_seed", "get_state", "set_state")


def _record(recorder: Recorder, function: Function, name: str, args: Arguments) -> Value:
    with torch._C.DisableTorchFunction():  # no function mode sees these calls
        return recorder.run(function, name, args, {})


@dataclass(frozen=True, slots=True)
class Seeding:
    """A function of torch that seeds the generators of all devices in use: ``devices`` are those, whose states a run
    that declines puts back.
    """

    function: Function
    devices: tuple[str, ...]

    def __call__(self, *args: Value) -> Value:
        return self.function(*args)

    @property
    def __name__(self) -> str:
        return str(getattr(self.function, "__name__", "seed"))


def _seeding(function: Function) -> Seeding:
    count = torch.cuda.device_count() if torch.cuda.is_initialized() else 0
    return Seeding(function, ("cpu", *(f"cuda:{number}" for number in range(count))))


def _settled(machine: Machine, kwargs: Keywords) -> bool:
    """Whether a call with these arguments can be a call of the trace."""
    return bool(machine.recorder.alive) and not kwargs


@special(torch.random.manual_seed)
def _manual_seed(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    if not _settled(machine, kwargs) or len(args) != 1 or type(args[0]) not in (int, Integer):
        return MISSING
    _record(machine.recorder, _seeding(torch.random.manual_seed), "manual_seed", args)
    machine.recorder.sources.root(torch.default_generator)
    frame.stack.append(torch.default_generator)
    return None


def _state(name: str, count: int) -> Special:
    def call(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        if not _settled(machine, kwargs) or len(args) != count:
            return MISSING
        frame.stack.append(_record(machine.recorder, getattr(torch, name), name, args))
        return None

    return call


@special(torch.seed)
def _seed(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    return _word(machine, frame, args, kwargs, _seeding(seed_word))


@special(torch.initial_seed)
def _initial_seed(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    return _word(machine, frame, args, kwargs, initial_seed_word) if torch.random.initial_seed() < 2**63 else MISSING


def _word(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords, function: Function) -> Outcome:
    if not _settled(machine, kwargs) or args or not machine.exits.reads_elements:
        return MISSING
    frame.stack.append(element_reads.word(machine.recorder, function, (), True))
    machine.exits.watch()
    return None


special(torch.get_rng_state)(_state("get_rng_state", 0))
special(torch.set_rng_state)(_state("set_rng_state", 1))


def records_generator(recorder: Recorder, target: Value, args: Arguments, kwargs: Keywords) -> bool:
    """Whether a method of a generator is a call of the trace: of one that existed before the call."""
    name = target.__name__
    if name not in STATES or kwargs or len(args) != (name != "get_state"):
        return False
    whole = name != "manual_seed" or type(args[0]) in (int, Integer)
    return whole and recorder.sources.source_of(target.__self__) is not None


def of_generator(recorder: Recorder, target: Value, args: Arguments, kwargs: Keywords) -> Value:
    """Calls such a method."""
    name, holder = target.__name__, target.__self__
    return _record(recorder, getattr(torch.Generator, name), name, (holder, *args))
