"""Says in what a process must be like another one to read its programs: versions, processor, framefuse's own files."""

from __future__ import annotations

import functools
import hashlib
import os
import platform
import sys
from importlib import metadata
from pathlib import Path

import torch

from framefuse import _native
from framefuse.codegen import llvm
from framefuse.codegen.disk_cache import DiskCache, cache_folder

FORMAT = 4  # raised where records change their meaning
PACKAGE = Path(__file__).parents[2]
PROCESS = DiskCache(cache_folder("versions"))


@functools.cache
def fingerprint() -> tuple[str, ...]:
    """What every key begins with."""
    return (str(FORMAT), *kind().values())


@functools.cache
def kind() -> dict[str, str]:
    """The kind of this process and its machine, by what a user calls each part of it."""
    return {
        "torch": f"{torch.__version__} {torch.version.git_version}",
        "Python": sys.version,
        "processor": processor(),
        "framefuse": own_contents(PACKAGE),
    }


def processor() -> str:
    """This processor, named without LLVM where that can be: importing it takes longer than a call that is found."""
    found = _native.processor()
    if found is None:
        return llvm.host().key
    name, features = found
    return f"{platform.machine()} {name} {hashlib.sha256(features).hexdigest()[:16]}"


@functools.cache
def llvm_here() -> str | None:
    """The version of the LLVM that would compile; None where there is none, which takes what another one compiled."""
    try:
        return metadata.version("llvmlite")
    except metadata.PackageNotFoundError:
        return None


def own_contents(package: Path) -> str:
    """A digest of the files of a package, equal wherever their contents are; they are read where no process has done
    so since one of them changed.
    """
    files = own_files(str(package))
    key = hashlib.sha256(f"{package}\n{files}".encode()).hexdigest()
    known = PROCESS.read(key)
    if known is not None:
        return known.decode()
    content = hashlib.sha256()
    for line in files.split("\n"):
        name = line.rsplit(" ", 2)[0]
        with open(f"{package}{name}", "rb") as file:
            content.update(f"{name}\n".encode() + hashlib.sha256(file.read()).digest())
    PROCESS.write(key, content.hexdigest().encode())
    return content.hexdigest()


def own_files(folder: str) -> str:
    """The names, sizes and times of all files of a package: those by which Python itself tells that one has changed."""
    found: list[str] = []
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name == "__pycache__":
                    continue
                if entry.is_dir():
                    waiting.append(entry.path)
                elif entry.name.endswith((".py", ".so")):
                    status = entry.stat()
                    found.append(f"{entry.path[len(folder) :]} {status.st_size} {status.st_mtime_ns}")
    return "\n".join(sorted(found))
