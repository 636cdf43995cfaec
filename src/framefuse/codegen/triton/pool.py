"""Compiles kernels in several processes: Triton's first stages are Python, of which a process runs one thread at once.

Processes are started where many kernels are to be compiled that no cache has and there are cores for them: when a graph
comes that is large enough to have so many, or when some were missed. They end some seconds after the last. What they
cannot do, or no longer do, this process does.
"""

from __future__ import annotations

import atexit
import io
import os
import pickle
import queue
import socket
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import cast

from framefuse.codegen.triton.stages import Binary, Job, run
from framefuse.codegen.triton.vendor import NVIDIA
from framefuse.codegen.unsupported import Unsupported

MANY = 8  # kernels of a graph for which processes may be started; chosen
NODES = 300  # of a graph that is likely to have as many; chosen
MISSED = 4  # of them that had to be compiled before they are: they take a third of a second to start; chosen
MOST = 12  # processes; chosen
HERE = 1  # kernels that this process compiles at once beside the others; chosen
ALONE = 8  # threads that compile without others; chosen
KEPT = 15.0  # seconds that processes wait for more kernels; chosen


def started(count: int) -> list[Process]:
    """So many processes: the first imports Triton, and the others are forks of it, of which each would need a fifth of
    a second of a core to import it, while fuse is at work on another. Raises OSError where there can be none.
    """
    command = [sys.executable, "-S", str(Path(__file__).with_name("far_side.py"))]
    pairs = [socket.socketpair() for _ in range(count - 1)]
    try:
        far = [there.fileno() for _, there in pairs]
        # Nothing is held back on this side, which a forked child would write once more.
        child = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, pass_fds=far
        )
        first = Process(child, cast(io.RawIOBase, child.stdin), cast(io.RawIOBase, child.stdout))
        forks = [Process(None, *_both_ways(here.detach())) for here, _ in pairs]
        first.ask((list(sys.path), NVIDIA, far))
        return [first, *forks]
    finally:
        for here, there in pairs:
            here.close()
            there.close()


def _both_ways(place: int) -> tuple[io.RawIOBase, io.RawIOBase]:
    return io.FileIO(place, "w", closefd=False), io.FileIO(place)


class Process:
    """A process that compiles, for one thread at a time: this one's ``child``, or a fork of it, which ends with it and
    where this side is closed.
    """

    def __init__(
        self, child: subprocess.Popen[bytes] | None, jobs: io.RawIOBase, answers: io.RawIOBase
    ) -> None:
        self._child, self._jobs, self._answers = child, jobs, answers
        self._read = io.BufferedReader(answers)

    def answer(self) -> object:
        """What it says next. Raises an error of pickling or of the system where it ended."""
        return pickle.load(self._read)

    def compiled(self, job: Job) -> object:
        """The answer to a job."""
        self.ask(tuple(job))
        return self.answer()

    def ask(self, what: object) -> None:
        """Sends something over."""
        left = memoryview(pickle.dumps(what))
        while left:
            left = left[self._jobs.write(left) or 0 :]

    def end(self) -> None:
        """Ends it, whatever it does."""
        if self._child is not None:
            with suppress(OSError):
                self._child.kill()
                self._child.wait()
        self.leave()

    def leave(self) -> None:
        """Closes this side."""
        if self._child is not None:  # of a forked child's parent, it is not to wait for
            self._child.returncode = self._child.returncode or 0
        for pipe in (self._jobs, self._answers):
            with suppress(OSError):
                pipe.close()


class Pool:
    """The processes of this one. ``most``: how many there may be, None for what the cores allow."""

    def __init__(self, most: int | None = None, kept: float = KEPT) -> None:
        self.far = 0  # kernels that other processes compiled
        self._most, self._kept = most, kept
        self._lock = threading.Lock()
        self._wanted = 0  # processes for the graph at hand
        self._missed = 0  # kernels of it that no cache had
        self._found = False  # whether caches had nearly all kernels of the last large graph
        self._all: list[Process] = []
        self._places: queue.SimpleQueue[Process | None] = queue.SimpleQueue()  # None: this process
        self._timer: threading.Timer | None = None
        self._busy = 0

    def prepare(self, nodes: int) -> None:
        """Starts processes for a graph of so many nodes while its kernels are not known yet, unless caches had those of
        the last one.
        """
        if nodes >= NODES and not self._all and not self._found:
            threading.Thread(target=self._prepare, daemon=True).start()

    def _prepare(self) -> None:
        most = self._allowed()
        with self._lock:
            if most > 1 and not self._all:
                self._wanted = most
                self._start()
                self._wait()

    def _allowed(self) -> int:
        return _allowed() if self._most is None else self._most

    def threads(self, kernels: int) -> int:
        """In how many threads the kernels of a graph, so many, are best compiled."""
        most = self._allowed()
        wanted = min(most, kernels - HERE) if kernels >= MANY and most > 1 else 0
        with self._lock:
            self._wanted, self._missed, self._found = wanted, 0, kernels >= MANY
            return min(kernels, max(ALONE, HERE + max(wanted, len(self._all))))

    def compiled(self, job: Job) -> Binary:
        """The code of a function. Raises Unsupported where Triton refuses it, and what its compiler raises."""
        with self._lock:
            self._missed += 1
            self._found = self._found and self._missed < MISSED
            if not self._all and self._wanted and self._missed >= MISSED:
                self._start()
            alone, places = not self._all, self._places
            self._busy += 1
        try:
            return run(job) if alone else self._placed(job, places)
        finally:
            with self._lock:
                self._busy -= 1
                if self._all and not self._busy:
                    self._wait()

    def _placed(self, job: Job, places: queue.SimpleQueue[Process | None]) -> Binary:
        place = places.get()
        if place is None:
            try:
                return run(job)
            finally:
                places.put(None)
        try:
            answer = place.compiled(job)
        except Exception:  # it ended: killed, out of memory, or by a fault of a compiler
            self._drop(place)
            return run(job)
        places.put(place)
        if isinstance(answer, str):
            raise Unsupported(answer)
        if not isinstance(answer, tuple):
            return run(job)
        self.far += 1
        code, shared = answer
        return Binary(code, shared, {})

    def _start(self) -> None:
        """Starts as many processes as are wanted; the lock is held."""
        places = self._places = queue.SimpleQueue()
        for _ in range(HERE):
            places.put(None)
        try:
            made = started(self._wanted)
        except (OSError, ValueError):  # no process can be had
            self._wanted = 0
            return
        for process in made:
            try:
                threading.Thread(target=self._ready, args=(process, places), daemon=True).start()
            except RuntimeError:  # no thread can be had
                process.end()
                self._wanted = 0
            else:
                self._all.append(process)

    def _ready(self, process: Process, places: queue.SimpleQueue[Process | None]) -> None:
        try:
            process.answer()
        except Exception:
            self._drop(process)
        else:
            places.put(process)

    def _drop(self, process: Process) -> None:
        """Does without a process that ended, and starts no others."""
        process.end()
        with self._lock:
            if process in self._all:  # it was not ended from here
                self._most = self._wanted = 0
                self._all.remove(process)

    def _wait(self) -> None:
        """Ends the processes when nothing was compiled for a while; the lock is held."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = threading.Timer(self._kept, self.end, (False,))
        self._timer.daemon = True
        with suppress(RuntimeError):  # no thread can be had: the processes end with this one
            self._timer.start()

    def end(self, busy: bool = True) -> None:
        """Ends all processes; without ``busy`` only where none compiles."""
        with self._lock:
            if self._busy and not busy:
                return
            if self._timer is not None:
                self._timer.cancel()
            ending, self._all = self._all, []
        for process in ending:
            process.end()

    def forget(self) -> None:
        """In a forked child: the processes are its parent's."""
        for process in self._all:
            process.leave()
        self.__init__(self._most, self._kept)  # type: ignore[misc]


def _allowed() -> int:
    """Processes that there are idle cores for; those of a job's other processes on this machine have theirs."""
    if not Path(sys.executable or "").name.startswith("python"):
        return 0  # Python is a part of another program, which must not be started once more
    try:
        cores = len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        cores = os.cpu_count() or 1
    with suppress(ValueError):
        cores //= max(1, int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
    with suppress(AttributeError, OSError):
        busy = os.getloadavg()[0] / (os.cpu_count() or 1)  # of all cores, of which this process may have a part
        cores = round(cores * max(0.0, 1.0 - busy))
    return max(0, min(MOST, cores - HERE - 1))


PROCESS = Pool()
atexit.register(PROCESS.end)
os.register_at_fork(after_in_child=PROCESS.forget)
