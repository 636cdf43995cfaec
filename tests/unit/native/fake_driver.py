"""Builds the driver of GPUs that are not there, and reads what it was asked."""

from __future__ import annotations

import ctypes
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

from framefuse import _native


class Launch(ctypes.Structure):
    """One launch as the driver saw it; ``device`` is that of the current context."""

    _fields_ = [
        ("raw_name", ctypes.c_char * 32),
        ("grid", ctypes.c_uint),
        ("threads", ctypes.c_uint),
        ("shared", ctypes.c_uint),
        ("stream", ctypes.c_void_p),
        ("device", ctypes.c_int),
        ("parameters_null", ctypes.c_int),
    ]

    @property
    def name(self) -> str:
        return bytes(self.raw_name).decode()


class FakeDriver:
    """The library, its counters as attributes."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.library = ctypes.CDLL(path)

    def __getattr__(self, name: str) -> int:
        return ctypes.c_int.in_dll(self.library, f"fake_{name}").value

    def fail(self, what: str, code: int) -> None:
        """From now on "launch", "load", "attribute" or "init" answers with this error; 0: with success."""
        ctypes.c_int.in_dll(self.library, f"fake_fail_{what}").value = code

    def function(self, name: str, shared: int = 0, device: int = 0) -> int:
        return _native.load_module(b"module", name, shared, device)

    @property
    def launches(self) -> list[Launch]:
        """In order, the last 256."""
        return list((Launch * 256).in_dll(self.library, "fake_launches"))[: self.launch_count]


@cache
def _built() -> FakeDriver:
    folder = tempfile.mkdtemp(prefix="fake_driver")
    path = f"{folder}/libfakecuda.so"
    source = Path(__file__).with_suffix(".c")
    flags = ["-std=gnu11", "-O1", "-g", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([os.environ.get("CC", "cc"), *flags, str(source), "-o", path], check=True)
    return FakeDriver(path)


@contextmanager
def fake_driver() -> Iterator[FakeDriver]:
    """The extension works with the fake driver inside."""
    driver = _built()
    driver.library.fake_reset()
    _native.use_driver(driver.path)
    try:
        yield driver
    finally:
        _native.use_driver(None)
