"""Hearings of several threads leave the module of warnings as it was, in whatever order they end."""

import itertools
import threading
import warnings

import pytest

from framefuse.ir.native_warnings import Hearing, unheard


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_the_last_to_end_restores_what_was(order):
    before, filters = warnings._showwarnmsg, list(warnings.filters)
    hearings = [Hearing(lambda warning: None) for _ in range(3)]
    for each in hearings:
        each.__enter__()
    assert warnings._showwarnmsg is not before
    for place in order:
        hearings[place].__exit__(None, None, None)
    assert warnings._showwarnmsg is before and warnings.filters == filters


def test_another_thread_that_is_not_heard_ends_no_hearing():
    before = warnings._showwarnmsg
    begun, done = threading.Event(), threading.Event()

    def other():
        with unheard():
            begun.set()
            done.wait(5)

    thread = threading.Thread(target=other)
    with Hearing(lambda warning: None):
        inside = warnings._showwarnmsg
        thread.start()
        begun.wait(5)
        assert warnings._showwarnmsg is inside is not before
    done.set()
    thread.join()
    assert warnings._showwarnmsg is before
