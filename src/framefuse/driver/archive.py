"""Puts what the cache's folders hold into one file, and takes it from such a file on another machine of the same kind.

A file is the mark, a seal of 32 bytes, the length of a head in JSON, the head, and the contents of its entries one
behind the other. The seal is the HMAC of all behind it by the user's key, or without a key its digest, which finds
damage but no intent.
"""

from __future__ import annotations

import hmac
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from framefuse.codegen.disk_cache import MOST_BYTES
from framefuse.driver.calls.signature import devices
from framefuse.driver.folders import folders
from framefuse.driver.programs import later
from framefuse.driver.programs.fingerprint import FORMAT, kind
from framefuse.errors import UserError, kind_of
from framefuse.ir.values import Value

MARKS = {False: b"framefuse cache\n", True: b"framefuse cache, with a key\n"}
SEAL, LENGTH = 32, 8  # bytes
NAME = re.compile(r"[0-9a-zA-Z_]{16,200}")  # what keys of entries are: none names a path
SHOWN = 60  # letters of what differs

Entries = dict[tuple[str, str], bytes]  # by folder and key


@dataclass(frozen=True, slots=True)
class Archive:
    """A file that was read and whose seal holds: the ``kind`` of the process that saved it, and its entries."""

    path: Path
    kind: dict[str, str]
    entries: Entries

    def differences(self) -> list[str]:
        """A line for each thing in which this process is of another kind."""
        here = kind_here()
        return [_difference(name, str(self.kind.get(name, "")), here[name]) for name in here
                if self.kind.get(name) != here[name]]  # fmt: skip


def save(path: str | os.PathLike[str], key: str | bytes | None, whole: bool) -> int:
    """Writes the entries that this process has used, or all; returns how many. Raises UserError where there is none."""
    secret = _secret(key)
    later.PROCESS.finish()  # what was compiled is written soon
    found: Entries = {}
    for name, cache in folders().items():
        for entry in sorted(cache.names() if whole else cache.used):
            data = cache.look(entry)
            if data is not None:
                found[name, entry] = data
    if not found:
        if whole:
            raise UserError("the cache is empty. Call what you have compiled before you save it")
        raise UserError("this process has used no cache. Call what you have compiled first, without cache=False")
    _write(Path(path), found, secret)
    return len(found)


def load(path: str | os.PathLike[str], key: str | bytes | None) -> int:
    """Takes the entries of a file into the folders, where they get signatures of this user's; returns how many.

    Raises UserError for a file that may not be trusted, is damaged, or is of another kind of machine.
    """
    archive = read(path, key)
    differences = archive.differences()
    if differences:
        raise UserError(f"{archive.path} was saved elsewhere: {'; '.join(differences)}. Save it on a machine like this")
    caches = folders()
    for (name, entry), data in archive.entries.items():
        if not caches[name].write(entry, data):
            folder = caches[name].folder
            raise UserError(f"{folder} cannot be written. Make it writable, or set XDG_CACHE_HOME to a folder that is")
    return len(archive.entries)


def read(path: str | os.PathLike[str], key: str | bytes | None) -> Archive:
    """The file, if its seal holds. Raises UserError otherwise."""
    secret, place = _secret(key), Path(path)
    content = _content(place, trusted=secret is not None)
    sealed = _marked(place, content, secret)
    seal, body = sealed[:SEAL], sealed[SEAL:]
    if not hmac.compare_digest(seal, _seal(secret, body)):
        why = "is damaged" if secret is None else "is damaged, or was saved with another key"
        raise UserError(f"{place} {why}. Save it again")
    try:
        return _parsed(place, body)
    except (ValueError, TypeError, LookupError, RecursionError) as error:
        raise UserError(f"{place} is no cache of this framefuse ({error}). Save it again") from None


def kind_here() -> dict[str, str]:
    """The kind of this process, in what decides whether it can use what another one has saved."""
    return {"format": str(FORMAT), **kind(), "devices": devices()}


# ---- writing ---------------------------------------------------------------------------------------------------------


def _write(path: Path, found: Entries, secret: bytes | None) -> None:
    """Writes the file, all at once, for this user alone."""
    entries = [(*names, len(data)) for names, data in found.items()]
    head = json.dumps({"kind": kind_here(), "entries": entries}).encode()
    body = b"".join((len(head).to_bytes(LENGTH, "little"), head, *found.values()))
    handle, part = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(MARKS[secret is not None] + _seal(secret, body) + body)
        os.replace(part, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(part)
        raise


def _seal(secret: bytes | None, body: bytes) -> bytes:
    return hmac.digest(secret or b"framefuse", body, "sha256")


def _secret(key: Value) -> bytes | None:
    if key is None:
        return None
    if not isinstance(key, (str, bytes)) or not key:
        raise UserError(f"key is {'empty' if key in ('', b'') else kind_of(key)}. Give a text or bytes that others do "
                        "not know, the same to save and to load")  # fmt: skip
    return key.encode() if isinstance(key, str) else key


# ---- reading ---------------------------------------------------------------------------------------------------------


def _content(path: Path, trusted: bool) -> bytes:
    """The bytes of a file. Without a key it must be one that nobody but this user, or root, could have written."""
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise UserError(f"{path} is no file. Give the path of one that save_cache has written")
        if status.st_size > 2 * MOST_BYTES:
            raise UserError(f"{path} has {status.st_size >> 20} MiB, more than a cache holds. Save it again")
        if not trusted and status.st_uid not in (0, os.geteuid()):
            raise UserError(f"{path} belongs to another user, and what it holds is run. Save and load it with a key, "
                            "or copy it if you trust that user")  # fmt: skip
        if not trusted and status.st_mode & 0o022:
            raise UserError(f"{path} can be written by other users, and what it holds is run. Save and load it with a "
                            f"key, or run: chmod go-w {path}")  # fmt: skip
        return file.read()


def _marked(path: Path, content: bytes, secret: bytes | None) -> bytes:
    """What stands behind the mark, which says whether a key is asked for."""
    keyed = next((keyed for keyed, mark in MARKS.items() if content.startswith(mark)), None)
    if keyed is None:
        raise UserError(f"{path} is no cache. Give the path of a file that save_cache has written")
    if keyed and secret is None:
        raise UserError(f"{path} was saved with a key. Give the same key")
    if not keyed and secret is not None:
        raise UserError(f"{path} was saved without a key. Save it with the key, or load it without")
    return content[len(MARKS[keyed]) :]


def _parsed(path: Path, body: bytes) -> Archive:
    """The parts of what the seal holds for; raises ValueError, TypeError or LookupError where it is something else."""
    start = LENGTH + int.from_bytes(body[:LENGTH], "little")
    head = json.loads(body[LENGTH:start])
    kinds = {str(name): str(text) for name, text in head["kind"].items()} if isinstance(head["kind"], dict) else {}
    if kinds.get("format") != str(FORMAT):
        return Archive(path, kinds, {})
    return Archive(path, kinds, dict(_entries(head["entries"], body, start)))


def _entries(rows: Value, body: bytes, start: int) -> Iterator[tuple[tuple[str, str], bytes]]:
    known = folders()
    for folder, name, size in rows:
        if folder not in known or not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(f"an entry {name!r:.40} of {folder!r:.40}")
        if type(size) is not int or not 0 <= size <= len(body) - start:
            raise ValueError(f"an entry of {size!r:.40} bytes")
        yield (folder, name), body[start : start + size]
        start += size
    if start != len(body):
        raise ValueError(f"{len(body) - start} bytes too many")


def _difference(name: str, saved: str, here: str) -> str:
    """What differs, where it begins to."""
    if name == "framefuse":
        return "framefuse is another version, or its files were changed"
    pairs = enumerate(zip(saved, here, strict=False))
    start = next((place for place, (a, b) in pairs if a != b), min(len(saved), len(here)))
    start = max(saved.rfind(" ", 0, start), saved.rfind(",", 0, start)) + 1
    shown = [text[start : start + SHOWN].strip() or "none" for text in (saved, here)]
    return f"{name} was {shown[0]}, is {shown[1]}"
