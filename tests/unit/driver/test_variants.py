"""Code for other sizes is compiled for all kernels that a size concerns, when the first of them asks."""

import threading
from types import SimpleNamespace

import pytest

from framefuse.driver.variants import compiled_together
from framefuse.ir.code import Fit, LaunchedCode
from framefuse.ir.numbers import Symbol

N, M = Symbol("n").expr, Symbol("m").expr


def kernel(sizes, asked, name, fails=False):
    """An item and its code, which wants its number to be a multiple of 16; ``asked`` notes what is compiled."""
    own = Symbol("k")

    def variant(aligned):
        asked.append((name, aligned, threading.current_thread() is threading.main_thread()))
        if fails:
            raise ZeroDivisionError
        return len(asked), 0

    fits = tuple(Fit(own.expr, 16) for _ in sizes)
    item = SimpleNamespace(sizes={own: sizes[0]} if sizes else {})
    return item, LaunchedCode(SimpleNamespace(fits=fits), variant, 32)


def test_a_new_size_compiles_what_it_concerns_at_once():
    asked = []
    pairs = [
        kernel([N], asked, "n"), kernel([N * M], asked, "both"), kernel([M], asked, "m"), kernel([], asked, "none")
    ]  # fmt: skip
    items, codes = ({place: pair[part] for place, pair in enumerate(pairs)} for part in (0, 1))
    made = compiled_together(items, codes, 4)
    assert made[3] is codes[3] and not asked
    first = made[0].variant(True)
    assert sorted(asked) == [("both", True, False), ("n", True, False)]
    assert made[0].variant(True) == first and made[1].variant(True)[0] in (1, 2) and len(asked) == 2
    made[2].variant(True)
    assert asked[2] == ("m", True, False)
    assert len(asked) == 3
    made[1].variant(False)
    assert asked[3:] == [("both", False, True)], "addresses say nothing of the other kernels"


def test_what_one_kernel_raises_is_not_the_others():
    asked = []
    pairs = [kernel([N], asked, "good"), kernel([N], asked, "bad", fails=True)]
    items, codes = ({place: pair[part] for place, pair in enumerate(pairs)} for part in (0, 1))
    made = compiled_together(items, codes, 4)
    assert made[0].variant(True)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            made[1].variant(True)
    assert len(asked) == 2


def test_many_threads_compile_once():
    asked = []
    item, code = kernel([N], asked, "n")
    made = compiled_together({0: item}, {0: code}, 4)[0]
    threads = [threading.Thread(target=made.variant, args=(True,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(asked) == 1
