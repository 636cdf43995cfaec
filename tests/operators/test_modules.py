"""Modules of torch's own database, drawn from all that it holds: compiled calls give what eager's give, with gradients
of two orders, buffers and errors. What is drawn is the same in each run. With FRAMEFUSE_TEST_DEVICE=cuda they run on
a GPU.
"""

import os
import random
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.unit.differential import changed, tensors
from torch.testing._internal.common_modules import ModuleInfo, module_db

import framefuse
from framefuse.api import compiled_function
from framefuse.verification.nearness import FACTOR, unlike

DEVICE = os.environ.get("FRAMEFUSE_TEST_DEVICE", "cpu")
# Where eager divides by 6 on a GPU it multiplies by a float32 of its inverse, also what is float64.
ROUNDED = dict.fromkeys(("nn.Hardswish", "nn.Hardsigmoid"), FACTOR if DEVICE == "cpu" else 1e10)
ROUNDED["nn.BCELoss"] = 1e8  # eager's second derivative adds 1e-12 to what it divides by
PART = 2  # of the inputs of a module, in training and in evaluation
LETTERS = sorted({info.formatted_name.removeprefix("nn_")[0] for info in module_db})


def weighted(values: list[torch.Tensor]) -> torch.Tensor:
    """A loss in which no two elements count alike."""
    parts = [value.abs() if value.is_complex() else value for value in values]
    weights = [torch.linspace(1, 2, part.numel(), dtype=part.dtype, device=DEVICE).view(part.shape) for part in parts]
    return sum((part * weight).sum() for part, weight in zip(parts, weights, strict=True))


def told(value: torch.Tensor | None) -> Any:
    """What of a tensor must be eager's. Of no elements nothing leads on, or may as well."""
    if value is None:
        return None
    return (value.detach().clone(), value.requires_grad) if value.numel() else tuple(value.shape)


def step(module: torch.nn.Module, call: Any, args: Any, kwargs: Any, number: int) -> Iterator[Any]:
    """The results of a call, gradients of all leaves, of inputs or of parameters, those of these, and the buffers."""
    results = list(tensors(call(*args, **kwargs)))
    yield [(told(value), value.stride()) for value in results]
    inputs, parameters = list(tensors((args, kwargs))), list(module.parameters())
    leaves = [leaf for leaf in (*inputs, *parameters) if leaf.requires_grad]
    asked = [[*inputs, *parameters], inputs, parameters][number % 3]
    asked = [leaf for leaf in asked if leaf.requires_grad] or leaves
    slopes = [value for value in results if value.requires_grad and value.numel()]
    if slopes:
        gradients = torch.autograd.grad(weighted(slopes), asked, create_graph=True, allow_unused=True)
        yield [told(value) for value in gradients]
        slopes = [value * value for value in gradients if value is not None and value.requires_grad]
        if slopes:
            yield [told(value) for value in torch.autograd.grad(weighted(slopes), leaves, allow_unused=True)]
    yield [buffer.clone() for buffer in module.buffers()]


def outcome(module: torch.nn.Module, call: Any, given: tuple[Any, Any], number: int) -> list[Any]:
    """What the call with this number gives: other values than those of the others, of the same sizes."""

    def fresh(value: torch.Tensor) -> torch.Tensor:
        if not value.is_floating_point() or value.layout is not torch.strided:
            return value.detach().clone()
        scale = 0.7 + 0.3 * torch.rand(value.shape, generator=seed, dtype=value.dtype).to(value.device)
        return (value.detach() * scale).requires_grad_(value.requires_grad)

    seed = torch.Generator().manual_seed(number)
    args, kwargs = changed(given[0], fresh), changed(given[1], fresh)
    torch.manual_seed(number)
    found: list[Any] = []
    try:
        found.extend(step(module, call, args, kwargs, number))
    except Exception as error:
        found.append((type(error).__name__, str(error)))
    return found


def differs(info: ModuleInfo, example: Any, training: bool) -> str:
    """How compiled calls of a module differ from eager's; empty where they do not."""
    given = example.forward_input.args, example.forward_input.kwargs
    made = example.constructor_input
    calls = []
    for compiled in (False, True):
        torch.manual_seed(1)
        module = info.module_cls(*made.args, **made.kwargs).to(DEVICE, torch.float64).train(training)
        call = framefuse.compile(module) if compiled else module
        calls.append((module, call))
    for number in range(4):
        eager, mine = (outcome(module, call, given, number) for module, call in calls)
        text = unlike(mine, eager, None, factor=ROUNDED.get(info.name, FACTOR))
        if text:
            return f"{info.name}{made.args}{made.kwargs} {training=}, call {number}: {text}"
    hits = compiled_function(calls[1][1]).dispatch.hits
    return "" if hits or type(eager[0]) is tuple else f"{info.name}{made.args}{made.kwargs}: no compiled code ran"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("letter", LETTERS)
def test_modules_named_with(letter: str) -> None:
    draw, found = random.Random(letter), []
    for info in module_db:
        for training in (True, False):
            if info.formatted_name.removeprefix("nn_")[0] != letter:
                continue
            torch.manual_seed(0)
            examples = info.module_inputs_func(
                info, device=DEVICE, dtype=torch.float64, requires_grad=True, training=training
            )
            whole = [example for example in examples if example.forward_input is not None]
            for example in draw.sample(whole, min(PART, len(whole))):
                found.append(differs(info, example, training))
    assert found and not any(found), "\n".join(filter(None, found))
