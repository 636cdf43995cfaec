"""Methods of CPython's own classes, called by name: what they run of the program's own code runs in each call."""

from __future__ import annotations

import operator
from collections import OrderedDict
from typing import Any

import torch
from tests.traps.trap import Table, Trap, hold

TABLE = Table()
trap = TABLE.trap
LOG: list[str] = []


class Speaking:
    """Says in a list what is asked of it."""

    def __init__(self, x: Any) -> None:
        LOG.append("init")
        self.x = x

    def __index__(self) -> int:
        LOG.append("index")
        return 1

    def __int__(self) -> int:
        LOG.append("int")
        return 2

    def __str__(self) -> str:
        LOG.append("str")
        return "text"

    def __repr__(self) -> str:
        LOG.append("repr")
        return "shown"

    def __iter__(self) -> Any:
        LOG.append("iter")
        return iter((1, 2))

    def __hash__(self) -> int:
        LOG.append("hash")
        return 1

    def __eq__(self, other: object) -> bool:
        return self is other


def logged(compiled: Any, function: Any) -> Any:
    f = compiled(function)
    LOG.clear()
    for number in range(4):
        yield f(torch.full((3,), number + 1.0)), list(LOG)
        LOG.clear()


class Queue(OrderedDict[Any, Any]):
    """Knows its keys by identity, as a recorder of operations does."""

    active: list[Any] = []

    def __enter__(self) -> Any:
        print(end="")  # a break
        Queue.active.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        Queue.active.pop()
        print(end="")

    def __setitem__(self, key: Any, value: Any) -> None:
        super().__setitem__(Key(key), value)

    def items(self) -> Any:
        return tuple((key.obj, value) for key, value in super().items())


class Key:
    def __init__(self, obj: Any) -> None:
        self.obj = obj

    def __hash__(self) -> int:
        return id(self.obj)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Key) and other.obj is self.obj


class Metaclass(type):
    def __call__(cls, *args: Any) -> Any:
        return type.__call__(cls, *args)


class Queued(metaclass=Metaclass):
    def __init__(self, x: Any) -> None:
        self.x = x
        Queue.active[-1][self] = len(Queue.active[-1])


@trap(traces=2, hits=2)
def instances_that_a_metaclass_makes_by_way_of_type(compiled):
    def f(x):
        with Queue() as queue:
            Queued(x * 2)
            last = Queued(x.sin())
        found = queue.items()
        return sum(each.x * (place + 1) for each, place in found), found[-1][0] is last, len(found)

    g = compiled(f)
    for number in range(6):
        yield g(torch.full((3,), number + 1.0))


@trap(traces=1, hits=3)
def a_class_called_by_way_of_type(compiled):
    yield from logged(compiled, lambda x: type.__call__(Speaking, x).x * 2)


@trap(traces=1, hits=3)
def a_function_called_by_the_operator_module(compiled):
    yield from logged(compiled, lambda x: operator.call(Speaking, x).x * 2)


@trap(traces=2, hits=3)
def an_index_that_a_method_of_tuple_asks_for(compiled):
    yield from logged(compiled, lambda x: x * tuple.__getitem__((1, 2, 3), Speaking(x)))


@trap(traces=2, hits=3)
def an_index_inside_a_slice(compiled):
    yield from logged(compiled, lambda x: x * list.__getitem__([1, 2, 3], slice(Speaking(x), None))[0])


@trap(traces=2, hits=3)
def a_number_made_by_new(compiled):
    yield from logged(compiled, lambda x: x * int.__new__(int, Speaking(x)))


@trap(traces=2, hits=3)
def a_text_made_by_new(compiled):
    yield from logged(compiled, lambda x: x * len(str.__new__(str, Speaking(x))))


@trap(traces=2, hits=3)
def a_list_filled_by_init(compiled):
    def f(x):
        made: list[Any] = []
        list.__init__(made, Speaking(x))
        return x * len(made)

    yield from logged(compiled, f)


@trap(traces=2, hits=0, waits="native-call")
def a_text_by_methods_of_str_and_tuple(compiled):
    def f(x):
        made = str.format("{}", Speaking(x)), str.__mod__("%s", Speaking(x)), tuple.__repr__((Speaking(x),))
        return x * sum(map(len, made))

    yield from logged(compiled, f)


@trap(traces=2, hits=0, waits="native-call")
def a_hash_by_a_method_of_tuple(compiled):
    yield from logged(compiled, lambda x: x * (tuple.__hash__((Speaking(x),)) == hash((Speaking(x),))))


@trap(traces=2, hits=3)
def a_map_of_a_native_function(compiled):
    yield from logged(compiled, lambda x: x * len(",".join(map(str, [Speaking(x)]))))


@trap(traces=1, hits=3)
def a_map_that_is_advanced_by_name(compiled):
    yield from logged(compiled, lambda x: map.__next__(map(torch.Tensor.double, [x])))


@TABLE.parametrize()
def test_own_code_that_methods_of_c_run(trap: Trap) -> None:
    hold(trap)
