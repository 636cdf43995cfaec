"""What is known of a context variable that the call sets: the token with which it may be set back."""

from __future__ import annotations

from contextvars import Token
from dataclasses import dataclass

from framefuse.ir.values import Value

# What a variable holds that was set back with a token of an earlier recording: only the token knows.
RESTORED: Value = object()


@dataclass(slots=True)
class Setting:
    """A variable was set to ``value``, which gave ``token``; ``before`` is what the call had set it to (MISSING: it had
    not). ``gone`` says that it was set back, with this token or an earlier one.
    """

    token: Token[Value]
    value: Value
    before: Value
    gone: bool = False
