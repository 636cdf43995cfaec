"""Keeps compiled code, and text that it was made from, between processes: a file each in the user's cache folder."""

from __future__ import annotations

import hashlib
import os
import tempfile
from contextlib import suppress
from pathlib import Path

import platformdirs

# The folder is thinned to half of this many files when a process finds more, oldest first.
MOST_FILES = 20_000
DIGEST = hashlib.sha256().digest_size


class DiskCache:
    """A folder of files of compiled code. Any number of processes may use it at once; no failure of it is an error."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or Path(platformdirs.user_cache_dir("framefuse")) / "kernels"
        self._thinned = False

    def read(self, key: str) -> bytes | None:
        """The code of ``key``; None when it is missing, cut short or altered."""
        try:
            content = (self.folder / f"{key}.o").read_bytes()
        except OSError:
            return None
        digest, data = content[:DIGEST], content[DIGEST:]
        return data if hashlib.sha256(data).digest() == digest else None

    def write(self, key: str, data: bytes) -> None:
        """Keeps ``data``; other processes see the whole file or none."""
        with suppress(OSError):
            self.place(f"{key}.o", hashlib.sha256(data).digest() + data)

    def place(self, name: str, content: bytes) -> Path:
        """Writes a file of the folder, all at once; raises OSError where it cannot."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._thin()
        handle, part = tempfile.mkstemp(dir=self.folder, suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
            os.replace(part, self.folder / name)
        except OSError:
            Path(part).unlink(missing_ok=True)
            raise
        return self.folder / name

    def _thin(self) -> None:
        """Once a process: drops the oldest files of a folder that has grown too large."""
        if self._thinned:
            return
        self._thinned = True
        with os.scandir(self.folder) as entries:
            files = [entry for entry in entries if entry.is_file()]
            if len(files) <= MOST_FILES:
                return
            files.sort(key=lambda entry: entry.stat().st_mtime)
        for entry in files[: len(files) - MOST_FILES // 2]:
            Path(entry.path).unlink(missing_ok=True)
