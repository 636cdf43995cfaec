"""The door by which native code reaches the recorder: capture knows no native code, and does without where it is not.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass

from framefuse.ir.values import Function, Value


def _on_all(prepare: Callable[..., tuple[types.FrameType, Callable[[], Value]]], *args: Value) -> Value:
    return prepare(*args)[1]()


def _as_they_are(more: int) -> None:
    return None


def _along_mro(kind: type, name: str, default: Value) -> Value:
    return next((base.__dict__[name] for base in kind.__mro__ if name in base.__dict__), default)


@dataclass(slots=True)
class Host:
    """What the recorder asks of native code.

    ``compiled`` is the type of what ``framefuse.compile`` makes of functions (None: there is none).
    ``call_on_frame(prepare, *args)``: ``prepare(*args)`` gives a frame and a call, which is made as if that frame made
    it; in Python the frames in between show. ``add_headroom`` lets calls go so many frames deeper, or as many less.
    ``type_lookup(type, name, default)`` gives the attribute as it lies along the MRO.
    """

    compiled: type | None = None
    call_on_frame: Function = _on_all
    add_headroom: Callable[[int], None] = _as_they_are
    type_lookup: Callable[[type, str, Value], Value] = _along_mro


HOST = Host()


def register(
    compiled: type,
    call_on_frame: Function,
    add_headroom: Callable[[int], None],
    type_lookup: Callable[[type, str, Value], Value],
) -> None:
    """Takes what native code does from now on."""
    HOST.compiled, HOST.call_on_frame, HOST.add_headroom = compiled, call_on_frame, add_headroom
    HOST.type_lookup = type_lookup
