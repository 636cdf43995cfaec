"""live() tells the variables that may still be read: along jumps, around loops, in handlers, and where all are seen."""

from framefuse.capture.program.decoded import decode
from framefuse.capture.program.liveness import live


def straight(a, b):
    c = a + 1
    d = c * b
    return d


def loop(n, x, y):
    while n:
        n = n - 1
        x = x + n
    return x


def handled(a, b):
    try:
        a = a + 1
    except ValueError:
        return b
    a = a * 2
    return a


def looked_at(a, b):
    c = a
    return locals(), c


def names(function, line, targets=()):
    """The live variables before the first step of a line of the function, counted from its first."""
    code = decode(function.__code__)
    wanted = function.__code__.co_firstlineno + line
    step = next(n for n in range(len(code.steps)) if code.line_number(n) == wanted)
    bits = live(code, step, targets)
    return {name for slot, name in enumerate(code.local_names) if bits >> slot & 1}


def test_what_is_overwritten_or_read_no_more_is_dead():
    assert names(straight, 1) == {"a", "b"}
    assert names(straight, 2) == {"b", "c"}
    assert names(straight, 3) == {"d"}


def test_a_loop_keeps_what_its_next_turn_reads():
    assert names(loop, 3) == {"n", "x"}
    assert names(loop, 4) == {"x"}


def test_a_handler_keeps_what_it_reads():
    assert names(handled, 2) == {"a", "b"}
    assert names(handled, 6) == {"a"}


def test_all_are_live_where_they_are_looked_at():
    assert names(looked_at, 2) >= {"a", "b", "c"}


def test_a_step_that_a_result_jumps_to_counts():
    code = decode(loop.__code__)
    assert names(straight, 3) == {"d"}
    start = next(n for n in range(len(code.steps)) if code.line_number(n) == loop.__code__.co_firstlineno + 2)
    assert names(loop, 4, (start,)) == {"n", "x"}
