"""Names the folders of the user's cache, for whoever looks after them."""

from __future__ import annotations

from framefuse.codegen.disk_cache import DiskCache
from framefuse.codegen.llvm import compile as llvm
from framefuse.driver import winners
from framefuse.driver.calls import calls
from framefuse.driver.programs import programs


def folders() -> dict[str, DiskCache]:
    """The folders of signed files, by what they keep."""
    made = {"programs": programs.PROCESS, "kernels": llvm.PROCESS.disk, "winners of tuning": winners.PROCESS.disk}
    return {"calls": calls.PROCESS, **made}
