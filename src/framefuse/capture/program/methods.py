"""What is known of the methods of C's types by their names: a row for each name, which holds for all types that have
such a method.

Methods that change a container have their code in ``capture/callables/mutations.py``, which says so itself.
"""

from __future__ import annotations

import types
from collections import deque
from typing import NamedTuple

from framefuse.capture.program.natives import COMPARISONS, INDEX, LESS, MADE_FROM, TRUTH, Native, known_as
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Function

BYTES = (bytes, bytearray)
STRINGS = (str, *BYTES)
SEQUENCES = (*STRINGS, list, tuple, deque, range, slice)


class Method(NamedTuple):
    """A row: what a method does with the arguments that it is given."""

    asks: tuple[str, ...] = ()  # the special methods that it asks of them
    compares: tuple[str, ...] = ()  # the comparisons that it makes of them, or of what lies in them
    iterates: bool = False  # over them
    indexes: tuple[type, ...] = ()  # the types of owners for which it takes one for an index or a number
    keyed: bool = False  # of a dict or set: looks for the first one only; others take in all that their arguments hold
    shows: bool = False  # makes a text of them
    calls: bool = False  # calls a function among them
    gives: bool = False  # gives what lies in its owner
    keeps: int | None = None  # the place of the one that its owner holds afterwards; all others go by value


NOTHING = Method()
METHODS: dict[str, Method] = {
    # of all objects
    "__new__": Method(asks=MADE_FROM),
    "__init__": Method(asks=MADE_FROM),
    "__repr__": Method(shows=True),
    "__str__": Method(shows=True),
    "__format__": Method(shows=True),
    "__eq__": Method(compares=COMPARISONS),
    "__ne__": Method(compares=COMPARISONS),
    "__lt__": Method(compares=COMPARISONS),
    "__le__": Method(compares=COMPARISONS),
    "__gt__": Method(compares=COMPARISONS),
    "__ge__": Method(compares=COMPARISONS),
    "__hash__": Method(compares=COMPARISONS),
    # of sequences, sets and dicts
    "__contains__": Method(compares=COMPARISONS, keyed=True, indexes=BYTES),
    "__getitem__": Method(indexes=SEQUENCES, keyed=True, gives=True),
    "__setitem__": Method(indexes=SEQUENCES, keyed=True, keeps=1),
    "__delitem__": Method(indexes=SEQUENCES, keyed=True),
    "__mul__": Method(indexes=SEQUENCES),
    "__rmul__": Method(indexes=SEQUENCES),
    "__imul__": Method(indexes=SEQUENCES),
    "index": Method(compares=COMPARISONS, indexes=SEQUENCES),
    "count": Method(compares=COMPARISONS, indexes=STRINGS),
    "remove": Method(compares=COMPARISONS, keyed=True, indexes=BYTES),
    "append": Method(keeps=0, indexes=BYTES),
    "appendleft": Method(keeps=0),
    "insert": Method(indexes=SEQUENCES, keeps=1),
    "pop": Method(indexes=SEQUENCES, keyed=True),
    "rotate": Method(indexes=SEQUENCES),
    "sort": Method(compares=LESS, calls=True),
    "copy": Method(gives=True),
    "__iadd__": Method(iterates=True),
    "__ior__": Method(iterates=True),
    "extend": Method(iterates=True),
    "extendleft": Method(iterates=True),
    "add": Method(keyed=True, keeps=0),
    "discard": Method(keyed=True),
    "update": Method(iterates=True),
    "union": Method(iterates=True),
    "intersection": Method(iterates=True),
    "difference": Method(iterates=True),
    "symmetric_difference": Method(iterates=True),
    "intersection_update": Method(iterates=True),
    "difference_update": Method(iterates=True),
    "symmetric_difference_update": Method(iterates=True),
    "isdisjoint": Method(iterates=True),
    "issubset": Method(iterates=True),
    "issuperset": Method(iterates=True),
    "get": Method(keyed=True, gives=True, keeps=1),
    "setdefault": Method(keyed=True, keeps=1),
    "move_to_end": Method(keyed=True, asks=TRUTH),
    "popitem": Method(asks=TRUTH),
    "keys": Method(gives=True),
    "values": Method(gives=True),
    "items": Method(gives=True),
    "fromkeys": Method(iterates=True),
    "from_iterable": Method(iterates=True),
    # of texts, patterns, slices and numbers
    "join": Method(iterates=True),
    "format": Method(shows=True),
    "format_map": Method(shows=True),
    "__mod__": Method(shows=True),
    **dict.fromkeys(
        "center endswith expandtabs find ljust rfind rindex rjust rsplit split startswith zfill".split(),
        Method(indexes=STRINGS),
    ),
    "splitlines": Method(asks=TRUTH, indexes=STRINGS),  # 3.12 asks for a truth, 3.11 for a number
    "__buffer__": Method(asks=INDEX),  # since 3.12
    "translate": Method(asks=("__getitem__", "__missing__")),
    "hex": Method(asks=MADE_FROM),
    "sub": Method(calls=True),
    "subn": Method(calls=True),
    "indices": Method(indexes=SEQUENCES),
    "__round__": Method(asks=INDEX),
    "to_bytes": Method(asks=INDEX),
    "from_bytes": Method(asks=MADE_FROM),
}


def row_of(target: Function) -> Native | Method:
    """What is known of a callable: a method of C goes by its name, anything else by its own row."""
    if is_a(target, types.BuiltinFunctionType):
        owner = target.__self__
        return known_as(target) if owner is None or type(owner) is types.ModuleType else _named(target.__name__)
    return _named(target.__name__) if type(target) in OF_TYPES else known_as(target)


def _named(name: str) -> Method:
    return METHODS.get(name, NOTHING)


OF_TYPES = (
    types.MethodWrapperType, types.MethodDescriptorType, types.WrapperDescriptorType, types.ClassMethodDescriptorType,
)  # fmt: skip
