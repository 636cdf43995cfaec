"""What a program sets in place of torch's own functions, or of what classes hold for their objects, is called and read
where torch's own Python code, or the library's, looks it up.
"""

from __future__ import annotations

import dataclasses
import enum
import types
from typing import Any

import pytest
import torch
from tests.traps.trap import Trap, hold
from torch import nn

F = nn.functional
WEIGHT = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
ATTENTION = nn.MultiheadAttention(3, 1).requires_grad_(False)


def scaled(own: Any, factor: float) -> Any:
    """What gives torch's own result times a factor."""
    return lambda *args, **kwargs: own(*args, **kwargs) * factor


# Who calls it, the holder of what is called, its name, and what stands there in a call.
REPLACED: dict[str, tuple[Any, Any, str, Any]] = {
    "layer_norm": (lambda x: F.layer_norm(x, (3,)), torch, "layer_norm", scaled),
    "layer norm as a module": (nn.LayerNorm(3), torch, "layer_norm", scaled),
    "linear in attention": (lambda x: ATTENTION(x[None], x[None], x[None])[0], F, "linear", scaled),
    "softmax": (lambda x: F.softmax(x, 0), torch.Tensor, "softmax", scaled),
    "product of a parameter": (lambda x: WEIGHT * x, nn.Parameter, "__mul__", scaled),
    "size": (lambda x: x * x.size(0), torch.Tensor, "size", scaled),
    "length": (lambda x: x * len(x), torch.Tensor, "__len__", scaled),
    "item": (lambda x: x * x[0].item(), torch.Tensor, "item", scaled),
    "shape": (lambda x: x * x.shape[0], torch.Tensor, "shape", lambda own, factor: property(lambda x: (factor,))),
}


@pytest.mark.parametrize("name", REPLACED)
def test_functions_of_torch_replaced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, holder, attribute, make = REPLACED[name]
    own = getattr(holder, attribute)

    def program(compiled: Any) -> Any:
        f = compiled(lambda x: function(x))
        for factor in (None, 3, None, 5):
            with monkeypatch.context() as patch:
                if factor is not None:
                    patch.setattr(holder, attribute, make(own, factor))
                for number in (1, 2, 3):
                    yield f(torch.tensor([1.0, number, 7.0]))

    hold(Trap(program, 8, 4))


def test_a_module_gets_a_class_with_a_property() -> None:
    def program(compiled: Any) -> Any:
        module: Any = types.ModuleType("settings")
        module.rate = 1.0
        f = compiled(lambda x: x * module.rate)
        for factor in (None, 3.0, 5.0):
            if factor is not None:
                kind = type("Settings", (types.ModuleType,), {"rate": property(lambda _, factor=factor: factor)})
                module.__class__ = kind
            for number in (1, 2, 3):
                yield f(torch.full((3,), float(number)))

    hold(Trap(program, 6, 4))


def test_a_field_of_a_dataclass_is_edited() -> None:
    def program(compiled: Any) -> Any:
        @dataclasses.dataclass
        class Rates:
            first: float = 1.0
            second: float = 2.0

        f = compiled(lambda x: x * sum(each.default for each in dataclasses.fields(Rates)))
        for factor in (1.0, 3.0, 5.0):
            Rates.__dataclass_fields__["first"].default = factor
            for number in (1, 2, 3):
                yield f(torch.full((3,), float(number)))

    hold(Trap(program, 6, 4))


def test_a_member_of_an_enumeration_is_edited() -> None:
    def program(compiled: Any) -> Any:
        class Kind(enum.Enum):
            SLOW = 1.0

        f = compiled(lambda x: (x + Kind.SLOW.value, Kind.SLOW.name))
        for factor in (1.0, 3.0, 5.0):
            Kind.SLOW._value_ = factor
            Kind.SLOW._name_ = f"SLOW{factor}"
            for number in (1, 2, 3):
                yield f(torch.full((3,), float(number)))

    hold(Trap(program, 6, 4))
