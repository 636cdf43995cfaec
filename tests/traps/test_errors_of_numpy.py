"""What NumPy does about an overflow or a division by zero, which a program sets for a thread, is that of the call."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tests.traps.trap import Trap, hold

ONE, ZERO, LARGE = np.float32(1), np.float32(0), np.float32(1e38)
PROGRAMS = {
    "operator": lambda: ONE / ZERO,
    "power": lambda: LARGE**2,
    "function": lambda: np.log(ZERO),
    "function of two": lambda: np.divide(1.0, 0.0),
    "function of a sequence": lambda: np.prod([1e300, 1e300]),
    "method": lambda: LARGE.astype(np.float16),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_errors_of_numpy(name: str) -> None:
    read = PROGRAMS[name]

    def step(x: Any) -> Any:
        try:
            value = 2 if abs(float(read())) > 1 else 3
        except FloatingPointError:
            value = 5
        return x * value

    def program(compiled: Any) -> Any:
        f = compiled(lambda x: step(x))
        for state in ("ignore", "raise", "ignore", "raise"):
            with np.errstate(all=state):
                for number in (1, 2):
                    yield f(torch.full((3,), float(number)))

    hold(Trap(program, 2, 3))
