"""Autocast entered and left inside a compiled function, in all its spellings."""

import contextlib
import threading
import warnings

import pytest
import torch

import framefuse

W = torch.randn(4, 4, generator=torch.Generator().manual_seed(0))
LOW = torch.bfloat16


def state():
    return (
        [(torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind)) for kind in ("cpu", "cuda")],
        torch.is_autocast_cache_enabled(),
        nesting(),
    )


def nesting():
    depth = torch.autocast_increment_nesting() - 1
    torch.autocast_decrement_nesting()
    return depth


def off(x):
    with torch.autocast("cpu", enabled=False):
        y = x @ x
    return y.float() + x @ x


def on(x):
    with torch.autocast("cpu", LOW):
        y = x @ x
        with torch.autocast("cpu", enabled=False):
            z = x @ x
    return y, z, x @ x


def decides(x):
    with torch.autocast("cpu", LOW):
        return x + 1 if torch.is_autocast_enabled("cpu") else x - 1


@torch.autocast("cpu", LOW)
def decorated(x):
    return x @ W, x + 1


def calls_decorated(x):
    return decorated(x), x @ W


class Block(torch.nn.Module):
    @torch.autocast("cpu", LOW)
    def forward(self, x):
        return x @ W


block = Block()


def calls_block(x):
    return block(x) * 2, block(x), x @ W


def amp(x):
    with torch.amp.autocast("cpu"):
        return x @ W


def amp_with_all(x):
    with torch.amp.autocast(device_type=x.device.type, dtype=torch.float16, enabled=True, cache_enabled=False):
        return x @ W


def cpu_amp(x):
    with torch.cpu.amp.autocast():
        return x @ W


def cuda_amp(x):
    with torch.cuda.amp.autocast():
        return x @ W


def cuda_amp_off(x):
    with torch.cuda.amp.autocast(enabled=False):
        return x @ W


def cuda_half(x):
    with torch.autocast("cuda", torch.float16):
        return x @ W


def cuda_inside_cpu(x):
    with torch.autocast("cpu"), torch.autocast("cuda", enabled=False):
        return x @ W


SHARED = torch.autocast("cpu", LOW)


def shared(x):
    with SHARED:
        return x @ W


def made_once_entered_twice(x):
    context = torch.autocast("cpu", LOW)
    with context:
        a = x @ W
    b = x @ W
    with context:
        return a, b, x @ W


def nested(x):
    with torch.autocast("cpu", LOW):
        a = x @ W
        with torch.autocast("cpu", torch.float16):
            b = x @ W
            with torch.autocast("cpu", enabled=False):
                c = x @ W
        d = x @ W
    return a, b, c, d, x @ W


def not_supported(x):
    with torch.autocast("cpu", torch.float32):
        return x @ W


def raises_inside(x):
    try:
        with torch.autocast("cpu", LOW):
            y = x @ W
            raise ValueError("y")
    except ValueError:
        return y, x @ W


def generates(x):
    def parts():
        with torch.autocast("cpu", LOW):
            yield x @ W
            yield x @ W + 1

    return [*parts(), x @ W]


def asks(x):
    with torch.autocast("cpu", LOW):
        known = torch.is_autocast_enabled("cpu"), torch.is_autocast_cpu_enabled(), torch.is_autocast_cache_enabled()
        same = torch.get_autocast_dtype("cpu") is LOW and not torch.is_autocast_enabled()
        return x @ W if same and all(known) else x


def perhaps(x):
    with torch.autocast("cpu") if x.shape[0] > 2 else contextlib.nullcontext():
        return x @ W


def stacked(x):
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.autocast("cpu"))
        stack.enter_context(torch.no_grad())
        return x @ W


def sets(x):
    before = torch.is_autocast_enabled("cpu")
    torch.set_autocast_enabled("cpu", True)
    try:
        y = x @ W
    finally:
        torch.set_autocast_enabled("cpu", before)
    return y, x @ W


PROGRAMS = [
    off, on, decides, decorated, calls_decorated, calls_block, amp, amp_with_all, cpu_amp, cuda_amp, cuda_amp_off,
    cuda_half, cuda_inside_cpu, shared, made_once_entered_twice, nested, not_supported, raises_inside, generates, asks,
    perhaps, stacked, sets,
]  # fmt: skip


@pytest.mark.parametrize("around", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", PROGRAMS)
def test_inside(function, around):
    """Eager's results, dtypes and warnings, from one trace: nothing breaks where autocast is entered or left."""
    fast = framefuse.compile(function)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with torch.autocast("cpu", around, enabled=around is not None), torch.no_grad():
            before = state()
            for _ in range(3):
                x = torch.randn(4, 4)
                found, told = fast(x), [(str(each.message), each.filename, each.lineno) for each in said]
                said.clear()
                expected = function(x)
                assert told == [(str(each.message), each.filename, each.lineno) for each in said]
                said.clear()
                torch.testing.assert_close(found, expected, rtol=0, atol=0)
                assert state() == before
    held = fast.__framefuse__
    assert held.dispatch.hits == 2 and len(held.products) == 1, held.reasons


@pytest.mark.parametrize("function", [decorated, shared, nested, off, calls_block])
def test_another_state_outside_is_another_trace(function):
    fast = framefuse.compile(function)
    with torch.no_grad():
        for _ in range(2):
            for around in (None, torch.bfloat16, torch.float16, None):
                with torch.autocast("cpu", around, enabled=around is not None):
                    x = torch.randn(4, 4)
                    torch.testing.assert_close(fast(x), function(x), rtol=0, atol=0)
    assert fast.__framefuse__.dispatch.hits >= 3 and len(fast.__framefuse__.products) <= 5


def test_the_default_dtype_is_asked_for():
    fast = framefuse.compile(amp)
    x, before = torch.randn(4, 4), torch.get_autocast_dtype("cpu")
    try:
        for dtype in (torch.bfloat16, torch.float16, torch.bfloat16, torch.float16):
            torch.set_autocast_dtype("cpu", dtype)
            assert fast(x).dtype is dtype
    finally:
        torch.set_autocast_dtype("cpu", before)
    assert fast.__framefuse__.dispatch.hits == 2 and len(fast.__framefuse__.products) == 2


def test_a_context_that_changes():
    context = torch.autocast("cpu", torch.bfloat16)

    def function(x):
        with context:
            return x @ W

    fast = framefuse.compile(function)
    for dtype, enabled in ((torch.bfloat16, True), (torch.float16, True), (torch.float16, False)):
        context.fast_dtype, context._enabled = dtype, enabled
        for _ in range(2):
            assert fast(W).dtype is (dtype if enabled else torch.float32)
    assert fast.__framefuse__.dispatch.hits == 3


def test_the_cache_is_asked_for():
    def function(x):
        return x + 1 if torch.is_autocast_cache_enabled() else x - 1

    fast = framefuse.compile(function)
    for cached in (True, False, True, False):
        with torch.autocast("cpu", cache_enabled=cached):
            assert torch.equal(fast(W), function(W))
    assert fast.__framefuse__.dispatch.hits == 2


# Breaks --------------------------------------------------------------------------------------------------------------


def breaks_inside(x):
    with torch.autocast("cpu", LOW):
        y = x @ W
        if y.sum().item() > 1e9:
            return y
        with torch.autocast("cpu", enabled=False):
            z = x @ W
            scale = z.abs().max().item()
            z = z @ W
        return y @ W * scale, z, x @ W


def breaks_in_a_loop(x):
    for _ in range(3):
        with torch.autocast("cpu", LOW):
            x = x @ W
            if x.sum().item() > 1e9:
                break
    return x, x.float() @ W


def breaks_in_a_shared_context(x):
    with SHARED:
        y = x @ W
        y = y * y.max().item()
        return y @ W


def raises_after_a_break(x):
    try:
        with torch.autocast("cpu", LOW):
            y = x @ W
            raise ValueError(y.sum().item())
    except ValueError as error:
        return y * error.args[0], x @ W


@pytest.mark.parametrize("around", [None, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "function", [breaks_inside, breaks_in_a_loop, breaks_in_a_shared_context, raises_after_a_break]
)
def test_breaks_inside(function, around):
    fast = framefuse.compile(function)
    with torch.no_grad():
        for turn in range(6):
            other = around if turn < 3 else torch.float16 if around is None else None
            with torch.autocast("cpu", other, enabled=other is not None):
                x, before = torch.randn(4, 4) * 0.1, state()
                torch.testing.assert_close(fast(x), function(x), rtol=0, atol=0)
                assert state() == before
        assert nesting() == 0
    assert fast.__framefuse__.dispatch.hits == 4, fast.__framefuse__.reasons


def test_a_state_that_leaks_is_left_as_eager_leaves_it():
    def leaks(x):
        torch.autocast("cpu", LOW, cache_enabled=False).__enter__()
        return x @ x

    fast = framefuse.compile(leaks)
    before = state()
    for _ in range(3):
        try:
            assert fast(torch.ones(2, 2)).dtype is LOW
            assert state() == ([(True, LOW), before[0][1]], False, 1)
        finally:
            torch.set_autocast_enabled("cpu", False)
            torch.set_autocast_cache_enabled(True)
            torch.autocast_decrement_nesting()
    assert fast.__framefuse__.dispatch.hits == 2


def test_the_last_context_that_is_left_drops_the_cache():
    """A weight that eager cast inside is cast anew by the next region, also where compiled code ends the region."""
    weight = torch.nn.Parameter(torch.ones(2, 2))

    def function(x, eagerly):
        with torch.autocast("cpu", LOW):
            eagerly(x)
            return x * 1

    eager = framefuse.disable(lambda x: x @ weight)
    fast = framefuse.compile(function)
    for turn in range(1, 5):
        fast(torch.ones(2, 2), eager)
        with torch.no_grad():
            weight.fill_(turn)
        with torch.autocast("cpu", LOW):
            assert (torch.ones(2, 2) @ weight)[0, 0] == 2 * turn


def test_a_backend_gets_no_graph_that_mixes_states():
    fast = framefuse.compile(off, backend="eager")
    x = torch.randn(4, 4)
    for _ in range(2):
        torch.testing.assert_close(fast(x), off(x))
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            torch.testing.assert_close(fast(x), off(x))


def test_threads_have_states_of_their_own():
    fast, found = framefuse.compile(lambda x: x @ x), []

    def work(low):
        with torch.no_grad():
            for _ in range(100):
                with torch.autocast("cpu", low, enabled=low is not None):
                    found.append(fast(torch.ones(2, 2)).dtype is (low or torch.float32))

    threads = [threading.Thread(target=work, args=(low,)) for low in (None, torch.bfloat16, torch.float16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 300 and all(found)
