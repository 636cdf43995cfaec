"""Names of classes and signatures of functions, which no version of a class and no code object tells, are those of the
call.
"""

from __future__ import annotations

import functools
import inspect
import typing

import torch
from tests.traps.trap import Table, Trap, hold

TABLE = Table()
trap = TABLE.trap


def inputs(changes, compiled, read):
    f = compiled(read)
    for change in (lambda: None, *changes):
        change()
        for number in (1, 2):
            yield f(torch.full((3,), float(number)))


@trap(traces=3, hits=3)
def names_of_a_class(compiled):
    class Named:
        pass

    yield from inputs(
        (lambda: setattr(Named, "__name__", "Longer"), lambda: setattr(Named, "__qualname__", "The longest")),
        compiled,
        lambda x: x * len(Named.__name__) + len(type(Named()).__qualname__),
    )


@trap(traces=3, hits=3)
def texts_of_a_class_and_a_function(compiled):
    class Named:
        pass

    def named():
        pass

    yield from inputs(
        (lambda: setattr(Named, "__qualname__", "The longest"), lambda: setattr(named, "__qualname__", "Longer")),
        compiled,
        lambda x: x * len(f"{Named}") + len(str([named]).partition(" at ")[0]),
    )


@trap(traces=3, hits=3)
def a_signature_that_is_set(compiled):
    def described(a, b):
        return a, b

    yield from inputs(
        (
            lambda: setattr(described, "__signature__", inspect.Signature()),
            lambda: delattr(described, "__signature__"),
        ),
        compiled,
        lambda x: x * len(inspect.signature(described).parameters),
    )


@trap(traces=3, hits=2)
def a_signature_of_what_is_wrapped(compiled):
    def described(a, b, c):
        return a, b, c

    @functools.wraps(described)
    def wrapper(*args):
        return described(*args)

    yield from inputs(
        (lambda: setattr(described, "__signature__", inspect.Signature()), lambda: delattr(wrapper, "__wrapped__")),
        compiled,
        lambda x: x * len(inspect.signature(wrapper).parameters),
    )


@trap(traces=5, hits=3)
def defaults_and_annotations_of_a_signature(compiled):
    def described(a, b: str = "q", *, c=2.0):
        return a, b, c

    def read(x):
        found = inspect.signature(described).parameters
        return x * found["c"].default + len(str(found["b"]))

    yield from inputs(
        (
            lambda: setattr(described, "__defaults__", ("longer",)),
            lambda: described.__kwdefaults__.update(c=5.0),
            lambda: described.__annotations__.update(b="float"),
        ),
        compiled,
        read,
    )


@trap(traces=5, hits=5)
def annotations_that_are_asked_for(compiled):
    class Described:
        a: int

    yield from inputs(
        (
            lambda: Described.__annotations__.update(b=int),
            lambda: Described.__annotations__.update(c=int),
        ),
        compiled,
        lambda x: x * len(typing.get_type_hints(Described)) + len(inspect.get_annotations(Described)),
    )


@TABLE.parametrize()
def test_descriptions_of_functions(trap: Trap) -> None:
    hold(trap)
