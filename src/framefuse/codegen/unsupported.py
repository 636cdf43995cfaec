"""Says that an emitter has no code for a kernel: its graph then runs on ATen."""

from __future__ import annotations


class Unsupported(Exception):
    """A kernel that this emitter cannot express; the text names the value or statement."""


class Uncompiled(Exception):
    """A kernel for ``device`` that its emitter cannot express; the text says why."""

    def __init__(self, why: Unsupported, device: str) -> None:
        super().__init__(str(why))
        self.device = device
