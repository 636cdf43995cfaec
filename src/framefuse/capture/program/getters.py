"""Tells what the callables of the module ``operator`` that stand for a look-up were made of."""

from __future__ import annotations

import functools
import operator

from framefuse.ir.values import Arguments, Keywords, Value

GETTERS = frozenset((operator.itemgetter, operator.attrgetter, operator.methodcaller))


def made_of(getter: Value) -> tuple[Arguments, Keywords]:
    """The arguments by which the class of the getter makes another like it."""
    maker, args = getter.__reduce__()
    if type(maker) is functools.partial:  # as a methodcaller with keywords tells it
        return maker.args, maker.keywords
    return args, {}
