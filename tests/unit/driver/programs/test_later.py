"""Tasks are done once, in order, in a thread that ends, or as the process ends."""

import subprocess
import sys
import threading
import time

from framefuse.driver.programs import later


def test_tasks_are_done_in_a_thread_that_ends(monkeypatch):
    monkeypatch.setattr(later, "PAUSE", 0.01)
    queue, done = later.Later(), []
    for number in range(3):
        queue.put(lambda number=number: done.append((number, threading.current_thread())))
    end = time.monotonic() + 10
    while queue._thread is not None and time.monotonic() < end:
        time.sleep(0.01)
    assert [number for number, _ in done] == [0, 1, 2] and {each.name for _, each in done} == {"framefuse-later"}
    for _, thread in done:
        thread.join(10)
        assert not thread.is_alive()
    queue.put(lambda: done.append(None))
    queue.finish()
    assert len(done) == 4


def test_no_task_waits_for_a_thread_that_cannot_start(monkeypatch):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    queue, done = later.Later(), []
    queue.put(lambda: done.append(1))
    assert queue._thread is None
    queue.finish()
    assert done == [1]


def test_what_is_left_is_done_as_the_process_ends():
    code = "from framefuse.driver.programs import later\nlater.PAUSE = 60\nlater.PROCESS.put(lambda: print('done'))"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert answer.stdout == "done\n"


def test_a_process_that_forks_has_no_thread_of_ours(monkeypatch):
    monkeypatch.setattr(later, "PAUSE", 60)
    queue, done = later.Later(), []
    queue.put(lambda: done.append(1))
    thread = queue._thread
    assert thread.is_alive()
    queue.end()
    assert done == [1] and not thread.is_alive() and queue._thread is None
    queue.put(lambda: done.append(2))  # and another afterwards, which has one again
    assert queue._thread is not None
    queue.end()
    assert done == [1, 2]


def test_a_forked_child_leaves_the_tasks_to_its_parent(monkeypatch):
    monkeypatch.setattr(later, "PAUSE", 60)
    queue, done = later.Later(), []
    monkeypatch.setattr(later, "PROCESS", queue)
    queue.put(lambda: done.append(1))
    queue.forget()
    queue.finish()
    assert not done
