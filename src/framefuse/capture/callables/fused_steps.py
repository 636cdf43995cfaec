"""Records torch's fused optimizer steps: step numbers as run-time floats, and what they decide by numbers as flags."""

from __future__ import annotations

from collections.abc import Callable

import torch

from framefuse.capture.facts.numbers import TRACKED
from framefuse.capture.interp.machine import Machine, Special
from framefuse.capture.interp.registry import special
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.markers import MISSING, Outcome
from framefuse.capture.recording import element_reads
from framefuse.ir.values import Arguments, Function, Keywords

Tensors = list[torch.Tensor]
Counts = list[float]  # of the steps that were done


def _adam(function: Function) -> Callable[..., None]:
    def step(
        params: Tensors,
        grads: Tensors,
        averages: Tensors,
        squares: Tensors,
        largest: Tensors,
        counts: Counts,
        decays: bool,
        **options: float,
    ) -> None:
        steps = [torch.tensor(count, dtype=torch.float32, device="cpu") for count in counts]
        function(params, grads, averages, squares, largest, steps, **options)

    return step


def _sgd(function: Function) -> Callable[..., None]:
    def step(
        params: Tensors, grads: Tensors, buffers: Tensors, counts: Counts, decays: bool, moves: bool, **options: float
    ) -> None:
        function(params, grads, buffers, is_first_step=False, grad_scale=None, found_inf=None, **options)

    return step


def _step(function: Function, update: Callable[..., None], lists: int, counted: bool) -> Special:
    name = function.__name__

    def call(machine: Machine, frame: Frame, args: Arguments, kwargs: Keywords) -> Outcome:
        recorder = machine.recorder
        options = dict(kwargs)
        for switch in ("grad_scale", "found_inf", "is_first_step"):
            if options.pop(switch, None) not in (None, False):
                return MISSING
        numbers = {key: value for key, value in options.items() if type(value) is not bool}
        if not recorder.alive or len(args) != lists or any(type(v) not in NUMBERS for v in numbers.values()):
            return MISSING
        if counted and any(count.device.type != "cpu" for count in args[-1]):  # the call is given numbers of its own
            return MISSING
        counts = [element_reads.read(recorder, count) for count in args[-1]] if counted else []
        if None in counts or not recorder.alive or any(tensor.dtype not in FLOATS for tensor in args[0]):
            return MISSING
        given = (*(args[:-1] if counted else args), counts)
        options["decays"] = bool(options["weight_decay"] != 0)
        if "momentum" in options:
            options["moves"] = bool(options["momentum"] != 0)
        with torch._C.DisableTorchFunction():
            recorder.run(update, name, given, options)
        frame.stack.append(None)
        return None

    return call


NUMBERS = (int, float, *TRACKED)
FLOATS = (torch.float32, torch.float64)
special(torch._fused_adam_)(_step(torch._fused_adam_, _adam(torch._fused_adam_), 6, True))
special(torch._fused_adamw_)(_step(torch._fused_adamw_, _adam(torch._fused_adamw_), 6, True))
special(torch._fused_sgd_)(_step(torch._fused_sgd_, _sgd(torch._fused_sgd_), 3, False))
