"""What a function knows of code that another thread makes for it."""

from __future__ import annotations

import threading


class Pending:
    """Code that is being made; ``done`` is set at its end, ``error`` is what the next call is to raise."""

    __slots__ = ("done", "error")

    def __init__(self) -> None:
        self.done = threading.Event()
        self.error: Exception | None = None
