"""Ends a recording where native code looks into an object whose state no fact describes."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable

import torch

from framefuse.capture.facts.atoms import ATOMS, CONTAINERS
from framefuse.capture.facts.code_like import CODE_LIKE
from framefuse.capture.facts.sources import Sources
from framefuse.ir.classes import written_in_c
from framefuse.ir.containers import inside
from framefuse.ir.numpy_numbers import is_numpy_number
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value

DEEP = 4  # containers within each other that are looked into
STATELESS = (*CODE_LIKE, torch.Tensor, slice, range, types.MethodType)  # beside what facts say of them
# Types written in C whose content the facts describe, or that have none.
DESCRIBED = frozenset(
    (
        object, list, tuple, dict, set, frozenset, OrderedDict, defaultdict, deque, torch.Size, types.MethodType,
        functools.partial,
    )
)

# The standard library's classes whose objects never change: what they are is told by what they were made of. By name,
# as not all are imported in each process.
LASTING = frozenset(
    [("datetime", name) for name in ("date", "datetime", "time", "timedelta", "timezone")]
    + [("pathlib", f"{kind}Path") for kind in ("PurePosix", "PureWindows", "Posix", "Windows", "Pure")]
    + [("decimal", "Decimal"), ("fractions", "Fraction"), ("uuid", "UUID"), ("_struct", "Struct")]
)


def is_lasting(value: Value) -> bool:
    """Whether an object of the standard library never changes, and asks no code of the program."""
    kind = type(value)
    if (kind.__module__.partition(".")[0], kind.__qualname__) not in LASTING:
        return False
    zone: type = type(getattr(value, "tzinfo", None))
    return zone is type(None) or zone.__module__ == "datetime"

def refuse_hidden_state(sources: Sources, value: Value) -> None:
    """Native code is about to look into ``value``: ends the recording if that is state which no fact describes."""
    try:
        kind = type(value)
        if not sources.knows(value) or not sources.host.alive or not has_hidden_state(kind):
            return
        if is_a(value, STATELESS) or _is_native_enum(kind) or _is_sequence(kind):
            return
        if (is_numpy_number(value) or is_of_atoms(kind) or is_lasting(value)) and sources.is_fixed_number(value):
            return
        sources.host.kill("argument", f"the state of a {type(value).__name__}")
    except Exception as fault:
        sources.host.fault(fault)


def hides_moving(sources: Sources, value: Value) -> bool:
    """Whether an object of C, or one in nested containers, may have another content in a later call, by all that facts
    hold: a number of NumPy's arrays, an argument that is a Decimal.
    """

    def moves(part: Value) -> bool:
        kind = type(part)
        if is_numpy_number(part) or is_of_atoms(kind) or is_lasting(part):
            return not sources.is_fixed_number(part)
        plain = is_a(part, STATELESS) or _is_native_enum(kind) or _is_sequence(kind)
        return sources.knows(part) and has_hidden_state(kind) and not plain

    return _any_part(moves, value)


def holds_moving_number(sources: Sources, value: Value) -> bool:
    """Whether nested containers hold a number of NumPy that no fact holds to its value."""
    return _any_part(lambda part: is_numpy_number(part) and not sources.is_fixed_number(part), value)


def _any_part(test: Callable[[Value], bool], value: Value, depth: int = 0) -> bool:
    """Whether a value, or one in nested containers that it is, passes the test; atoms do not, what lies deep does."""
    if type(value) in ATOMS:
        return False
    if not is_a(value, CONTAINERS):
        return test(value)
    if depth > DEEP:
        return True
    return any(_any_part(test, part, depth + 1) for part in inside(value))


def _is_native_enum(kind: type) -> bool:
    """Whether it is an enumeration that pybind11 made, as torch's SDPBackend: its objects never change."""
    return type(kind).__name__ == "pybind11_type" and "__entries" in vars(kind)


def _is_sequence(kind: type) -> bool:
    """Whether it is a named sequence of C code, all of which is its elements, as ``sys.version_info``."""
    fields: int | None = getattr(kind, "n_fields", None)
    return issubclass(kind, tuple) and fields is not None and fields == getattr(kind, "n_sequence_fields", None)


def _has_hidden_state(kind: type) -> bool:
    """Whether instances may hold state that lies in no ``__dict__`` and no described container."""
    return any(base not in DESCRIBED and (written_in_c(base) or _has_slots(base)) for base in kind.__mro__)


has_hidden_state: Callable[[type], bool] = functools.lru_cache(maxsize=4096)(_has_hidden_state)


def is_of_atoms(kind: type) -> bool:
    """Whether all that instances hide is a text or number that never changes, as in a subclass of ``str``."""
    hiding = [base for base in kind.__mro__ if base is not object and written_in_c(base)]
    return bool(hiding) and ATOMS.issuperset(hiding) and not any(map(_has_slots, kind.__mro__))


def is_fixed_text(sources: Sources, value: Value) -> bool:
    """Whether this is a text of a class of its own, the same object at each call, as ``torch.__version__`` is."""
    return type(value) is not str and is_a(value, str) and is_of_atoms(type(value)) and sources.is_fixed_number(value)


def _has_slots(kind: type) -> bool:
    return any(type(member) is types.MemberDescriptorType for member in vars(kind).values())
