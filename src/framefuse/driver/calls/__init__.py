"""Keeps recorded calls on disk, so that a later process runs compiled code at its first call and records nothing."""

from framefuse.driver.calls.calls import PROCESS, Call, call_of

__all__ = ["PROCESS", "Call", "call_of"]
