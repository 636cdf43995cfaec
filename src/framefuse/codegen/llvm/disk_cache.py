"""Keeps object code between processes: one file a kernel in the user's cache folder, named by what decides it."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import platformdirs

# Set to "0" to keep nothing on disk, or to a folder to keep it there.
VARIABLE = "FRAMEFUSE_CACHE"
_memory: dict[str, bytes] = {}


def folder() -> Path | None:
    """Where object code is kept; None when it is not."""
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "0":
        return None
    return Path(wanted) if wanted else Path(platformdirs.user_cache_dir("framefuse")) / "kernels"


def read(key: str) -> bytes | None:
    """The object code of ``key``, or None; a file that cannot be read counts as missing."""
    place = folder()
    if place is None:
        return None
    try:
        return (place / f"{key}.o").read_bytes() or None
    except OSError:
        return None


def write(key: str, data: bytes) -> None:
    """Keeps ``data``; other processes see the whole file or none. A folder that cannot be written is no error."""
    place = folder()
    if place is None:
        return
    try:
        place.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=place, suffix=".part")
    except OSError:
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, place / f"{key}.o")
    except OSError:
        Path(name).unlink(missing_ok=True)
