"""Says of a class whether its instances may hold state that no fact describes."""

from __future__ import annotations

import functools
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable

import torch

from framefuse.capture.facts.atoms import ATOMS
from framefuse.ir.classes import written_in_c

# Types written in C whose content the facts describe, or that have none.
DESCRIBED = frozenset(
    (
        object, list, tuple, dict, set, frozenset, OrderedDict, defaultdict, deque, torch.Size, types.MethodType,
        functools.partial,
    )
)


def _has_hidden_state(kind: type) -> bool:
    """Whether instances may hold state that lies in no ``__dict__`` and no described container."""
    return any(base not in DESCRIBED and (written_in_c(base) or _has_slots(base)) for base in kind.__mro__)


has_hidden_state: Callable[[type], bool] = functools.lru_cache(maxsize=4096)(_has_hidden_state)


def is_of_atoms(kind: type) -> bool:
    """Whether all that instances hide is a text or number that never changes, as in a subclass of ``str``."""
    hiding = [base for base in kind.__mro__ if base is not object and written_in_c(base)]
    return bool(hiding) and ATOMS.issuperset(hiding) and not any(map(_has_slots, kind.__mro__))


def _has_slots(kind: type) -> bool:
    return any(type(member) is types.MemberDescriptorType for member in vars(kind).values())
