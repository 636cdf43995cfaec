"""Calls, first calls and recordings from several threads, and after a fork, are those of eager."""

import gc
import os
import threading
import time
import weakref

import pytest
import torch

import framefuse


def state_of(compiled):
    return compiled.__framefuse__


def together(work, count=6):
    """Runs ``work(number)`` in threads that start at once; raises what one of them raised."""
    barrier, errors = threading.Barrier(count), []

    def run(number):
        try:
            barrier.wait(30)
            work(number)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = torch.nn.Linear(16, 16)
        self.second = torch.nn.Linear(16, 4)

    def forward(self, x, scale):
        return {"out": self.second(torch.relu(self.first(x)) * scale).softmax(-1), "in": x}


def test_concurrent_calls_give_each_thread_its_own_result():
    net = Net().eval()
    fast = framefuse.compile(net)
    with torch.no_grad():
        fast(torch.randn(2, 16), 1.5)
        fast(torch.randn(3, 16), 2.5)
    before = state_of(fast).dispatch.hits

    def work(number):
        generator = torch.Generator().manual_seed(number)
        with torch.no_grad():
            for turn in range(60):
                x = torch.randn(2 + (number + turn) % 5, 16, generator=generator)
                found, expected = fast(x, 0.5 + number), net(x, 0.5 + number)
                assert found["in"] is x
                torch.testing.assert_close(found["out"], expected["out"])

    together(work)
    assert state_of(fast).dispatch.hits - before > 300


@pytest.mark.parametrize("turn", range(4))
def test_concurrent_first_calls(turn):
    @framefuse.compile
    def f(x, n):
        for _ in range(3):
            x = torch.tanh(x * n) + 1
        return x

    def work(number):
        with torch.no_grad():
            for _ in range(30):
                x = torch.randn(4, 8)
                expected = x
                for _ in range(3):
                    expected = torch.tanh(expected * number) + 1
                torch.testing.assert_close(f(x, number), expected)

    together(work)
    state, x = state_of(f), torch.zeros(4, 8)
    before = state.dispatch.hits
    with torch.no_grad():
        for number in range(10):
            f(x, number)
    assert 0 < len(state.products) <= 6 and state.dispatch.hits - before >= 8


class Late:
    """A lock that another thread takes, works under and gives back before its first taker gets it."""

    def __init__(self, inner, work):
        self.inner, self.work = inner, work

    def acquire(self, blocking=True):
        work, self.work = self.work, None
        if work:
            thread = threading.Thread(target=work)
            thread.start()
            thread.join(60)
        return self.inner.acquire(blocking=blocking)

    def release(self):
        self.inner.release()

    def _is_owned(self):
        return self.inner._is_owned()


def under_no_grad(function, *args):
    with torch.no_grad():
        function(*args)


@pytest.mark.parametrize("module", [False, True])
def test_what_another_thread_has_compiled_meanwhile_is_used(module):
    def plain(x, scale=2.0):
        return torch.tanh(x) * scale

    fast, x = framefuse.compile(Net().eval() if module else plain), torch.randn(4, 16)
    state = state_of(fast)
    state.lock = Late(state.lock, lambda: under_no_grad(fast, x, 3.0))
    with torch.no_grad():
        found = fast(x, 3.0) if module else fast(x, scale=3.0)
        expected = state.function(*(() if state.owner is None else (state.owner,)), x, 3.0)
    torch.testing.assert_close(found, expected)
    assert len(state.products) == 1 and state.dispatch.hits == 1 and state.lock.work is None
    state.lock.work = lambda: under_no_grad(fast, x.double() if not module else x[None], 3.0)  # another case
    with torch.no_grad():
        fast(x[0] if module else x.half(), 3.0)
    assert len(state.products) == 3 and state.lock.work is None


def test_what_another_thread_has_compiled_after_a_break_is_used():
    @framefuse.compile
    def f(x):
        y = torch.exp(x)
        if (y > 1).all():
            return torch.tanh(y)
        return torch.sin(y) - 1

    state = state_of(f)
    with torch.no_grad():
        for _ in range(3):
            f(torch.ones(3))
        before = len(state.products)
        state.lock = Late(state.lock, lambda: under_no_grad(f, -torch.ones(3)))
        torch.testing.assert_close(f(-torch.ones(3)), torch.sin(torch.exp(-torch.ones(3))) - 1)
        assert before >= 2 and len(state.products) == before + 1 and state.lock.work is None


def test_threads_that_start_together_make_one_trace():
    for _ in range(8):

        @framefuse.compile
        def f(x):
            for _ in range(3):
                x = torch.tanh(x) + 1
            return x

        x = torch.randn(4, 8)
        expected = torch.tanh(torch.tanh(torch.tanh(x) + 1) + 1) + 1

        def work(number, f=f, x=x, expected=expected):
            for _ in range(20):
                with torch.no_grad():
                    torch.testing.assert_close(f(x), expected)

        together(work, 4)
        assert len(state_of(f).products) == 1 and state_of(f).dispatch.hits > 0


def good_in_child(check):
    """Whether ``check()`` holds in a forked child, which has half a minute."""
    child = os.fork()
    if child == 0:
        good = False
        try:
            torch.set_num_threads(1)
            good = check()
        finally:
            os._exit(0 if good else 1)
    return ends_well(child)


def ends_well(child):
    deadline = time.monotonic() + 30
    while (answer := os.waitpid(child, os.WNOHANG)) == (0, 0) and time.monotonic() < deadline:
        time.sleep(0.01)
    if answer == (0, 0):
        os.kill(child, 9)
        os.waitpid(child, 0)
    assert answer != (0, 0), "the child hangs"
    return answer[1] == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_of_a_process_that_records_in_another_thread():
    @framefuse.compile
    def f(x):
        return torch.tanh(x) + 1

    held, done, x = threading.Event(), threading.Event(), torch.zeros(3)

    def record():
        with state_of(f).lock:  # as in a first call that takes long
            held.set()
            done.wait(60)

    def check():
        with torch.no_grad():
            good = f(x).tolist() == f(x).tolist() == [1.0] * 3 and state_of(f).dispatch.hits == 1
            state_of(f).reset()
            good = good and f(x).tolist() == f(x).tolist() == [1.0] * 3 and state_of(f).dispatch.hits == 2
        return good and len(state_of(f).products) == 1

    thread = threading.Thread(target=record)
    thread.start()
    try:
        assert held.wait(30) and good_in_child(check)
    finally:
        done.set()
        thread.join(30)


@pytest.mark.first_call
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_is_born_in_a_first_call():
    @framefuse.compile
    def f(x):
        y = torch.tanh(x) + 1
        return os.fork(), y * 2

    with torch.no_grad():
        child, value = f(torch.zeros(3))
        if child == 0:
            good = False
            try:
                torch.set_num_threads(1)
                state_of(f).reset()
                good = value.tolist() == [2.0] * 3 and f.__wrapped__(torch.zeros(2))[1].tolist() == [2.0] * 2
            finally:
                os._exit(0 if good else 1)
    assert value.tolist() == [2.0] * 3 and ends_well(child)


def test_threads_that_wait_for_each_other_in_a_first_call():
    barrier = threading.Barrier(2)

    @framefuse.compile
    def f(x):
        barrier.wait(20)
        return x + 1

    def work(number):
        for turn in range(3):
            assert f(torch.full((3,), float(turn)))[0] == turn + 1

    together(work, 2)


def test_a_recording_sees_no_call_of_another_thread():
    stop, turns = threading.Event(), []

    @framefuse.compile
    def other(x):
        return torch.sin(x).cos()

    def noise():
        x = torch.randn(5)
        with torch.no_grad():
            while not stop.is_set():
                torch.exp(x).mul_(2)
                other(x)
                turns.append(1)

    thread = threading.Thread(target=noise)
    thread.start()
    try:
        for scale in range(20):
            seen = []

            def f(x, scale=scale, seen=seen):
                for _ in range(12):
                    x = torch.relu(x + scale)
                seen.append(threading.get_ident())
                return x

            fast, x = framefuse.compile(f), torch.randn(4)
            before = len(turns)
            with torch.no_grad():
                expected = f(x)
                assert torch.equal(fast(x), expected) and torch.equal(fast(x), expected)
            assert set(seen) == {threading.get_ident()} and len(seen) == 3
            names = [call.name for product in state_of(fast).products for call in product.stages.trace.calls]
            assert "exp" not in names and "sin" not in names and names.count("relu") == 12
            while len(turns) == before:
                time.sleep(0.001)
    finally:
        stop.set()
        thread.join(30)


def test_grad_mode_and_state_are_those_of_the_calling_thread():
    @framefuse.compile
    def f(x):
        return x * 2, torch.is_grad_enabled()

    def work(number):
        with torch.set_grad_enabled(number % 2 == 0):
            for _ in range(40):
                value, on = f(torch.ones(3))
                assert on == (number % 2 == 0) and value[0] == 2

    together(work)


def test_writes_of_several_threads_to_one_object_lose_nothing():
    class Log:
        def __init__(self):
            self.lines = []

    log = Log()

    @framefuse.compile
    def f(x):
        log.lines.append(threading.get_ident())
        return x + 1

    def work(number):
        for turn in range(40):
            assert f(torch.full((2,), float(turn)))[0] == turn + 1

    together(work)
    assert len(log.lines) == 240 and len(set(log.lines)) == 6


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_child_calls_and_compiles(threads):
    """Native code and a new recording in the child, with and without a pool of threads in the parent."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        @framefuse.compile
        def f(x, y):
            return (torch.tanh(x) * y + torch.sin(x)).sum(-1)

        x = torch.randn(256, 1024)
        with torch.no_grad():
            f(x, 2.0)
            expected = f(x, 2.0).numpy().copy()
            hits = state_of(f).dispatch.hits

        def check():
            with torch.no_grad():
                good = abs(f(x, 2.0).numpy() - expected).max() < 1e-3 and state_of(f).dispatch.hits == hits + 1

                @framefuse.compile
                def g(x):
                    return torch.cos(x) + 1

                small = torch.zeros(3)
                good = good and g(small).tolist() == g(small).tolist() == [2.0] * 3
                return good and state_of(g).dispatch.hits == 1

        assert good_in_child(check)
    finally:
        torch.set_num_threads(before)


def test_compiled_code_dies_with_its_module_and_function():
    def make():
        net = Net().eval()
        scale = torch.ones(3)

        def f(x):
            return x * scale

        fast, quick = framefuse.compile(net), framefuse.compile(f)
        with torch.no_grad():
            for rows in (2, 3):
                fast(torch.randn(rows, 16), 1.5)
                quick(torch.randn(rows, 3))
        assert state_of(fast).dispatch.hits and state_of(quick).dispatch.hits
        entries = [entry for each in (fast, quick) for entry in state_of(each).dispatch.entries]
        kept = [net, net.first.weight, f, scale, state_of(fast), state_of(quick), state_of(quick).dispatch]
        return [weakref.ref(thing) for thing in kept], len(entries)

    gone, entries = make()
    gc.collect()
    assert entries >= 2 and [ref() for ref in gone] == [None] * len(gone)


def test_nothing_of_a_call_is_kept_alive():
    """Inputs, results and what lies between, on the recorded call, on hits and where the call raises: all go."""
    net = Net().eval()
    fast, born = framefuse.compile(net), []

    @framefuse.compile
    def raises(x):
        y = torch.exp(x)
        born.append(weakref.ref(y))
        if x.shape[0] == 7:
            raise ValueError(y.shape)
        return y + 1

    gc.collect()
    gc.disable()
    try:
        for _ in range(4):
            with torch.no_grad():
                x = torch.randn(5, 16)
                out = fast(x, 1.5)
                refs = [weakref.ref(x), weakref.ref(out["out"])]
                del x, out
                assert [ref() for ref in refs] == [None, None]
                for rows in (5, 7):
                    x = torch.randn(rows, 2)
                    refs.append(weakref.ref(x))
                    try:
                        raises(x)
                    except ValueError:
                        assert rows == 7
                    del x
            assert [ref() for ref in (*refs, *born)] == [None] * (len(refs) + len(born))
    finally:
        gc.enable()
    assert state_of(fast).dispatch.hits == 3
