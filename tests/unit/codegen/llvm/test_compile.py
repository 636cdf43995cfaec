"""Caches, threads, forks and memory of the just-in-time compiler."""

import ctypes
import gc
import os
import signal
import threading
import time

import pytest
import torch
from tests.unit.codegen import kernels as k
from tests.unit.codegen.machine import FUNCTION

from framefuse.codegen.disk_cache import DiskCache
from framefuse.codegen.llvm import compile_kernel, text
from framefuse.codegen.llvm.compile import Compiler
from framefuse.codegen.llvm.emitter import emit
from framefuse.codegen.llvm.target import REFERENCE
from framefuse.ir.dtypes import FLOAT32
from framefuse.ir.loops import Kernel
from framefuse.ir.loops.key import key_of
from framefuse.ir.source import Line


def plus(number: float) -> Kernel:
    return k.pointwise([FLOAT32], k.apply("add", k.load("x0", k.I), k.const(number)))


def value_at(compiled, x: float) -> float:
    given, out = torch.full((3,), x), torch.zeros(3)
    pointers = (ctypes.c_void_p * 2)(given.data_ptr(), out.data_ptr())
    assert FUNCTION(compiled.address)(pointers, (ctypes.c_int64 * 1)(3), 0, 3) == 0
    return out[2].item()


@pytest.fixture
def compiler(tmp_path):
    return Compiler(DiskCache(tmp_path / "kernels"))


def test_equal_kernels_are_compiled_once(compiler):
    first, second = compiler.compile(plus(1.0), False), compiler.compile(plus(1.0), False)
    assert first.address == second.address and first.keep is second.keep
    assert compiler.compiled == 1 and first.seconds and not second.seconds
    other = compiler.compile(plus(2.0), False)
    assert other.address != first.address and compiler.compiled == 2
    assert value_at(first, 1.0) == 2 and value_at(other, 1.0) == 3


def test_a_dropped_kernel_comes_back_without_compiling(compiler):
    first = compiler.compile(plus(3.0), False)
    del first
    gc.collect()
    again = compiler.compile(plus(3.0), False)
    assert compiler.compiled == 1 and set(again.seconds) == {"emit", "load"} and value_at(again, 1.0) == 4


def test_another_process_finds_the_object_code(compiler):
    compiler.compile(plus(4.0), True)
    other = Compiler(DiskCache(compiler.disk.folder))
    assert value_at(other.compile(plus(4.0), True), 1.0) == 5 and other.compiled == 0
    assert not list(compiler.disk.folder.glob("*.part"))


def test_a_damaged_file_is_compiled_anew(compiler):
    compiler.compile(plus(5.0), True)
    (name,) = compiler.disk.names()
    file = compiler.disk.folder / f"{name}.o"
    for damage in (b"", file.read_bytes()[:-10], file.read_bytes().replace(b"kernel", b"kernal")):
        file.write_bytes(damage)
        other = Compiler(DiskCache(compiler.disk.folder))
        assert value_at(other.compile(plus(5.0), True), 1.0) == 6 and other.compiled == 1


def test_a_folder_that_cannot_be_made_is_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    assert value_at(Compiler(DiskCache(tmp_path / "file" / "below")).compile(plus(6.0), True), 1.0) == 7


def test_nothing_is_kept_on_disk_when_not_wanted(compiler):
    compiler.compile(plus(7.0), False)
    assert not compiler.disk.folder.exists()


def test_identity_is_linear_in_shared_values_and_tells_constants_apart():
    value = k.load("x0", k.I)
    for _ in range(200):
        value = k.apply("add", value, value)
    assert key_of(k.pointwise([FLOAT32], value)) == key_of(k.pointwise([FLOAT32], value))
    assert compile_kernel(k.pointwise([FLOAT32], value), False).address
    kernels = [plus(0.0), plus(-0.0), plus(float("nan")), plus(1.0)]
    assert len({key_of(kernel) for kernel in kernels}) == 4
    assert key_of(plus(float("nan"))) == key_of(plus(float("nan")))


def test_title_and_lines_are_not_part_of_the_identity(compiler):
    kernel = plus(8.0)
    named = Kernel("named", kernel.buffers, kernel.numbers, kernel.body, kernel.extent, (Line("file.py", 7, "f"),))
    assert compiler.compile(kernel, False).keep is compiler.compile(named, False).keep
    assert "def named(" in text(named) and "file.py:7 in f" in text(named)


def test_what_a_vector_loop_adds_to_is_one_address_each():
    lines = text(k.layer_norm()).splitlines()
    moved = [line for line in lines if "getelementptr inbounds float" in line]
    frozen = {line.split()[0] for line in lines if "freeze ptr" in line}
    beside = [line for line in moved if line.split(", ")[1].removeprefix("ptr ") in frozen]
    assert len(frozen) == 4 and len(beside) > 16  # the rows of each pass, however their beginnings are computed


def test_threads_compile_at_once(compiler):
    results: dict[int, float] = {}

    def work(number: int) -> None:
        for step in range(4):
            results[number * 10 + step] = value_at(compiler.compile(plus(float(number * 10 + step)), False), 1.0)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: number + 1 for number in results} and len(results) == 16


def test_a_child_forked_during_a_compile_can_compile(compiler):
    """A lock held by a thread that the child does not have would hang it."""
    stop = threading.Event()

    def work() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            compiler.compile(plus(1000.0 + number), False)

    thread = threading.Thread(target=work)
    thread.start()
    failures = 0
    for _ in range(5):
        time.sleep(0.011)
        child = os.fork()
        if child == 0:
            signal.alarm(10)
            os._exit(0 if value_at(compile_kernel(plus(9.0), False), 1.0) == 10 else 1)
        failures += os.waitpid(child, 0)[1] != 0
    stop.set()
    thread.join()
    assert failures == 0


def test_memory_levels_off():
    """Kernels that nobody holds are given back: 150 more cost less than two pages each."""

    def resident() -> int:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGESIZE")

    def compile_many(first: int, count: int) -> None:
        for number in range(first, first + count):
            compile_kernel(plus(20.0 + number / 7), False)

    compile_many(0, 300)
    gc.collect()
    before = resident()
    compile_many(300, 150)
    gc.collect()
    assert resident() - before < 150 * 8192


def test_text_is_for_the_reference_machine(golden):
    """The code of two kernels, as other machines' width and names would change it, for a fixed one."""
    for name, kernel in (("chain", k.chain_sum(3)), ("argmax", k.row_operation("argmax"))):
        module = emit(kernel, REFERENCE)
        golden(module.heading(kernel) + module.text, name)


def test_objects_that_are_loaded_at_once_live_on_their_own(compiler):
    made = [compiler.compile(plus(float(number)), False) for number in range(3)]
    objects = [compiler.object_of(code.keep) for code in made]
    other = Compiler(DiskCache(compiler.disk.folder))
    alone = other.kept(objects[:1], [("alone", 0)])
    first, second, again = other.kept(objects, [("second", 1), ("third", 2), ("second once more", 1)])
    assert other.compiled == 0 and [code.name for code in (first, second)] == ["second", "third"]
    assert again.keep is first.keep and other.kept(objects[:1], [("x", 0)])[0].keep is alone[0].keep
    assert "load" in first.seconds and not second.seconds
    del alone, first, again
    gc.collect()
    assert value_at(second, 1.0) == 3 and set(other._by_name) == {objects[2].name}
