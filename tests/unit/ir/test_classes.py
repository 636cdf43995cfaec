"""Which classes are C code is told right on every CPython, and in one place."""

import collections
import functools
import random
import types
from enum import Enum
from pathlib import Path

import pytest
import torch

from framefuse.ir.classes import immutable, written_in_c


class Plain:
    pass


class Slotted:
    __slots__ = ("a", "b")


class Dict(dict):
    pass


class Seen(Plain, collections.OrderedDict):
    extra = 1


class Colour(Enum):
    RED = 1


PYTHONS = [Plain, Slotted, Dict, Seen, Colour, torch.nn.Linear, collections.Counter, type("Made", (), {})]
CS = [
    object, int, dict, collections.OrderedDict, collections.deque, collections.defaultdict, functools.partial,
    types.SimpleNamespace, torch.device, random.Random.__base__, torch._C.TensorBase,
]  # fmt: skip


@pytest.mark.parametrize("kind", PYTHONS, ids=lambda kind: kind.__name__)
def test_python_classes(kind: type) -> None:
    assert not written_in_c(kind) and not immutable(kind)


@pytest.mark.parametrize("kind", CS, ids=lambda kind: kind.__name__)
def test_classes_of_c_code(kind: type) -> None:
    assert written_in_c(kind)


def test_an_immutable_class_is_one_that_takes_no_attribute() -> None:
    for kind in (*PYTHONS, *CS):
        try:
            kind.framefuse_probe = 1
            del kind.framefuse_probe
        except TypeError:
            assert immutable(kind)
        else:
            assert not immutable(kind)


def test_no_other_file_asks_where_a_class_lies() -> None:
    package = Path(__file__).parents[3] / "src" / "framefuse"
    texts = {str(path.relative_to(package)): path.read_text() for path in package.rglob("*.py")}
    assert not {path for path, text in texts.items() if "1 << 9" in text or "HEAP_TYPE" in text}
