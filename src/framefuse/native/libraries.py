"""Finds functions in the shared libraries that torch has loaded, and reads memory that a probe asks about."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import torch


class Unknown(Exception):
    """A probe found nothing, or more than one possibility."""


class Libraries:
    """The shared libraries that torch has loaded; a missing one, or a missing symbol, is an unknown fact."""

    def __init__(self) -> None:
        folder = Path(torch.__file__).parent / "lib"
        self.folder = folder
        self.cpu = self._open(folder / "libtorch_cpu.so", ctypes.CDLL)
        self.c10 = self._open(folder / "libc10.so", ctypes.CDLL)
        self.python = self._open(folder / "libtorch_python.so", ctypes.PyDLL)
        # of an NVIDIA build, or of one for ROCm; a build without GPUs has neither
        self.cuda = self._open(folder / "libtorch_cuda.so", ctypes.CDLL) or self._open(
            folder / "libtorch_hip.so", ctypes.CDLL
        )
        gomp = next(iter(sorted(folder.glob("libgomp*.so*"))), None)
        self.gomp = self._open(gomp, ctypes.CDLL) if gomp else None

    @staticmethod
    def _open(path: Path, kind: type[ctypes.CDLL]) -> ctypes.CDLL | None:
        try:
            return kind(str(path), mode=ctypes.DEFAULT_MODE | os.RTLD_NOLOAD)
        except OSError:
            return None

    @staticmethod
    def find(library: ctypes.CDLL | None, name: str) -> Any:
        """The function; :class:`Unknown` when there is none."""
        try:
            return library[name]  # type: ignore[index]
        except (AttributeError, TypeError) as error:
            raise Unknown(name) from error

    @staticmethod
    def address(function: Any) -> int:
        """Where the function starts."""
        return ctypes.cast(function, ctypes.c_void_p).value or 0


def word_at(address: int) -> int:
    """The 64 bits there."""
    return ctypes.c_uint64.from_address(address).value


class Peek:
    """Reads memory that may not be there: the kernel, asked to copy from it, refuses where a load would crash."""

    def __enter__(self) -> Peek:
        self.out, self.into = os.pipe()
        self.write = ctypes.CDLL(None)["write"]
        self.write.restype, self.write.argtypes = ctypes.c_ssize_t, [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t]
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.out)
        os.close(self.into)

    def __call__(self, address: int, count: int) -> bytes | None:
        """``count`` bytes (a few), or None."""
        return os.read(self.out, count) if self.write(self.into, address, count) == count else None
