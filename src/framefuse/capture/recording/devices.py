"""What a recording must know of accelerators: generators, and which device is meant by its type alone."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from framefuse.capture.facts.questions import QUESTIONS, answered
from framefuse.capture.facts.sources import Sources
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value


def random_states() -> tuple[torch.Tensor, ...]:
    """The states of all generators from which a call may draw that names none."""
    states = [torch.default_generator.get_state()]
    if torch.cuda.is_initialized():
        states += [generator.get_state() for generator in torch.cuda.default_generators]
    return tuple(states)


def drew(before: tuple[torch.Tensor, ...]) -> bool:
    """Whether a generator is not as it was; so it counts where the call itself began to use an accelerator."""
    now = random_states()
    return len(now) != len(before) or not all(map(torch.equal, before, now))


CURRENT = QUESTIONS[torch.cuda.current_device]


def by_type(
    sources: Sources, name: str, arguments: Iterable[Value], operands: Iterable[torch.Tensor], results: Iterable[str]
) -> None:
    """A call whose outcome depends on which CUDA device is the current one leaves a fact that says so: one that names
    no device, or a device by its type alone.
    """
    if not torch.cuda.is_initialized():
        return
    unnamed = any(_by_type(value) for value in arguments) or name == "cuda"
    on_cuda = any(place.startswith("cuda") for place in results)
    if on_cuda or unnamed:
        if unnamed or not any(operand.is_cuda for operand in operands):
            answered(sources, CURRENT)


def _by_type(value: Value) -> bool:
    if is_a(value, torch.device):
        return value.type == "cuda" and value.index is None
    return is_a(value, str) and value == "cuda"
