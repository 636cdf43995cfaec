"""Does what no call should wait for: soon, in a thread that ends with its work, at the latest as the process ends."""

from __future__ import annotations

import atexit
import os
import threading
from collections import deque
from collections.abc import Callable

PAUSE = 0.2  # seconds; the call that asked has mostly returned by then

Task = Callable[[], None]


class Later:
    """Tasks in their order, each of which sees to its own faults."""

    def __init__(self) -> None:
        self._tasks: deque[Task] = deque()
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()  # of the two above
        self._running = threading.Lock()
        self._wake = threading.Event()

    def put(self, task: Task) -> None:
        """Takes one more task."""
        with self._lock:
            self._tasks.append(task)
            if self._thread is not None:
                return
            self._thread = threading.Thread(target=self._work, name="framefuse-later", daemon=True)
            try:
                self._thread.start()
            except RuntimeError:  # the process ends, or may have no more threads: what is left is done as it ends
                self._thread = None

    def finish(self) -> None:
        """Does what is left, and waits for what is being done."""
        with self._running:
            while self._tasks:
                self._tasks.popleft()()

    def end(self) -> None:
        """Does what is left and ends the thread: a process that forks has no thread of ours, and nothing half done."""
        self.finish()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            self._wake.set()
            thread.join()
            self._wake.clear()

    def forget(self) -> None:
        """Drops all: for a forked child, whose parent does it."""
        self.__init__()  # type: ignore[misc]

    def _work(self) -> None:
        while True:
            self._wake.wait(PAUSE)
            self.finish()
            with self._lock:
                if not self._tasks:
                    self._thread = None
                    return


PROCESS = Later()
atexit.register(PROCESS.finish)
os.register_at_fork(before=PROCESS.end, after_in_child=PROCESS.forget)
