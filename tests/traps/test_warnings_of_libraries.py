"""Warnings that torch's C code or a library gives at each call come at each compiled call too, at the same line."""

from __future__ import annotations

import re
import sys
import warnings

import numpy as np
import pytest
import torch
from tests.traps.small_programs import MOST, Rows, draw
from tests.traps.trap import Trap, hold

ROWS = Rows()


def heard(function, *args):
    """The result of a call with what it warned of: kind, text, file and line of each."""
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        result = function(*args)
    return result, [(each.category, str(each.message), each.filename, each.lineno) for each in told]


def row(function, *sizes, add=ROWS.program):
    def program(compiled):
        fast = compiled(function)
        for number, size in enumerate(sizes):
            yield heard(fast, draw(number, *size))

    program.__name__ = function.__name__
    add(program)


def deviation_of_one(x):
    return x[0, :1].std(), x * 2


def deviation_of_few(x):
    return x.std() * 2


def variance_of_none(x):
    return x.var(1)


def unread_deviation(x):
    x[0, :1].var()
    return x + 1


def moments_of_one(x):
    return torch.std_mean(x[:1], 0)


def copied_by_constructor(x):
    return torch.tensor(x) + 1


def byte_mask(x):
    return x[torch.tensor([1, 0, 1], dtype=torch.uint8)] * 2


def resized_result(x):
    given = torch.empty(2)
    result = torch.add(x, 1, out=given)
    return result, given * 2, result is given


def resized_results(x):
    given = torch.empty(0), torch.empty(0, dtype=torch.int64)
    return torch.max(x, 1, out=given), given


def warned_by_a_library(x):
    if sys.version_info >= (3, 13):
        re.sub("a", "b", "aaaa", x.shape[0])  # noqa: B034  a position that is deprecated
    else:
        re.template("a")  # type: ignore[attr-defined]
    return x * 2


def warned_by_numpy(x):
    values = x[0].numpy() * 0
    return np.log(values), values.mean(where=values > 1), np.nanmax(values * np.nan)


def gradient_of_no_leaf(x):
    y = x.clone().requires_grad_() * 2
    y.sum().backward()
    with torch.autograd.detect_anomaly():
        return y.grad, x * 2


row(gradient_of_no_leaf, (3, 4), (3, 4), (5, 2), (3, 4), add=ROWS.trap(MOST, 0))
row(warned_by_numpy, (3, 4), (3, 4), (5, 2), (3, 4), add=ROWS.trap(MOST, 0))
row(warned_by_a_library, (3, 4), (3, 4), (5, 2), (3, 4), add=ROWS.trap(MOST, 0))
row(resized_result, (3, 4), (3, 4), (5, 2), (2,), (3, 4), add=ROWS.trap(MOST, 0))
row(resized_results, (3, 4), (3, 4), (5, 2), (3, 4))
row(deviation_of_one, (3, 4), (3, 4), (5, 2), (3, 4))
row(deviation_of_few, (3,), (1,), (4,), (1,), (0,), (5,))
row(variance_of_none, (3, 4), (0, 4), (3, 1), (5, 4), (0, 4))
row(unread_deviation, (3, 4), (3, 4), (5, 2), (3, 4))
row(moments_of_one, (3, 4), (3, 4), (5, 2))
row(copied_by_constructor, (3, 4), (3, 4), (5, 2))
row(byte_mask, (3, 4), (3, 4), (3, 2))


@ROWS.program
def turned_into_an_error(compiled):
    fast = compiled(deviation_of_one)
    for number in range(3):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(UserWarning, match="degrees of freedom"):
                fast(draw(number, 3, 4))
        yield heard(fast, draw(number, 3, 4))


@ROWS.program
def sizes_in_a_text(compiled):
    fast = compiled(lambda x: torch.nn.functional.mse_loss(x, x[:1]) * 2)
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for number, size in enumerate([(3, 4), (3, 4), (5, 2), (3, 4), (5, 2)]):
            yield fast(draw(number, *size))
            yield [str(each.message) for each in told]


@ROWS.parametrize()
def test_warnings(trap: Trap) -> None:
    hold(trap)
