"""Says in what a process must be like another one to read its programs: versions, processor, framefuse's own files."""

from __future__ import annotations

import functools
import os
import sys
from pathlib import Path

import torch

from framefuse.codegen import llvm

FORMAT = 1  # raised where records change their meaning


@functools.cache
def fingerprint() -> tuple[str, ...]:
    """What every key begins with."""
    versions = (torch.__version__, str(torch.version.git_version), sys.version)
    return (str(FORMAT), *versions, llvm.host().key, own_files(str(Path(__file__).parents[2])))


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
