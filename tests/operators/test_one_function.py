"""One compiled function of an operator is called with all its samples, one behind the other: what one call compiled
must not serve another whose sizes, numbers or words are different ones.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch
from tests.operators.calls import LEFT_OUT, NO_VALUES, Arguments, differ, leaves, program, ran, widened
from tests.unit.operator_database import OPERATORS

import framefuse
from framefuse.api import compiled_function

LETTERS = sorted({op.name.removeprefix("nn.functional.")[0] for op in OPERATORS})
SAMPLES = 10


def problem(op: Any) -> tuple[str, int]:
    """How a call differs from eager's, and how many ran compiled code."""
    torch.manual_seed(0)
    drawn = islice(op.sample_inputs_func(op, "cpu", torch.float32, op.supports_autograd), 4 * SAMPLES)
    samples: list[Arguments] = [((sample.input, *sample.args), dict(sample.kwargs)) for sample in drawn]
    samples = samples[:: max(1, len(samples) // SAMPLES)]
    call = program(op.op)
    compiled = framefuse.compile(call)
    state = compiled_function(compiled)
    for turn, given in enumerate(samples * 2):
        eager = ran(call, leaves(given), op.supports_autograd)
        mine = ran(compiled, leaves(given), op.supports_autograd, eager)
        exact = ran(call, widened(given), op.supports_autograd, eager) if eager.error is None else None
        text = differ(mine, eager, exact, op.name not in NO_VALUES)
        if text:
            return f"{op.name} {op.variant_test_name} call {turn}: {text}", 0
    return "", state.dispatch.hits


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("letter", LETTERS)
def test_one_function_serves_all_samples(letter: str) -> None:
    found = [
        problem(op)
        for op in OPERATORS
        if op.name.removeprefix("nn.functional.")[0] == letter
        and op.name not in LEFT_OUT
        and torch.float32 in op.supported_dtypes("cpu")
    ]
    assert not any(text for text, _ in found), "\n".join(text for text, _ in found if text)
    operators = len(found)
    assert operators < 8 or sum(hits > 0 for _, hits in found) >= 0.4 * operators, [hits for _, hits in found]
