"""Shows, verifies and empties the folders that keep what was compiled, and files of them: `framefuse cache`."""

from __future__ import annotations

import time

from framefuse.driver.archive import read
from framefuse.driver.folders import folders

UNITS = ("B", "KiB", "MiB", "GiB")


def show() -> str:
    """A line for each folder: files, bytes, the last use, and where it lies."""
    lines = [f"{'':18}{'files':>8}{'size':>10}  {'last used':10}"]
    for name, cache in folders().items():
        held = cache.held()
        day = time.strftime("%Y-%m-%d", time.localtime(held.last)) if held.files else "-"
        lines.append(f"{name:18}{held.files:>8}{_size(held.bytes):>10}  {day:10}  {cache.folder}")
    return "\n".join(lines)


def verify() -> tuple[str, int]:
    """Drops files that do not bear the signature of their folder; a line for each folder, and how many it dropped."""
    lines, total = [], 0
    for name, cache in folders().items():
        good, damaged = cache.names(), cache.damaged()
        for key in damaged:
            cache.remove(key)
        total += len(damaged)
        lines.append(f"{name:18}{len(good) - len(damaged):>8} good{len(damaged):>8} dropped")
    return "\n".join(lines), total


def verify_file(path: str, key: bytes | None) -> tuple[str, int]:
    """A line for each kind of entry that a saved file holds, and one for each thing that keeps it from being loaded
    here; how many of these there are. Raises UserError for a file that is refused.
    """
    archive = read(path, key)
    differences = archive.differences()
    names = [name for name, _ in archive.entries]
    lines = [f"{name:18}{names.count(name):>8} entries" for name in folders() if name in names]
    return "\n".join([*lines, *(f"not for this machine: {each}" for each in differences)]), len(differences)


def prune(size: int) -> str:
    """Leaves at most ``size`` bytes in each folder; a line for each."""
    return "\n".join(f"{name:18}{cache.leave(2**31, size):>8} dropped" for name, cache in folders().items())


def _size(count: float) -> str:
    for unit in UNITS[:-1]:
        if count < 1024:
            return f"{count:.0f} {unit}"
        count /= 1024
    return f"{count:.1f} {UNITS[-1]}"
