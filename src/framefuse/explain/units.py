"""Writes seconds, bytes and shares as people read them."""

from __future__ import annotations

from pathlib import PurePath


def duration(seconds: float) -> str:
    """Seconds with the unit that suits them."""
    if seconds < 1e-6:
        return f"{seconds * 1e9:.0f} ns"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.1f} us"
    return f"{seconds * 1e3:.2f} ms" if seconds < 1 else f"{seconds:.2f} s"


def share(part: float | None) -> str:
    """A part of one; nothing where it is not known."""
    return "" if part is None else f"{part:.0%}"


def size(count: int | None) -> str:
    """Bytes; None is what only the run tells."""
    if count is None:
        return "known in the run"
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if count >= unit:
            return f"{count / unit:.1f} {name}"
    return f"{count} B"


def short_path(file: str) -> str:
    """The part of a file's path that tells: behind the folder of installed packages, else its last folder and name."""
    parts = PurePath(file).parts
    for folder in ("site-packages", "dist-packages"):
        if folder in parts:
            return "/".join(parts[len(parts) - parts[::-1].index(folder) :])
    return "/".join(parts[-2:])
