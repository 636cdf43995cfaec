"""Draws the mask of dropout as eager's kernel of a GPU does, from the same places of the generator's stream.

Each of that kernel's threads has a stream of its own (Philox: the thread's number beside the generator's offset), from
which it takes four numbers at a time for ``sets`` words of four neighbours, then moves on by as many as all threads
took. How many threads and sets there are is read off the device and the dtype, and held to eager's kernel once.
"""

from __future__ import annotations

from ctypes import c_float
from functools import cache

import torch
import triton
import triton.language as tl

from framefuse.ir.target import default_generator

THREADS, WORD = 256, 4  # of a block of eager's kernel; numbers that a thread takes at a time, and bytes of a mask
TURNS = 3  # of all threads, in the mask that is held to eager's
BLOCK, WARPS = 512, 8  # words of a program of ours: threads of eager's are a multiple of 256


@triton.jit(do_not_specialize=["low", "high", "first_low", "first_high", "bound", "words", "threads"])  # type: ignore[untyped-decorator]
def draw(  # type: ignore[no-untyped-def]
    mask, low, high, first_low, first_high, bound, words, threads, sets: tl.constexpr, block: tl.constexpr
):
    """Sets the bytes of ``mask``, four in a word, to whether their numbers are below ``bound``; a number of 64 bits
    comes in two halves, and all that have 32 are signed.
    """
    thread = tl.program_id(0) * block + tl.arange(0, block)
    turn = tl.program_id(1)
    seed = (tl.cast(high, tl.int64) << 32) | (tl.cast(low, tl.int64) & 0xFFFFFFFF)
    first = (tl.cast(first_high, tl.int64) << 32) | (tl.cast(first_low, tl.int64) & 0xFFFFFFFF)
    below = tl.cast(bound, tl.uint32, bitcast=True)
    zero = tl.zeros((block,), tl.int32)
    bytes_ = mask.to(tl.pointer_type(tl.int32))
    for number in tl.static_range(sets):
        word = (tl.cast(turn, tl.int64) * threads + thread) * sets + number
        taken = first + turn * sets + number
        a, b, c, d = tl.philox(seed, zero + taken.to(tl.int32), zero + (taken >> 32).to(tl.int32), thread, zero)
        kept = (a < below).to(tl.int32) | ((b < below).to(tl.int32) << 8)
        kept = kept | ((c < below).to(tl.int32) << 16) | ((d < below).to(tl.int32) << 24)
        tl.store(bytes_ + word, kept, mask=(thread < threads) & (word < words))


def drawn(mask: torch.Tensor, dtype: torch.dtype, p: float) -> bool:
    """Draws a mask into dense memory, for what has this dtype and loses the part ``p``; False, and nothing done, where
    eager's kernel would take the numbers in another way than ours does, or notes for a graph what it takes.
    """
    device, count = str(mask.device), mask.numel()
    if count % (16 // dtype.itemsize) or torch.cuda.is_current_stream_capturing():
        return False
    sets = _sets(dtype, device)
    return bool(sets) and _draw(mask, p, sets)


def _draw(mask: torch.Tensor, p: float, sets: int) -> bool:
    device, count = mask.device, mask.numel()
    generator = default_generator(str(device))
    assert generator is not None
    threads = _threads(count, device)
    seed, offset = generator.initial_seed(), generator.get_offset()
    turns = -(-count // (threads * WORD))  # in each of which a thread takes four numbers, needed or not
    generator.set_offset(offset + turns * WORD)
    words = count // WORD
    numbers = (*_halves(seed), *_halves(offset // WORD), _signed(bound(p)), words, threads)
    grid = -(-threads // BLOCK), -(-words // (threads * sets))
    with torch.cuda.device(device):
        draw[grid](mask, *numbers, sets=sets, block=BLOCK, num_warps=WARPS)
    return True


def _threads(count: int, device: torch.device) -> int:
    """How many threads eager's kernel has."""
    machine = torch.cuda.get_device_properties(device)
    most = machine.multi_processor_count * (machine.max_threads_per_multi_processor // THREADS)
    return min(most, -(-count // THREADS)) * THREADS


@cache
def _sets(dtype: torch.dtype, device: str) -> int:
    """How many times in a row a thread of eager's kernel takes four numbers; 0 where no number gives eager's mask."""
    wide = 16 // dtype.itemsize // WORD
    if dtype.itemsize > WORD or not hasattr(torch.Generator, "set_offset"):
        return 0
    generator = default_generator(device)
    assert generator is not None
    place = torch.device(device)
    before = generator.get_offset()
    count = _threads(1 << 40, place) * WORD * wide * TURNS - 16 // dtype.itemsize
    memory = torch.empty(count, dtype=dtype, device=device)
    expected = torch.native_dropout(memory, 0.3, True)[1]
    after = generator.get_offset()
    try:
        for sets in dict.fromkeys((wide, 1)):
            generator.set_offset(before)
            found = torch.empty_like(expected)
            if _draw(found, 0.3, sets) and torch.equal(found, expected) and generator.get_offset() == after:
                return sets
        return 0
    finally:
        generator.set_offset(before)


@cache
def bound(p: float) -> int:
    """The least number of 32 bits for which an element is dropped: eager makes a float32 of it, in (0, 1], and compares
    that to the part that is kept.
    """
    kept = c_float(1.0 - p).value
    low, high = 0, 1 << 32
    while low < high:
        middle = (low + high) // 2
        if c_float(c_float(middle).value * 2.0**-32 + 2.0**-33).value < kept:
            low = middle + 1
        else:
            high = middle
    return low


def _halves(number: int) -> tuple[int, int]:
    """The low and the high 32 bits of a number."""
    return _signed(number & 0xFFFFFFFF), _signed(number >> 32 & 0xFFFFFFFF)


def _signed(number: int) -> int:
    """32 bits as a signed number: Triton compiles anew for what does not fit."""
    return number - (1 << 32) if number >= 1 << 31 else number
