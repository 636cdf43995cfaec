"""Lists, dicts, sets and texts that are being built when a break comes hold all their elements afterwards."""

import pytest
import torch
from tests.unit.capture.replay import equal

import framefuse
from framefuse.api import compiled_function


def list_comprehension(x, k):
    return [x[n] * 2 if (x > n).any() else x[0] for n in range(k)], k


def dict_comprehension(x, k):
    return {n: part.item() for n, part in enumerate(x[:k])}


def dict_of_values(x, k):
    values, counts = torch.unique(x.round(), return_counts=True)
    return {int(value): int(count) for value, count in zip(values, counts, strict=True)}


def set_comprehension(x, k):
    return {part.item() > 0 for part in x[:k]}


def list_display(x, k):
    return [*x[:k], x[0].item(), *x[:k].tolist()]


def dict_display(x, k):
    first = {"a": 1.0, "b": x[0].item()}
    last = {"a": x[2].item()}
    return {**first, "c": x[1].item(), **last}


def set_display(x, k):
    return {1, *range(k), int(x[0].item() > 0), *(5, 6)}


def tuple_display(x, k):
    return (*x[:k].tolist(), x.max().item(), *x[:k])


def _named(*args, **kwargs):
    return args, kwargs


def arguments(x, k):
    named = {"second": x[1].item()}
    return _named(*[1, 2], x[2].item(), *x[:k], first=x[0].item(), **named, third=k)


def argument_given_twice(x, k):
    first, second = {"a": 1}, {"b": 1, "a": 2}
    try:
        return _named(c=x[0].item(), **first, d=x[1].item(), **second)
    except TypeError as error:
        return str(error)


def nested(x, k):
    return [[part.item() + n for part in x[:k]] for n in range(2)]


PROGRAMS = [
    list_comprehension, dict_comprehension, dict_of_values, set_comprehension, list_display, dict_display, set_display,
    tuple_display, arguments, argument_given_twice, nested,
]  # fmt: skip


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_what_is_being_built_across_a_break_is_whole(program):
    compiled = framefuse.compile(program)
    torch.manual_seed(0)
    with torch.no_grad():
        for call in range(8):
            x = torch.randn(4) * 3
            assert equal(program(x, 3), compiled(x, 3)), call
    assert compiled_function(compiled).dispatch.hits >= 4
