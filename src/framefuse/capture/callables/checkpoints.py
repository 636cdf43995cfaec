"""Records what torch's ``checkpoint`` runs as a region of the trace, whose values backward computes again."""

from __future__ import annotations

import functools

import torch
from torch.utils import checkpoint as torchs

from framefuse.capture.callables.selective_checkpoints import Contexts, is_silent
from framefuse.capture.callables.transforms import CALL
from framefuse.capture.facts.nested_numbers import strip
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import special
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.capture.recording.recorder import Recorder
from framefuse.capture.recording.saved import Checkpoint
from framefuse.ir.facts import Source
from framefuse.ir.own_class import is_a
from framefuse.ir.trace import refs
from framefuse.ir.values import Arguments, Function, Keywords, Value

OPTIONS = ("use_reentrant", "context_fn", "determinism_check", "debug", "early_stop")
NAME = "torch.utils.checkpoint.checkpoint"


@special(torchs.checkpoint)
def _checkpoint(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """A call of ``checkpoint``. It is torch's own here, by which backward calls the function again; later calls compute
    its values again in their backward graphs. MISSING for a form that this does not stand for.

    The reentrant variant differs in what it refuses and in results that do not require grad: where these are, the next
    recording leaves the call to torch.
    """
    recorder = machine.recorder
    if not recorder.alive or recorder.transformed is not None or not args or not _is_known(recorder, args, kwargs):
        return MISSING
    breakable = machine.exits.breakable()
    reentrant, keeps = kwargs["use_reentrant"], kwargs.get("preserve_rng_state", True)
    own = {key: value for key, value in kwargs.items() if key not in (*OPTIONS, "preserve_rng_state")}
    forward = _Forward(machine, args[0], args[1:], own)
    contexts = Contexts(recorder, kwargs.get("context_fn", torchs.noop_context_fn))
    outer, before = recorder.region, _Before(recorder)
    recorder.region = outer or len(recorder.entrances.checkpoints) + 1
    random, around, asked = _RandomStates(args) if reentrant else None, recorder.reentrant, recorder.asked_reentrant
    recorder.reentrant, recorder.asked_reentrant = around or (reentrant and torch.is_grad_enabled()), False
    machine.exits.sealed += 1
    try:
        with recorder.unseen():
            value = torchs.checkpoint(
                forward, *strip(args[1:]), use_reentrant=False, preserve_rng_state=keeps, context_fn=contexts,
                **strip(own),
            )  # fmt: skip
    finally:
        machine.exits.sealed -= 1
        recorder.region = outer
        recorder.reentrant, asks = around, recorder.asked_reentrant
        recorder.asked_reentrant |= asked
        forward.close()
    contexts.leave(outer)
    if recorder.alive:
        again = before.happens_again(keeps)
        if again is None and reentrant and torch.is_grad_enabled() and not _requires_grad(value, args):
            again = "a result that requires no grad"
            value = _as_reentrant(value, args)
        if again is None and asks:
            again = "which asks whether gradients are on"
        if again is not None:
            recorder.kill("transform", f"{NAME} ({again})")
    if asks and reentrant:
        value = _by_torch(args[0], value, strip(args[1:]), keeps, random)
    if breakable and not recorder.alive:  # the next recording leaves the whole call to torch
        inner = f" ({recorder.reason.code})" if recorder.reason is not None else ""
        machine.exits.learn_step(frame, "transform", f"{NAME}{inner}")
    frame.stack.append(value)
    return None


@special(torch.is_grad_enabled)
def _gradients_on(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
    """They are off while eager runs the function of a reentrant checkpoint forward; torch's own code, such as that of
    ``no_grad``, is to put back what it found.
    """
    recorder, own = machine.recorder, str(frame.globals.get("__name__", "")).startswith("torch.")
    if args or kwargs or own or not recorder.reentrant or not torch.is_grad_enabled():
        return MISSING
    recorder.asked_reentrant = True
    frame.stack.append(False)
    return None


class _RandomStates:
    """The states of the generators of the CPU and of the devices where tensors among ``args`` lie, as they are now."""

    def __init__(self, args: Arguments) -> None:
        self.state, self.devices = torch.get_rng_state(), torchs.get_device_states(*strip(args))

    def restore(self) -> None:
        torch.set_rng_state(self.state)
        torchs.set_device_states(*self.devices)


def _by_torch(function: Function, value: Value, args: Arguments, keeps: bool, random: _RandomStates | None) -> Value:
    """What torch's reentrant checkpoint gives for a ``function`` that gave ``value`` from these ``random`` states: its
    second run may go another way, so that the gradients of the first are not those of eager.
    """
    parts = value if type(value) is tuple else (value,)
    given = tuple(part.detach() if is_a(part, torch.Tensor) else part for part in parts)
    waiting = [given if type(value) is tuple else given[0]]
    after = _RandomStates(args)
    if random is not None:
        random.restore()
    try:
        return torchs.checkpoint(
            lambda *args: waiting.pop() if waiting else function(*args),
            *args, use_reentrant=True, preserve_rng_state=keeps,
        )  # fmt: skip
    finally:
        after.restore()


def _is_known(recorder: Recorder, args: Arguments, kwargs: Keywords) -> bool:
    """Whether the call computes what its function does, and nothing warns or logs."""
    reentrant = kwargs.get("use_reentrant")
    if type(reentrant) is not bool or type(kwargs.get("preserve_rng_state", True)) is not bool:
        return False
    selects = kwargs.get("context_fn", torchs.noop_context_fn)
    if kwargs.get("debug"):
        return False
    if selects is not torchs.noop_context_fn and (reentrant or not is_silent(selects)):
        return False
    if not reentrant:
        return True
    if any(key not in (*OPTIONS, "preserve_rng_state") for key in kwargs):
        return False
    return any(recorder.requires_grad(part) for part in args[1:] if is_a(part, torch.Tensor))


def _requires_grad(value: Value, args: Arguments) -> bool:
    """Whether all tensors that the reentrant variant gives are its own and require grad."""
    parts = [part for part in (value if type(value) is tuple else (value,)) if part is not None]
    given = {id(part) for part in args}
    return all(is_a(part, torch.Tensor) and part.requires_grad and id(part) not in given for part in parts)


class _Requires(torch.autograd.Function):
    """A tensor as one that requires grad and leads to nothing, as the reentrant variant gives it."""

    @staticmethod
    def forward(ctx: Value, value: torch.Tensor, argument: torch.Tensor) -> torch.Tensor:
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Value, *gradients: torch.Tensor) -> tuple[None, None]:
        return None, None


def _as_reentrant(value: Value, args: Arguments) -> Value:
    """What the reentrant variant gives where its function gave ``value``."""
    argument = next(part for part in args if is_a(part, torch.Tensor) and part.requires_grad)

    def given(part: Value) -> Value:
        floats = is_a(part, torch.Tensor) and (part.is_floating_point() or part.is_complex())
        return _Requires.apply(part, argument) if floats and not part.requires_grad else part

    return tuple(map(given, value)) if type(value) is tuple else given(value)


class _Forward:
    """The function of a checkpoint: the first call of it runs in frames, any later one is torch's, in backward."""

    def __init__(self, machine: Machine, function: Function, args: Arguments, kwargs: Keywords) -> None:
        self.function = function
        self.first = functools.partial(_run, machine, function, args, kwargs)
        self.ran = False

    def __call__(self, *args: Value, **kwargs: Value) -> Value:
        if self.ran:
            return self.function(*args, **kwargs)
        self.ran = True
        return self.first()

    def close(self) -> None:
        """Lets go of the recording."""
        self.first = functools.partial(self.function)


def _run(machine: Machine, function: Function, args: Arguments, kwargs: Keywords) -> Value:
    recorder = machine.recorder
    tensors = tuple(part for part in (*args, *kwargs.values()) if is_a(part, torch.Tensor))
    checkpoint = Checkpoint(torch.autograd._get_sequence_nr(), tensors)  # type: ignore[attr-defined]
    recorder.entrances.checkpoints.append(checkpoint)
    recorder.paused, calls = False, len(recorder.calls)
    try:
        return machine.call_nested(CALL, (function, args, kwargs))
    finally:
        recorder.paused = True
        checkpoint.last = torch.autograd._get_sequence_nr()  # type: ignore[attr-defined]
        read = {value for call in recorder.calls[calls:] for value in refs((call.args, call.kwargs))}
        checkpoint.read = frozenset(recorder.metas[value].storage for value in read)


class _Before:
    """What a recording had before a checkpoint, by which to tell what running its function twice would do twice."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.calls, self.values = len(recorder.calls), len(recorder.metas)
        self.writes = self._writes()

    def _writes(self) -> list[tuple[int, int]]:
        return [(id(write), id(write.value)) for write in self.recorder.journal.writes]

    def happens_again(self, keeps: bool) -> str | None:
        """What eager's second run, in backward, changes beside gradients, in words; ``keeps`` says that it draws the
        numbers of the first one.
        """
        recorder = self.recorder
        if self.writes != self._writes():
            return "which writes to an object"
        earlier = {recorder.metas[number].storage for number in (*range(self.values), *recorder.inputs)}
        for call in recorder.calls[self.calls :]:
            if any(recorder.metas[number].storage in earlier for number in call.written):
                return "which writes to a tensor"
            if call.random and (not keeps or any(is_a(value, Source) for value in call.kwargs.values())):
                return "which draws other numbers again"
        return None
