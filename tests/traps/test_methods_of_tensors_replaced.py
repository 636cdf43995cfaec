"""Methods and properties of tensors that the program sets anew, around torch's own, are called once as under eager."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.traps.trap import Trap, hold

READS = {
    "exp": lambda x: x.exp(),
    "sum": lambda x: x.sum(),
    "to": lambda x: x.to(torch.float64),
    "mul_": lambda x: x.clone().mul_(2),
    "__getitem__": lambda x: x[0] + 1,
    "unflatten": lambda x: x.unflatten(0, (2, 1)),
    "T": lambda x: x.T + 1,
}


def around(own: Any, factor: float) -> Any:
    """What calls torch's own and scales what it gives."""
    if callable(own):
        return lambda *args: own(*args) * factor
    return property(lambda x: own.__get__(x) * factor)


@pytest.fixture(params=["", "cpu"])
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """A default device: torch's mode for it calls what the program has set once more, as the function of that name."""
    torch.set_default_device(request.param or None)
    yield request.param
    torch.set_default_device(None)


@pytest.mark.parametrize("name", READS)
def test_methods_of_tensors_replaced(name: str, device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = getattr(torch.Tensor, name)

    def program(compiled: Any) -> Any:
        f = compiled(lambda x: READS[name](x))
        for factor in (None, 3.0, 5.0):
            with monkeypatch.context() as patch:
                if factor is not None:
                    patch.setattr(torch.Tensor, name, around(own, factor))
                for number in (1, 2):
                    yield f(torch.full((2, 3), float(number)))

    hold(Trap(program, 3, 2, waits=("torch-mode",) if device else ()))
