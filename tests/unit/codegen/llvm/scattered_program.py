"""Compiles kernels in a process whose free addresses are single pages, gigabytes apart.

CUDA's reservations leave an address space like this. Sections of one object that are placed one by one then lie too far
apart for the addresses in its code: LLVM built with assertions aborts, without them the code reads foreign memory.
"""

import ctypes
import mmap

import torch

import framefuse

PAGE = mmap.PAGESIZE
APART = 3 << 30
HOLES = 13
MAP_NORESERVE = 0x4000

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]


def reserve(size: int) -> int:
    """The address of ``size`` reserved bytes, in the highest gap that has room for them."""
    return int(libc.mmap(None, size, 0, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE, -1, 0))


def scatter() -> None:
    """Fills the gaps of the address space but for holes of one or two pages."""
    first = reserve(APART * HOLES)
    for hole in range(HOLES):
        libc.munmap(first + hole * APART, (1 + hole % 2) * PAGE)
    page = reserve(PAGE)
    while page > first + APART * HOLES:
        page = reserve(PAGE)
    libc.munmap(page, PAGE)


def gaussian(x: torch.Tensor) -> torch.Tensor:
    return torch.erf(x) * 2.5 + torch.tanh(x)


def logistic(x: torch.Tensor) -> torch.Tensor:
    return torch.exp(x) * 3.5 + torch.sigmoid(x)


def main() -> None:
    programs = {function: framefuse.compile(function) for function in (gaussian, logistic)}
    scatter()
    for function, compiled in programs.items():
        for _ in range(4):
            x = torch.randn(100)
            torch.testing.assert_close(compiled(x), function(x))
        assert framefuse.explain(compiled).hits
    print("equal")


if __name__ == "__main__":
    main()
