"""Autocast entered and left inside a compiled function."""

import pytest
import torch

import framefuse


def off(x):
    with torch.autocast("cpu", enabled=False):
        y = x @ x
    return y.float() + x @ x


def on(x):
    with torch.autocast("cpu", torch.bfloat16):
        y = x @ x
        with torch.autocast("cpu", enabled=False):
            z = x @ x
    return y, z, x @ x


def decides(x):
    with torch.autocast("cpu", torch.bfloat16):
        return x + 1 if torch.is_autocast_enabled("cpu") else x - 1


@pytest.mark.parametrize("around", [False, True])
@pytest.mark.parametrize("function", [off, on, decides])
def test_inside(function, around):
    fast = framefuse.compile(function)
    with torch.autocast("cpu", torch.bfloat16, enabled=around):
        for size in (4, 5, 4):
            x = torch.randn(size, size)
            torch.testing.assert_close(fast(x), function(x))
    assert fast.__framefuse__.dispatch.hits == 2, fast.__framefuse__.reasons


def test_state_that_leaks_stays_eager():
    def leaks(x):
        torch.autocast("cpu", torch.bfloat16).__enter__()
        return x @ x

    fast = framefuse.compile(leaks)
    for _ in range(3):
        try:
            assert fast(torch.ones(2, 2)).dtype is torch.bfloat16 and torch.is_autocast_enabled("cpu")
        finally:
            torch.set_autocast_enabled("cpu", False)
            torch.autocast_decrement_nesting()


def test_a_backend_gets_no_graph_that_mixes_states():
    fast = framefuse.compile(off, backend="eager")
    x = torch.randn(4, 4)
    for _ in range(2):
        torch.testing.assert_close(fast(x), off(x))
    with torch.autocast("cpu", torch.bfloat16):
        for _ in range(2):
            torch.testing.assert_close(fast(x), off(x))
