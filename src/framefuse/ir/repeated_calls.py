"""A call of a cached function or weak reference that guards make again to see whether it gives what it gave."""

from __future__ import annotations

import functools
import gc

from framefuse.ir.values import Arguments, Function, Keywords, Value

NOTHING: Value = object()  # no object of the program
# Where libraries keep cached functions that tell which others there are: they may be asked before the program asks.
ASKED = frozenset(("transformers.utils.import_utils", "diffusers.utils.import_utils", "accelerate.utils.imports"))


class Repeated:
    """A call of native code that is made whenever the attribute ``value`` is read, and runs nothing of the program's:
    guards are asked before the program runs, and in an order of their own.
    """

    __slots__ = ("args", "function", "kept", "key", "kwargs")

    def __init__(self, function: Function, args: Arguments, kwargs: Keywords) -> None:
        self.function = function
        self.args = args
        self.kwargs = kwargs
        self.kept: dict[Value, Value] | None = None
        self.key: Value = None
        if is_cached(function):
            self.kept, self.key = _entry(function, args, kwargs)

    @property
    def lacks(self) -> bool:
        """Whether a cache would have to run its function for the call."""
        return self.kept is not None and self.key not in self.kept

    @property
    def value(self) -> Value:
        """What the call gives now; ``NOTHING``, for which no fact holds, where a cache would have to run a function of
        the program's: the call is recorded anew, which runs it where the program does.
        """
        if self.lacks and not _asks(self.function):
            return NOTHING
        return self.function(*self.args, **self.kwargs)


def is_cached(function: Function) -> bool:
    return type(function) is functools._lru_cache_wrapper


def _asks(function: Value) -> bool:
    asked = function.__wrapped__
    return getattr(asked, "__module__", "") in ASKED and asked.__name__.startswith("is_")


def _entry(function: Value, args: Arguments, kwargs: Keywords) -> tuple[dict[Value, Value], Value]:
    """What a cache keeps, and under which key the result of a call, as ``functools`` in C makes it. No public call
    tells it; with another CPython's layout or key the cache would seem to keep nothing, and each call be recorded.
    """
    kept, _, mark = gc.get_referents(function)[-6:-3]
    typed = function.cache_parameters()["typed"]
    if not typed and not kwargs:
        return kept, args[0] if len(args) == 1 and type(args[0]) in (int, str) else args
    given = (*args, *kwargs.values())
    key = (*args, *((mark,) if kwargs else ()), *(part for item in kwargs.items() for part in item))
    return kept, (*key, *map(type, given)) if typed else key
