"""Names the standard library's classes whose objects never change, and those that only the program at hand changes."""

from __future__ import annotations

import _blake2
import decimal
import hashlib
import importlib
import io
import pathlib
import random
import string

from framefuse.capture.facts.hidden_state import LASTING, is_lasting
from framefuse.capture.facts.questions import Question, answered
from framefuse.capture.facts.sources import Sources
from framefuse.ir.values import Value

DIGEST: type = type(hashlib.md5(b"", usedforsecurity=False))
DIGESTS = frozenset((DIGEST, _blake2.blake2b, _blake2.blake2s))
VALUES = frozenset(getattr(importlib.import_module(module), name) for module, name in LASTING)
PATHS = frozenset(kind for kind in VALUES if issubclass(kind, pathlib.PurePath))
# Of which one that the call made is known in full: nobody else changes it.
OWN = DIGESTS | {random.Random, io.StringIO, io.BytesIO, string.Template}


def is_constant(sources: Sources, value: Value) -> bool:
    """Whether an object of these classes is the same at each call: the call made it, or facts hold the object."""
    kind = type(value)
    if kind in VALUES:
        return is_lasting(value) and sources.is_fixed_number(value)
    return kind in OWN and not sources.knows(value)


def _context() -> str:
    """What decimal numbers are computed by, in this thread."""
    context = decimal.getcontext()
    traps = [signal.__name__ for signal, set_ in context.traps.items() if set_]
    parts = context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp, traps
    return repr(parts)


CONTEXT = Question(_context)


class Arithmetic:
    """Around what may compute with decimal numbers: the context is a fact, and what it notes of a rounding ends the
    recording, as compiled code would note nothing.
    """

    __slots__ = ("flags", "sources")

    def __init__(self, sources: Sources) -> None:
        self.sources = sources

    def __enter__(self) -> None:
        answered(self.sources, CONTEXT)
        self.flags = decimal.getcontext().flags.copy()

    def __exit__(self, *error: Value) -> None:
        if decimal.getcontext().flags != self.flags:
            self.sources.host.kill("native-call", "A rounding that the context of decimal numbers notes")
