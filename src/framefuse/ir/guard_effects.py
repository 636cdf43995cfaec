"""Remembers what guards ran of the program: what was read for other guards before that may be of the past."""

from __future__ import annotations

import threading

from framefuse.ir.values import Value


class GuardEffects(threading.local):
    """What functions gave that guards of this thread ran, so that the guards can be asked again without running them.

    A guard that had to run one fails; ``asks_again`` says that guards which failed so are asked once more.
    """

    def __init__(self) -> None:
        self.given: dict[int, tuple[object, Value]] = {}
        self.asks_again = False

    def note(self, call: object, value: Value) -> None:
        """A guard had to run a function of the program by this call, which gave ``value``."""
        if not self.asks_again:
            self.given.clear()
        self.given[id(call)] = call, value

    def knows(self, call: object) -> bool:
        """Whether guards are asked again that made this call before."""
        return self.asks_again and id(call) in self.given

    def forget(self) -> None:
        """The call whose guards were asked is over."""
        self.asks_again = False
        self.given.clear()


EFFECTS = GuardEffects()
