"""Runs tests/gpu/test_programs.py on the CPU's memory through launch steps: a driver that is not there hands each
launch to Triton's interpreter. A program of its own, since Triton reads TRITON_INTERPRET when it is imported.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from framefuse import _native
from framefuse.codegen import targets, triton
from framefuse.codegen.specialisation import Place, Specialisation, at_once
from framefuse.ir.code import LaunchedCode
from framefuse.native import abi

WORDS = {"int64": ctypes.c_int64, "int32": ctypes.c_int32, "real64": ctypes.c_double, "real32": ctypes.c_float}
KERNELS: list[tuple[Any, Any]] = [(None, None)]  # by number: a kernel and its code
COUNTS = {"launches": 0, "unaligned": 0, "sizes": 0}


def memory_at(address: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor that begins there; a kernel reads and writes beyond its one element."""
    raw = (ctypes.c_char * dtype.itemsize).from_address(address)
    return torch.frombuffer(raw, dtype=dtype)


def launched(number: int, grid: int, threads: int, parameters: Any) -> int:
    """What the driver calls: 0, or an error of the driver."""
    kernel, made = KERNELS[number]
    code = made.code
    COUNTS["launches"] += 1
    tensors: list[Any] = [None] * len(kernel.buffers)
    numbers: list[Any] = [0] * len(kernel.numbers)
    for place, (kind, index) in enumerate(code.arguments):
        if kind == "pointer":
            address = ctypes.cast(parameters[place], ctypes.POINTER(ctypes.c_uint64))[0]
            if code.aligned and address % 16:
                return 716
            tensors[index] = memory_at(address, kernel.buffers[index].dtype.torch) if address else torch.empty(0)
        else:
            numbers[index] = ctypes.cast(parameters[place], ctypes.POINTER(WORDS[kind]))[0]
    spare = [parameters[len(code.arguments) + place] for place in range(4)]
    if threads != 32 * code.warps or any(ctypes.cast(each, ctypes.POINTER(ctypes.c_uint64))[0] for each in spare):
        return 1
    return 719 * made.run(tensors, numbers, grid * code.blocks)


def compiled(kernel: Any, special: Specialisation, place: Place) -> LaunchedCode:
    def one(aligned: bool, fitted: bool = False) -> Any:
        COUNTS["unaligned"] += not aligned
        COUNTS["sizes"] += aligned and not fitted
        wanted = replace(special, aligned=aligned, fitted=fitted)
        made = triton.by_interpreter(kernel, wanted, replace(place, load=None))
        KERNELS.append((kernel, made))
        return replace(made.code, function=place.load(str(len(KERNELS) - 1).encode() + b"\0", made.code.name, 0))

    code = one(True, fitted=True)
    return LaunchedCode(code, lambda aligned: (one(aligned).function, 0), 32 * code.warps)


def driver() -> Any:
    path = f"{tempfile.mkdtemp(prefix='callback_driver')}/libdriver.so"
    source = Path(__file__).with_name("callback_driver.c")
    flags = ["-std=gnu11", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"]
    subprocess.run([os.environ.get("CC", "cc"), *flags, str(source), "-o", path], check=True)
    kind = ctypes.PYFUNCTYPE(
        ctypes.c_int, ctypes.c_int, ctypes.c_uint, ctypes.c_uint, ctypes.POINTER(ctypes.c_void_p)
    )
    function = kind(launched)
    library = ctypes.CDLL(path)
    ctypes.c_void_p.in_dll(library, "fake_callback").value = ctypes.cast(function, ctypes.c_void_p).value
    _native.use_driver(path)
    return library, function


if __name__ == "__main__":
    held = driver()
    abi.FALLBACKS["stream"] = lambda device: 0
    abi.initialise(without=("stream",))
    targets.BACKENDS["cpu"] = replace(targets.BACKENDS["cuda"], target=targets.BACKENDS["cpu by triton"].target,
                                      compile=at_once(compiled), lacks=lambda: None)  # fmt: skip
    os.environ["FRAMEFUSE_TEST_DEVICE"] = "cpu"
    status = pytest.main(["-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *sys.argv[1:]])
    print(f"{COUNTS['launches']} launches, {COUNTS['unaligned']} for any pointers, {COUNTS['sizes']} for any sizes")
    sys.exit(status or not all(COUNTS.values()))
