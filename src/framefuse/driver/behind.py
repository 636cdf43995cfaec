"""Compiles behind the program's calls: in one thread, which stands still while the process forks and ends with it."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from framefuse.driver.programs import later

Job = Callable[[], None]
# Seconds after which a job leaves Python to a call that waits for it: torch's operations give Python away and want it
# back, and Python's own 5 ms for each made calls 17 times slower than eager's while something was compiled.
TURN = 0.0005
ENOUGH = 10.0  # seconds for which the end of a process waits for one kernel that is being compiled


class Ended(BaseException):
    """Ends a job where it stands: the process ends."""


class Behind:
    """Jobs in their order, each of which sees to its own faults; the thread ends with its work.

    A job passes checkpoints, at which it holds no lock. Only there it stops for a fork, whose child gets a whole
    compiler and none of the jobs, and for the end of the process.
    """

    def __init__(self) -> None:
        self._jobs: deque[Job] = deque()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # of the two above and the number of forks
        self._gate = threading.Lock()  # held by a job between its checkpoints
        self._go = threading.Event()
        self._go.set()
        self._forks = 0
        self._ending = False
        self._hurried = False
        self._turns: tuple[float, float] | None = None  # Python's interval before a job, and while there is one

    def put(self, job: Job) -> bool:
        """Takes one more job; False where no thread can be had."""
        with self._lock:
            if self._ending:
                return False
            self._jobs.append(job)
            if self._thread is not None:
                return True
            self._thread = threading.Thread(target=self._work, name="framefuse-behind", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the process ends, or may have no more threads
                self._thread = None
                self._jobs.clear()
                return False
        return True

    def checkpoint(self) -> None:
        """A place in a job, or in a compilation that is none, where it may be left for a while or for good."""
        if not (self._forks or self._ending) or threading.current_thread() is not self._thread:
            return
        self._gate.release()
        self._go.wait()
        self._gate.acquire()
        if self._ending:
            raise Ended

    @property
    def here(self) -> bool:
        """Whether this is the thread that compiles behind calls."""
        return threading.current_thread() is self._thread

    @contextmanager
    def hurry(self) -> Iterator[None]:
        """What a job compiles within is wanted soon, as calls run eagerly meanwhile."""
        self._hurried = True
        try:
            yield
        finally:
            self._hurried = False

    @property
    def hurried(self) -> bool:
        """Whether code is wanted soon rather than good, where this is asked."""
        return self._hurried and self.here

    @property
    def ending(self) -> bool:
        """Whether the process ends, so that what fails in a job is no fault."""
        return self._ending or not threading.main_thread().is_alive()

    def finish(self) -> None:
        """Waits until all is done."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def end(self) -> None:
        """Drops what has not begun and has the rest end at its next checkpoint, for the end of the process."""
        with self._lock:
            self._ending = True
            self._jobs.clear()
        thread = self._thread
        if thread is not None:
            thread.join(ENOUGH)
        later.PROCESS.finish()  # what it has kept

    def before_fork(self) -> None:
        """Waits until the job under way stands at a checkpoint."""
        if threading.current_thread() is self._thread:
            return
        with self._lock:
            self._forks += 1
            self._go.clear()
        self._gate.acquire()

    def after_fork(self) -> None:
        """Goes on in the parent."""
        if threading.current_thread() is self._thread:
            return
        with self._lock:
            self._forks -= 1
            if not self._forks:
                self._go.set()
        self._gate.release()

    def forget(self) -> None:
        """Drops all: for a forked child, which has no thread of ours."""
        self._restore_turns()
        self.__init__()  # type: ignore[misc]

    def _work(self) -> None:
        try:
            while True:
                with self._lock:
                    if not self._jobs:
                        self._thread = None
                        return
                    job = self._jobs.popleft()
                with self._gate:
                    self._shorten_turns()
                    try:
                        job()
                    finally:
                        self._restore_turns()
        except Ended:
            pass

    def _shorten_turns(self) -> None:
        """Threads wait for each other no longer than a job may keep them waiting."""
        before = sys.getswitchinterval()
        sys.setswitchinterval(min(before, TURN))
        self._turns = before, sys.getswitchinterval()

    def _restore_turns(self) -> None:
        if self._turns is not None and sys.getswitchinterval() == self._turns[1]:  # else the program has set it
            sys.setswitchinterval(self._turns[0])
        self._turns = None


PROCESS = Behind()
atexit.register(PROCESS.end)
os.register_at_fork(
    before=PROCESS.before_fork, after_in_parent=PROCESS.after_fork, after_in_child=PROCESS.forget
)
