"""Keeps compiled code, and what it was made from, between processes: a signed file each in the user's cache folder."""

from __future__ import annotations

import hashlib
import hmac
import os
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from framefuse.ir.frozen_classes import dataclass

# A folder that holds more than one of these is thinned to half of it, the files first that were used longest ago.
MOST_FILES = 20_000
MOST_BYTES = 1 << 30
SUFFIX = ".o"
PART = ".part"  # a file that is being written
ABANDONED = 3600.0  # seconds after which nobody writes it any more
FRESH = 3600.0  # seconds for which a use is not noted again, nor a folder looked through again: 0.3 s where it is full
# The file of the key that signs: whoever cannot read it cannot make files that are read. Its time is that of the last
# look through the folder.
KEY = ".key"
SIGNATURE = hashlib.sha256().digest_size
_used: dict[Path, set[str]] = {}  # by folder the keys that this process has read or written


def cache_folder(part: str) -> Path:
    """A folder below the user's cache folder, which is where this system has it."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # the standard leaves such a path out
        base = os.path.expanduser("~/Library/Caches" if sys.platform == "darwin" else "~/.cache")
    return Path(base) / "framefuse" / part


@dataclass(frozen=True, slots=True)
class Held:
    """What a folder holds: files and their bytes, and the times, in seconds, of the first and the last use."""

    files: int
    bytes: int
    first: float
    last: float


class DiskCache:
    """A folder of signed files. Any number of processes may use it at once; no failure of it is an error.

    A file is read where it belongs to this user and bears the signature, by the folder's key, of its name and content:
    one that was cut short, altered, put in another's place or written by another user is as one that is missing.
    """

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder or cache_folder("kernels")
        self._key: bytes | None = None
        self._written: int | None = None  # bytes since the folder was looked through; None: not asked yet

    @property
    def used(self) -> set[str]:
        """The keys of the folder that this process has read or written."""
        return _used.setdefault(self.folder, set())

    def read(self, key: str) -> bytes | None:
        """The content of ``key``; None when it is missing, cut short, altered or another user's."""
        data = self.look(key, touch=True)
        if data is not None:
            self.used.add(key)
        return data

    def look(self, key: str, touch: bool = False) -> bytes | None:
        """What :meth:`read` gives; by itself it is no use of the file."""
        try:
            secret = self._secret(make=False)
            content = None if secret is None else _own_file(self.folder / f"{key}{SUFFIX}", touch=touch)
        except OSError:
            return None
        if secret is None or content is None:
            return None
        signature, data = content[:SIGNATURE], content[SIGNATURE:]
        if hmac.compare_digest(signature, _signature(secret, key, data)):
            return data
        self._key = None  # the folder may have got another
        return None

    def write(self, key: str, data: bytes) -> bool:
        """Keeps ``data``, if it can; other processes see the whole file or none."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._key = None  # somebody may have dropped the folder meanwhile
            secret = self._secret(make=True)
            if secret is None:
                return False
            self.place(f"{key}{SUFFIX}", _signature(secret, key, data) + data)
        except OSError:
            return False
        self.used.add(key)
        return True

    def place(self, name: str, content: bytes) -> Path:
        """Writes a file of the folder, all at once; raises OSError where it cannot."""
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if self._written is None or self._written > MOST_BYTES // 8:
            first, self._written = self._written is None, 0
            if not (first and self._is_counted()):
                with suppress(OSError):
                    os.utime(self.folder / KEY)
                held = self.held()
                if held.files > MOST_FILES or held.bytes > MOST_BYTES:
                    self.leave(MOST_FILES // 2, MOST_BYTES // 2)
        self._written += len(content)
        part = self._part(content)
        try:
            os.replace(part, self.folder / name)
        except OSError:
            Path(part).unlink(missing_ok=True)
            raise
        return self.folder / name

    def _is_counted(self) -> bool:
        """Whether some process looked through the folder a short time ago."""
        try:
            return abs(time.time() - (self.folder / KEY).stat().st_mtime) < FRESH
        except OSError:
            return False

    def names(self) -> list[str]:
        """The keys that the folder has files for, good or not."""
        return sorted(path.name.removesuffix(SUFFIX) for path, _ in self._files() if path.name.endswith(SUFFIX))

    def held(self) -> Held:
        """What the folder holds."""
        found = [status for _, status in self._files()]
        times = [status.st_mtime for status in found] or [0.0]
        return Held(len(found), sum(status.st_size for status in found), min(times), max(times))

    def remove(self, key: str) -> None:
        """Drops the file of a key."""
        with suppress(OSError):
            (self.folder / f"{key}{SUFFIX}").unlink(missing_ok=True)

    def leave(self, files: int, size: int) -> int:
        """Drops what was used longest ago until at most so many files and bytes are left; returns how many went."""
        found = sorted(self._files(), key=lambda entry: entry[1].st_mtime, reverse=True)
        kept = total = 0
        for _, status in found:
            total += status.st_size
            if kept >= files or total > size:
                break
            kept += 1
        for path, _ in found[kept:]:
            with suppress(OSError):
                path.unlink(missing_ok=True)
        return len(found) - kept

    def damaged(self) -> list[str]:
        """The keys of files that are not read: altered, cut short or another user's."""
        return [name for name in self.names() if self.look(name) is None and (self.folder / f"{name}{SUFFIX}").exists()]

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        """The files of the folder with what is known of them; parts that nobody writes any more are dropped."""
        with suppress(OSError), os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(OSError):  # another process may drop it meanwhile
                    status = entry.stat(follow_symlinks=False)
                    if entry.name == KEY or not stat.S_ISREG(status.st_mode):
                        continue
                    if not entry.name.endswith(PART):
                        yield Path(entry.path), status
                    elif time.time() - status.st_mtime > ABANDONED:
                        os.unlink(entry.path)

    def _part(self, content: bytes) -> str:
        """A new file that only this user reads, which is to be renamed."""
        handle, part = tempfile.mkstemp(dir=self.folder, suffix=PART)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(content)
        except OSError:
            Path(part).unlink(missing_ok=True)
            raise
        return part

    # ---- the key -----------------------------------------------------------------------------------------------------

    def _secret(self, make: bool) -> bytes | None:
        """The folder's key; None where there is none or where others may know it."""
        if self._key is None:
            place = self.folder / KEY
            self._key = _own_key(place)
            if self._key is None and make:
                self._new_key(place)
                self._key = _own_key(place)
        return self._key

    def _new_key(self, place: Path) -> None:
        """Makes a key where there is none, or one that is damaged; of processes that do so at once one wins."""
        if os.path.lexists(place) and _own_key(place) is None:
            place.unlink()  # another user's stays where the folder does not let us
        part = self._part(os.urandom(SIGNATURE))
        try:
            os.link(part, place)
        except FileExistsError:
            pass
        except OSError:  # a file system without links
            os.rename(part, place)
            return
        os.unlink(part)


def _signature(secret: bytes, key: str, data: bytes) -> bytes:
    return hmac.digest(secret, key.encode() + b"\0" + data, "sha256")


def _own_key(place: Path) -> bytes | None:
    """The key in a file that only this user can read."""
    try:
        found = _own_file(place, private=True)
    except OSError:
        return None
    return found if found is not None and len(found) == SIGNATURE else None


def _own_file(path: Path, private: bool = False, touch: bool = False) -> bytes | None:
    """The content of a file that belongs to this user, and that is ``private`` where that is asked; None otherwise."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid() or (private and status.st_mode & 0o077):
            return None
        if touch and time.time() - status.st_mtime > FRESH:
            with suppress(OSError):
                os.utime(handle)
        return file.read()
