"""A compiled function is pickled by its name where it has one, reaches spawned workers, and copies are the function."""

from __future__ import annotations

import copy
import functools
import inspect
import io
import multiprocessing
import pickle
import typing
import weakref
from typing import Any

import pytest
import torch
from torch import nn

import framefuse
from framefuse.api import compiled_function


@framefuse.compile
def scaled(x: torch.Tensor, n: int = 2) -> torch.Tensor:
    """Scales."""
    return x * n + 1


def tripled(x: Any) -> Any:
    return x * 3


fast = framefuse.compile(tripled)


class Holder:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    @framefuse.compile
    def method(self, x: Any) -> Any:
        return x * self.factor

    @staticmethod
    @framefuse.compile
    def static(x: Any) -> Any:
        return x * 5

    def plain(self, x: Any) -> Any:
        return x * self.factor

    def __call__(self, x: Any) -> Any:
        return x + self.factor


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.linear(x))


class Samples(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> Any:
        return scaled(torch.full((2,), float(index)))


@framefuse.compile
def stacked(parts: Any) -> Any:
    return torch.stack(parts) * 2


def again(value: Any) -> Any:
    return pickle.loads(pickle.dumps(value))


X = torch.arange(3.0)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_name_gives_the_very_object(protocol: int) -> None:
    for function in (scaled, fast, Holder.static):
        assert pickle.loads(pickle.dumps(function, protocol)) is function
    assert again(tripled) is tripled


def test_what_has_no_name_is_compiled_again() -> None:
    for model in (framefuse.compile(tripled), framefuse.compile(Holder(4).plain), framefuse.compile(Holder(4))):
        made = again(model)
        assert made is not model and compiled_function(made) is not None
        assert torch.equal(made(X), model(X))
    with pytest.raises((AttributeError, pickle.PicklingError), match="local"):
        pickle.dumps(framefuse.compile(lambda x: x))


def test_methods_partials_and_holders() -> None:
    holder = Holder(7)
    for call in (holder.method, again(holder.method), again(holder).method):
        assert torch.equal(call(X), X * 7)
    assert torch.equal(again(functools.partial(scaled, n=5))(X), X * 5 + 1)


def test_copies_of_a_function_are_that_function() -> None:
    assert copy.copy(scaled) is scaled and copy.deepcopy([scaled])[0] is scaled
    assert weakref.ref(scaled)() is scaled and {scaled: 1}[scaled] == 1


def test_copies_of_a_module_are_compiled_and_apart() -> None:
    model = framefuse.compile(Net())
    expected = model(X)
    buffer = io.BytesIO()
    torch.save(model, buffer)
    buffer.seek(0)
    for made in (copy.deepcopy(model), again(model), torch.load(buffer, weights_only=False)):
        assert type(made).__name__ == "Net" and compiled_function(made) is not None
        assert torch.equal(made(X), expected)
        with torch.no_grad():
            made.linear.weight.zero_()
    assert torch.equal(model(X), expected)
    Net().load_state_dict(model.state_dict())


def test_it_tells_what_the_function_tells() -> None:
    assert str(inspect.signature(scaled)) == "(x: 'torch.Tensor', n: 'int' = 2) -> 'torch.Tensor'"
    assert typing.get_type_hints(scaled) == {"x": torch.Tensor, "n": int, "return": torch.Tensor}
    assert (scaled.__name__, scaled.__module__, scaled.__doc__) == ("scaled", __name__, "Scales.")

    @functools.wraps(scaled)
    def wrapper(*args: Any) -> Any:
        return scaled(*args)

    assert wrapper.__name__ == "scaled" and inspect.signature(wrapper) == inspect.signature(scaled)
    assert torch.equal(wrapper(X), X * 2 + 1)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_get_it_by_its_name(method: str) -> None:
    with multiprocessing.get_context(method).Pool(1) as pool:
        assert [part.tolist() for part in pool.map(scaled, [torch.ones(2), torch.zeros(2)])] == [[3.0, 3.0], [1.0, 1.0]]


def test_a_loader_of_spawned_workers() -> None:
    loader = torch.utils.data.DataLoader(
        Samples(), batch_size=2, num_workers=1, multiprocessing_context="spawn", collate_fn=stacked
    )
    assert [batch.sum().item() for batch in loader] == [16.0, 48.0]
