"""Says that an emitter has no code for a kernel: its graph then runs on ATen."""

from __future__ import annotations


class Unsupported(Exception):
    """A kernel that this emitter cannot express; the text names the value or statement."""
