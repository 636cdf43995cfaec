"""Proxies and mocks name another class as their ``__class__``: the recorder goes by their own, and asks none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest import mock

import pytest
import torch
from tests.traps.trap import Trap, hold

ASKED: list[str] = []


class Proxy:
    """As those of wrapt: all is handed to another object."""

    def __init__(self, target: Any) -> None:
        object.__setattr__(self, "target", target)

    @property
    def __class__(self) -> Any:
        ASKED.append("class")
        return type(self.target)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "target"), name)

    def __len__(self) -> int:
        return len(self.target)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.target)

    def __getitem__(self, key: Any) -> Any:
        return self.target[key]

    def __contains__(self, key: Any) -> bool:
        return key in self.target

    def __eq__(self, other: object) -> bool:
        return bool(self.target == other)

    def __hash__(self) -> int:
        return hash(self.target)

    def __add__(self, other: Any) -> Any:
        return self.target + other

    def __str__(self) -> str:
        return str(self.target)

    def __call__(self, *args: Any) -> Any:
        return self.target(*args)


def of_list(x: Any, o: Any) -> Any:
    more = o + [1]  # noqa: RUF005
    return x * o[0] + len(o), [*o], [v * 2 for v in o], 2 in o, more, sorted(o), max(o), str(o), f"{o}", o == [1, 2, 3]


def of_tuple(x: Any, o: Any) -> Any:
    a, *b = o
    return x * a, b, o[1:], {o: 1}[1, 2, 3], (*o, 3), hash(o) == hash((1, 2, 3)), isinstance(o, tuple)


def of_dict(x: Any, o: Any) -> Any:
    return x * o["a"], [*o], "a" in o, dict(o.items()), o.get("q", 3), len(o), o.target


def of_module(x: Any, o: Any) -> Any:
    return o(x), isinstance(o, torch.nn.Module), [name for name, _ in o.named_parameters()]


def of_text(x: Any, o: Any) -> Any:
    return x * len(o), o.upper(), o + "c", {o: 1}["ab"], f"{o}"


TARGETS: dict[Any, tuple[Any, Any]] = {
    of_list: ([1, 2, 3], [4, 2, 3]),
    of_tuple: ((1, 2, 3), (1, 2, 3)),
    of_dict: ({"a": 1}, {"a": 2}),
    of_module: (torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)),
    of_text: ("ab", "ab"),
}


@pytest.mark.parametrize("function", TARGETS, ids=lambda function: function.__name__)
def test_what_a_proxy_stands_for(function: Any) -> None:
    def program(compiled: Any) -> Iterator[Any]:
        f = compiled(function)
        proxy = Proxy(TARGETS[function][0])
        for number in range(6):
            object.__setattr__(proxy, "target", TARGETS[function][number // 4])
            ASKED.clear()
            yield f(torch.arange(3.0) + number, proxy), len(ASKED)

    hold(Trap(program, traces=9, hits=2))


def test_what_a_mock_stands_for() -> None:
    def program(compiled: Any) -> Iterator[Any]:
        numbers, net = mock.MagicMock(spec=list), mock.Mock(spec=torch.nn.Linear(3, 3))
        numbers.__len__.return_value = 2
        numbers.__iter__.side_effect = lambda: iter([1, 2])
        f = compiled(lambda x: (x * numbers[0], len(numbers), [*numbers], net(x), isinstance(net, torch.nn.Linear)))
        for number in range(6):
            numbers.__getitem__.return_value = net.return_value = number // 4
            yield f(torch.arange(3.0) + number), numbers.__getitem__.call_count, net.call_count

    hold(Trap(program, traces=9, hits=0))
