"""Ints that are run-time values, as right operands of what C code computes by value: floats, bools, complex numbers."""

import bisect
import functools
import itertools
import math
import operator
import statistics

import pytest
import torch

import framefuse
from framefuse.api import compiled_function

# Expressions over an int or float s.
EXPRESSIONS = """
1.5 * s; 1.5 + s; 1.5 - s; 2.5 / s; 1.5 // s; 7.5 % s; 1.5 ** s; divmod(1.5, s); pow(1.5, s); 1.5 < s; 3.0 == s
2.0 < s < 4.0
True * s; True + s; True - s; True / s; True // s; True % s; True ** s; divmod(True, s); True < s; True == s
abs(True - s); 1j * s; 1j + s; s * 1j; 1j == s; complex(1, s)
max(1.5, s); min(1.5, s); max([True, s]); sum([1.5, s]); sum([s, 1.5]); sum((True, s)); math.prod([1.5, s])
math.fsum([1.5, s]); sorted([2.5, s]); s in (3.0, 1.0); 3.0 in (s,); s in [True]
[2.0, 3.0, 1.0, 5.0].index(s); [True, 3.0].count(s)
[1.5, 3.0] == [1.5, s]; (True,) == (s,); ((1.5,),) == ((s,),); [1.5, s] < [1.5, 2.5]; {"a": 3.0} == {"a": s}
operator.mul(1.5, s); functools.reduce(operator.mul, [1.5, s]); list(itertools.accumulate([1.5, s]))
bisect.bisect([1.5, 3.5], s); statistics.mean([1.5, s]); (1.5).__mul__(s); float.__add__(1.5, s)
int.__add__(True, int(s)); [1.5 * a for a in (s,)]; round(1.5 * s); f"{1.5 * s}"; -1.5 * (s + 1); math.floor(1.5) * s
""".replace("\n", ";").split(";")
PLACES = {module.__name__: module for module in (bisect, functools, itertools, math, operator, statistics)}


@pytest.mark.parametrize("text", [text.strip() for text in EXPRESSIONS if text.strip()])
@pytest.mark.parametrize("values", [(3, 2, 5, 1, 3, 4), (3.5, 2.5, 5.5, 1.0, 3.5, 1.0)], ids=["ints", "floats"])
def test_expressions(text, values):
    space = dict(PLACES)
    exec(f"def f(s):\n    return {text}\n", space)
    fast = framefuse.compile(space["f"])
    for s in values:
        try:
            expected = space["f"](s)
        except (ValueError, TypeError) as error:
            with pytest.raises(type(error)):
                fast(s)
            continue
        found = fast(s)
        assert found == expected and type(found) is type(expected), s


def in_place(x, s):
    scale, flag = 1.5, True
    scale *= s
    flag += s
    return x * scale + flag


def scaled(x, s):
    return x * (1.5 * s) + (True + s) - 2.5 / s * (0.5 - s)


def walked(x, s):
    for a, b in zip([1.5], [s], strict=True):
        x = x * (a * b)
    return x


@pytest.mark.parametrize("function", [in_place, scaled, walked])
def test_they_compile_once(function):
    fast, x = framefuse.compile(function), torch.ones(2)
    for s in (3, 2, 5, 1, 7):
        torch.testing.assert_close(fast(x, s), function(x, s))
    assert len(compiled_function(fast).products) == 1
