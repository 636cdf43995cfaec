"""The door by which native code reaches the recorder: capture knows no native code, and does without where it is not.
"""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass

from framefuse.capture.values import Function, Value


def _on_all(prepare: Callable[..., tuple[types.FrameType, Callable[[], Value]]], *args: Value) -> Value:
    return prepare(*args)[1]()


def _as_they_are(more: int) -> None:
    return None


@dataclass(slots=True)
class Host:
    """What the recorder asks of native code.

    ``compiled`` is the type of what ``framefuse.compile`` makes of functions (None: there is none).
    ``call_on_frame(prepare, *args)``: ``prepare(*args)`` gives a frame and a call, which is made as if that frame made
    it; in Python the frames in between show. ``add_headroom`` lets calls go so many frames deeper, or as many less.
    """

    compiled: type | None = None
    call_on_frame: Function = _on_all
    add_headroom: Callable[[int], None] = _as_they_are


HOST = Host()


def register(compiled: type, call_on_frame: Function, add_headroom: Callable[[int], None]) -> None:
    """Takes what native code does from now on."""
    HOST.compiled, HOST.call_on_frame, HOST.add_headroom = compiled, call_on_frame, add_headroom
