"""Kernels that several processes compile: the code that this one would make, whatever becomes of the processes."""

import os
import queue
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from tests.unit.codegen import kernels as k

from framefuse.codegen.specialisation import Place, Specialisation
from framefuse.codegen.triton import compile as compiling
from framefuse.codegen.triton import pool as pools
from framefuse.codegen.triton.compile import compile_kernel
from framefuse.codegen.triton.target import REFERENCE
from framefuse.codegen.unsupported import Unsupported
from framefuse.ir.dtypes import FLOAT32

NESTS = [
    k.pointwise([FLOAT32], k.apply(name, k.load("x0", k.I)))
    for name in ("sin", "cos", "exp", "abs", "neg", "floor", "ceil", "sqrt", "log")
]


@pytest.fixture(scope="module")
def processes():
    """Two that are started once."""
    made = pools.Pool(most=2, kept=600)
    yield made
    made.end()


@pytest.fixture
def pool(processes, monkeypatch):
    monkeypatch.setattr(pools, "PROCESS", processes)
    if not processes._all:
        binaries()
        ready(processes)
    return processes


def binaries(nests=NESTS):
    """What is compiled anew in as many threads as the pool says."""
    compiling.PROCESS._codes.clear()
    special = Specialisation({k.N: 1000})
    with ThreadPoolExecutor(pools.PROCESS.threads(len(nests))) as threads:
        place = Place("cpu", None, False)
        return [c.binary for c in threads.map(lambda nest: compile_kernel(nest, special, place, on=REFERENCE), nests)]


def ready(pool, least=0):
    """Waits until its processes take jobs."""
    end = time.monotonic() + 60
    while pool._places.qsize() < 1 + max(least, len(pool._all)) and time.monotonic() < end:
        time.sleep(0.05)


@pytest.fixture(scope="module")
def expected():
    """What this process makes alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "PROCESS", pools.Pool(most=0))
        binaries(NESTS[:1])  # the folder of files is made by one thread
        return binaries()


def test_code_is_the_same_wherever_it_is_compiled(expected, pool):
    before = pool.far
    assert binaries() == expected
    assert pool.far > before + 2


def test_few_kernels_and_those_that_caches_have_start_no_process(monkeypatch):
    pool = pools.Pool(most=2)
    monkeypatch.setattr(pools, "PROCESS", pool)
    monkeypatch.setattr(pools, "started", lambda count: pytest.fail("a process was started"))
    binaries(NESTS[:5])
    pool.threads(20)
    binaries(NESTS[:3])  # the others are found


def test_processes_start_when_a_large_graph_comes(expected, monkeypatch):
    """Unless caches had the kernels of the last one."""
    pool = pools.Pool(most=2)
    monkeypatch.setattr(pools, "PROCESS", pool)
    pool.prepare(pools.NODES - 1)
    assert not pool._all
    pool.prepare(pools.NODES)
    ready(pool, 2)
    assert len(pool._all) == 2 and pool._timer is not None
    assert binaries() == expected and pool.far > 2
    pool.end()
    pool.threads(len(NESTS))
    monkeypatch.setattr(pools, "started", lambda count: pytest.fail("a process was started"))
    pool.prepare(pools.NODES)
    assert not pool._all


def test_what_triton_refuses_is_refused(pool, monkeypatch):
    monkeypatch.setattr(pools, "run", lambda job: pytest.fail("it was compiled here"))
    path = compiling._written(compiling.module_of(NESTS[0], Specialisation()), NESTS[0], False)
    path = path.with_name("refused.py")
    path.write_text("import triton\n\n\n@triton.jit\ndef refused(b0):\n    b0.no_such_thing()\n")
    job = pools.Job(str(path), "refused", {"b0": "*fp32"}, {}, True, 4, False, ("cuda", 90, 32), None)
    while (place := pool._places.get()) is None:  # that of this process
        pool._places.put(place)
    pool._places.put(place)
    alone: queue.SimpleQueue = queue.SimpleQueue()
    alone.put(place)
    with pytest.raises(Unsupported, match="Triton refuses refused"):
        pool._placed(job, alone)


def test_a_forked_child_leaves_them_to_its_parent(expected, pool):
    child = os.fork()
    if not child:
        pool.forget()
        os._exit(int(bool(pool._all)))
    assert os.waitpid(child, 0)[1] == 0
    before = pool.far
    assert binaries() == expected and pool.far > before


def test_processes_that_end_are_done_without(expected, pool):
    pool._all[0]._child.kill()
    assert binaries() == expected
    assert not pool._all
    assert binaries() == expected and not pool._all  # nor are others started


def test_without_processes_threads_compile(pool, monkeypatch):
    def none(count):
        raise OSError("no more processes")

    monkeypatch.setattr(pools, "started", none)
    assert len(set(binaries())) == len(NESTS)


def test_processes_end_when_nothing_was_compiled_for_a_while(monkeypatch):
    pool = pools.Pool(most=2, kept=0.2)
    monkeypatch.setattr(pools, "PROCESS", pool)
    binaries()
    (first, fork), end = list(pool._all), time.monotonic() + 30
    while first._child.poll() is None and time.monotonic() < end:
        time.sleep(0.05)
    assert not pool._all and first._child.poll() is not None and fork._child is None


def test_no_process_outlives_the_program():
    """Also one that is killed."""
    text = """
import os, signal
from pathlib import Path
from framefuse.codegen.triton.pool import started

def parent(folder):
    try:
        return int((folder / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0

ready = started(3)
for each in ready:
    each.answer()
(begun,) = started(1)
first = ready[0]._child.pid
forks = [p.name for p in Path("/proc").glob("[0-9]*") if parent(p) == first]
assert len(forks) == 2
print(first, begun._child.pid, *forks, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True)
    numbers = [int(each) for each in done.stdout.split()]
    assert numbers, done.stderr
    end = time.monotonic() + 30
    while any(running(number) for number in numbers) and time.monotonic() < end:
        time.sleep(0.1)
    assert not any(running(number) for number in numbers)


def running(number):
    try:
        with open(f"/proc/{number}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_how_many_there_may_be(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)), raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 32)
    monkeypatch.setattr(os, "getloadavg", lambda: (0.3, 8.0, 8.0), raising=False)
    monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
    assert pools._allowed() == pools.MOST
    monkeypatch.setattr(os, "getloadavg", lambda: (17.0, 1.0, 1.0), raising=False)
    assert pools._allowed() == 6
    monkeypatch.setattr(os, "getloadavg", lambda: (0.3, 8.0, 8.0), raising=False)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert pools._allowed() == 2
    monkeypatch.setattr(sys, "executable", "/usr/bin/editor")
    assert pools._allowed() == 0
