"""A plugin of pytest: kernels of the CPU's tensors are launched by the native plan, on a driver of GPUs that are not
there, and Triton's interpreter runs them. So all that stands between a graph and a launch is what a GPU gets.
"""

from __future__ import annotations

import contextlib
import ctypes
import dataclasses
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.unit.native.fake_driver import FakeDriver, fake_driver

from framefuse.codegen import targets, triton
from framefuse.codegen.specialisation import Place, Specialisation, at_once
from framefuse.ir.code import DeviceCode, LaunchedCode, Run
from framefuse.ir.loops import Kernel
from framefuse.native import abi

ASSERT = 710  # the driver's error when a check on the device failed
KINDS = {"int32": ctypes.c_int32, "int64": ctypes.c_int64, "real64": ctypes.c_double, "real32": ctypes.c_float}
WHOLE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p), ctypes.c_uint)


def tensor_at(address: int, dtype: torch.dtype) -> torch.Tensor:
    """One element: a kernel is given an address, and not how much lies there; the interpreter goes by that as well."""
    if not address:
        return torch.empty(0, dtype=dtype)
    return torch.frombuffer((ctypes.c_char * dtype.itemsize).from_address(address), dtype=dtype)


def function_of(driver: FakeDriver, kernel: Kernel, code: DeviceCode, run: Run) -> tuple[int, Any]:
    """A kernel of the driver that reads its arguments as a GPU would, and what must live as long as it."""

    def whole(parameters: Any, grid: int) -> int:
        tensors: list[Any] = [None] * len(kernel.buffers)
        numbers: list[Any] = [None] * len(kernel.numbers)
        for at, (kind, place) in enumerate(code.arguments):
            if kind == "pointer":
                address = ctypes.cast(parameters[at], ctypes.POINTER(ctypes.c_uint64)).contents.value
                tensors[place] = tensor_at(address, kernel.buffers[place].dtype.torch)
            else:
                numbers[place] = ctypes.cast(parameters[at], ctypes.POINTER(KINDS[kind])).contents.value
        try:
            return ASSERT if run(tensors, numbers, grid * code.blocks) else 0
        except BaseException:
            pytest.fail("the kernel could not be run", pytrace=True)

    called = WHOLE(whole)
    make = driver.library.fake_function
    make.restype, make.argtypes = ctypes.c_void_p, [ctypes.c_char_p, ctypes.c_int, ctypes.c_void_p]
    return make(code.name.encode(), len(code.arguments), ctypes.cast(called, ctypes.c_void_p)), called


@contextlib.contextmanager
def launched() -> Iterator[FakeDriver]:
    """Inside, FRAMEFUSE_CPU_TARGET=triton means launches."""
    kept: list[Any] = []
    before = targets.BACKENDS["cpu by triton"]
    stream = abi.FALLBACKS["stream"]

    def compile(kernel: Kernel, special: Specialisation, place: Place) -> LaunchedCode:
        def one(aligned: bool, fitted: bool = False) -> Any:
            made = triton.by_interpreter(
                kernel, dataclasses.replace(special, aligned=aligned, fitted=fitted), Place(place.device)
            )
            function, called = function_of(driver, kernel, made.code, made.run)
            kept.append(called)
            return dataclasses.replace(made.code, function=function)

        code = one(True, fitted=True)
        return LaunchedCode(code, lambda aligned: (one(aligned).function, 0), 32 * code.warps)

    with fake_driver() as driver:
        targets.BACKENDS["cpu by triton"] = dataclasses.replace(before, compile=at_once(compile))
        abi.FALLBACKS["stream"] = lambda index: 0
        abi.initialise(without=("stream",))
        yield driver
        targets.BACKENDS["cpu by triton"] = before
        abi.FALLBACKS["stream"] = stream


@pytest.fixture(autouse=True, scope="session")
def launched_programs() -> Iterator[None]:
    with launched() as driver:
        yield
    print(f"{driver.launch_count} launches")
