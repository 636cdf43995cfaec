"""What a program keeps in one place is another object at a later call: patterns, members of enumerations, operators of
torch and NumPy, tuples of classes. Each is given as an argument, as an attribute of one, and read from a closure.
"""

from __future__ import annotations

import enum
import re
import typing
from typing import Any

import numpy as np
import pytest
import torch
from tests.traps.trap import Trap, hold


class Colour(enum.Enum):
    RED = 1
    GREEN = 2
    BLUE = 5


class Flags(enum.Flag):
    X = 1
    Y = 2
    Z = 4


class Kept:
    value: Any


def caught(kinds, x):
    try:
        raise KeyError("a")
    except kinds:
        return x * 2
    except Exception:
        return x * 3


def caught_in_a_group(kinds, x):
    try:
        raise ExceptionGroup("several", [KeyError("a"), ValueError("b")])
    except* kinds:
        x = x * 2
    except* Exception:
        x = x + 3
    return x


PROGRAMS = {
    "matches of a pattern": (
        lambda p, x: x * len(p.findall("aabaaa")), (re.compile("a+"), re.compile("b"), re.compile("a|b")),
    ),
    "text of a pattern": (
        lambda p, x: x * len(p.pattern) + p.flags, (re.compile("a+"), re.compile("b"), re.compile("a|b", re.I)),
    ),
    "pattern given to a function": (
        lambda p, x: x * len(re.findall(p, "aabaaa")), (re.compile("a+"), re.compile("b"), re.compile("a|b")),
    ),
    "match": (
        lambda p, x: x * p.end() + len(p.group()), (re.match("a+", "aab"), re.match("a", "ab"), re.match(".*", "abcd")),
    ),
    "value of a member": (lambda p, x: x * p.value, tuple(Colour)),
    "name of a member": (lambda p, x: x * (2 if p.name == "GREEN" else 3), tuple(Colour)),
    "flags that hold others": (lambda p, x: x * (2 if Flags.Y in p else 3), (Flags.X, Flags.X | Flags.Y, Flags.Z)),
    "value of flags": (lambda p, x: x * p.value, (Flags.X, Flags.X | Flags.Y, Flags.Z)),
    "operator": (
        lambda p, x: p(x), (torch.ops.aten.sqrt.default, torch.ops.aten.neg.default, torch.ops.aten.abs.default),
    ),
    "operator with its overloads": (lambda p, x: p(x), (torch.ops.aten.sqrt, torch.ops.aten.neg, torch.ops.aten.abs)),
    "function of NumPy": (lambda p, x: x * float(p(2.0, 3.0)), (np.add, np.multiply, np.maximum)),
    "types of typing": (
        lambda p, x: x * (2 if typing.get_origin(p) is list else 3),
        (typing.List[int], typing.Dict[str, int], typing.Tuple[int]),  # noqa: UP006
    ),
    "classes asked for": (
        lambda p, x: x * (2 if isinstance(3, p) else 3), ((int, str), (float, str), (str, (bytes, int))),
    ),
    "classes of a class": (lambda p, x: x * (2 if issubclass(int, p) else 3), ((int, str), (float,), (object,))),
    "classes of exceptions": (caught, ((KeyError, OSError), (OSError, TypeError), (OSError, LookupError))),
    "classes of exceptions in a group": (caught_in_a_group, ((KeyError, OSError), (ValueError,), (LookupError,))),
}  # fmt: skip


def as_an_argument(compiled, read, values):
    f = compiled(read)
    for value in values:
        for number in (1, 2):
            yield f(value, torch.full((3,), float(number)))


def as_an_attribute(compiled, read, values):
    f, kept = compiled(lambda kept, x: read(kept.value, x)), Kept()
    for kept.value in values:
        for number in (1, 2):
            yield f(kept, torch.full((3,), float(number)))


def from_a_closure(compiled, read, values):
    kept = Kept()
    f = compiled(lambda x: read(kept.value, x))
    for kept.value in values:
        for number in (1, 2):
            yield f(torch.full((3,), float(number)))


@pytest.mark.parametrize("way", (as_an_argument, as_an_attribute, from_a_closure), ids=lambda way: way.__name__)
@pytest.mark.parametrize("name", PROGRAMS)
def test_objects_replaced(name: str, way: Any) -> None:
    read, values = PROGRAMS[name]
    hold(Trap(lambda compiled: way(compiled, read, (*values, values[0])), 4, 3))
