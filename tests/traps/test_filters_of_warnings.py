"""Programs that put filters of warnings in force around a part of what they compute."""

from __future__ import annotations

import warnings
from typing import Any

import torch
from tests.traps.trap import Table, Trap, hold
from torch.nn import functional as F

TABLE = Table()
trap = TABLE.trap


def called(compiled: Any, function: Any, count: int = 5) -> Any:
    """What each call gives, the warnings that are told and the filters behind it."""
    f = compiled(function)
    for number in range(count):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("default")
            before = list(warnings.filters)
            try:
                value = f(torch.full((3, 1), number + 1.0))
            except UserWarning as error:
                value = str(error)
            yield value, [str(each.message) for each in told], warnings.filters == before


@trap(traces=1, hits=4)
def filters_around_what_warns(compiled):
    def f(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.warn("mine", stacklevel=1)
            y = x * 2
        return y + 1

    yield from called(compiled, f)


@trap(traces=1, hits=4)
def an_action_and_a_message(compiled):
    def f(x):
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            warnings.warn("soon", FutureWarning, stacklevel=1)
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message=".*one.*")
                warnings.warn("one of mine", stacklevel=1)
                warnings.warn("sooner", FutureWarning, stacklevel=1)
            return x.sin()

    yield from called(compiled, f)


@trap(traces=1, hits=4)
def what_torch_warns_is_dropped(compiled):
    def f(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = x.std(dim=1) + F.mse_loss(x, torch.zeros(3))
        return y.isnan(), x + 1

    yield from called(compiled, f)


@trap(traces=5, hits=3)
def what_is_told_inside(compiled):
    def f(x):
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("heard", stacklevel=1)
            y = x * 2
        return y + 1

    yield from called(compiled, f)


@trap(traces=5, hits=3)
def what_torch_tells_inside(compiled):
    def f(x):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="nothing that torch says")
            y = x.std(dim=1)
        return y.isnan()

    yield from called(compiled, f)


@trap(traces=6, hits=3)
def a_break_inside(compiled):
    def f(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = x * 2 if x.sum() > 0 else x
            warnings.warn("behind the break", stacklevel=1)
        return y + 1

    yield from called(compiled, f)


@trap(traces=1, hits=4)
def the_same_warning_is_told_anew(compiled):
    def f(x):
        warnings.warn("again", stacklevel=1)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            y = x * 2
        warnings.warn("again", stacklevel=1)
        return y

    f = compiled(f)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("default")
        for number in range(5):
            yield f(torch.full((3,), number + 1.0)), len(told)


@trap(traces=2, hits=2)
def an_error_leaves_them(compiled):
    def f(x):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            if x.shape[0] == 4:
                raise UserWarning("four")
            return x * 2

    f = compiled(f)
    for rows in (3, 3, 4, 5, 4, 6, 3):
        before = list(warnings.filters)
        try:
            value = f(torch.ones(rows))
        except UserWarning as error:
            value = str(error)
        yield value, warnings.filters == before


@trap(traces=0, hits=0)
def filters_that_raise(compiled):
    def f(x):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            try:
                warnings.warn("raised", stacklevel=1)
            except UserWarning:
                x = x + 3
        return x

    yield from called(compiled, f)


@trap(traces=8, hits=3)
def warnings_that_are_kept(compiled):
    def f(x):
        with warnings.catch_warnings(record=True) as kept:
            warnings.simplefilter("always")
            warnings.warn("kept", stacklevel=1)
        return x + len(kept)

    yield from called(compiled, f)


@TABLE.parametrize()
def test_filters_of_warnings(trap: Trap) -> None:
    hold(trap)
