"""What is known of each callable of Python that is not interpreted: a row for each, where it is implemented.

``@special`` (capture/interp/registry.py) and ``@equivalent`` take a row's columns beside the callable;
``capture/known.py`` has those of callables that need no code of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Literal, NamedTuple, TypeAlias, TypedDict, TypeVar, Unpack

from framefuse.ir.own_class import is_a
from framefuse.ir.values import Function

F = TypeVar("F", bound=Function)

# The special methods by which native code converts a value, and those by which it makes something of one.
CONVERSIONS = tuple(
    f"__{name}__"
    for name in "round complex bytes format index int float trunc floor ceil divmod rdivmod pow rpow length_hint iter "
    "len".split()
)
MADE_FROM = (*CONVERSIONS, "__str__", "__repr__")
TRUTH = ("__bool__", "__len__")
INDEX = ("__index__",)
# What comparisons and hashes ask, and which of them those that look for an order ask.
COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__")
LESS, GREATER = ("__lt__", "__eq__"), ("__gt__", "__eq__")


Walks: TypeAlias = Literal["", "alone", "last"]
Takes: TypeAlias = Literal["", "keys", "all"]


class Columns(TypedDict, total=False):
    """What a row may say of a callable."""

    pure: bool  # changes nothing; its result depends on nothing but the content of its arguments
    keeps: bool  # keeps what it is given and looks at none of it
    shallow: bool  # looks into no container that lies in another
    keeps_numbers: bool  # leaves the numbers in its arguments alone, or uses them by Python's protocols
    reads_value: bool  # reads the value of a tensor that it is given
    calls: bool  # calls a function that it is given
    holds: bool  # Python of a library that looks at a function it is given, and does not call it
    asks: tuple[str, ...]  # the special methods that it asks of its arguments and their elements
    compares: tuple[str, ...]  # the comparisons that it makes of its arguments, or of what lies in them
    iterates: bool  # over its arguments
    hands_on: bool  # gives the program what it walks, or what the program makes of it, one by one
    walks: Walks  # iterates once over an argument that stands alone, or over the last of several
    takes: Takes  # what it takes of a dict that it is given, to let go of the dict at once
    orderless: bool  # does not tell the order of a set that it is given
    shows: bool  # makes a text of its arguments


class Native(NamedTuple):
    """A row: the columns above, and how a call is recorded that native code would not do as eager does."""

    special: bool = False  # by a function in place of the call, in the interpreter's terms
    equivalent: Function | None = None  # by the same in Python, where native code would call the program's
    pure: bool = False
    keeps: bool = False
    shallow: bool = False
    keeps_numbers: bool = False
    reads_value: bool = False
    calls: bool = False
    holds: bool = False
    asks: tuple[str, ...] = ()
    compares: tuple[str, ...] = ()
    iterates: bool = False
    hands_on: bool = False
    walks: Walks = ""
    takes: Takes = ""
    orderless: bool = False
    shows: bool = False


NOTHING = Native()
NATIVES: dict[Hashable, Native] = {}
# The callable for which a Python equivalent stands where an unstarted generator of it leaves the call.
STANDS_FOR: dict[Function, Hashable] = {}
# The class of the iterator that a generator of the function is to the program.
KINDS: dict[Function, type] = {}


def row(target: Hashable, row: Native) -> None:
    """Adds what is known of a callable; a second row of one is refused."""
    if target in NATIVES:
        raise ValueError(f"{target!r} has a row already")
    NATIVES[target] = row


def equivalent(target: Hashable, **columns: Unpack[Columns]) -> Callable[[F], F]:
    """Registers a function of Python as what the interpreter runs in place of a native callable."""

    def register(function: F) -> F:
        row(target, Native(equivalent=function, **columns))
        STANDS_FOR[function] = target
        if is_a(target, type):
            KINDS[function] = target
        return function

    return register


def known_as(target: Hashable) -> Native:
    """The row of a callable; one that says nothing where there is none, and for what has no hash."""
    try:
        return NATIVES.get(target, NOTHING)
    except TypeError:
        return NOTHING
