"""Kernels that a slow compiler makes: each code once, the longest first, and what is refused is refused of all."""

import threading
from types import SimpleNamespace

from framefuse.codegen.specialisation import Begun
from framefuse.codegen.unsupported import Unsupported
from framefuse.driver.kernels import _compiled

SLOW = SimpleNamespace(slow=True, threads=lambda kernels: 1)


def begin_of(lengths, made, refused=()):
    """What begins kernels, each named by its code and a number: ``made`` gets the codes in the order of finishing."""

    def begin(item):
        code = item[0]

        def finish():
            made.append(code)
            if code in refused:
                raise Unsupported(f"no {code}")
            return f"code {code}"

        return Begun(code, lengths[code], finish)

    return begin


def test_each_code_is_made_once_and_the_longest_first():
    items = {name: name for name in ("a1", "a2", "b1", "c1", "a3", "b2")}
    made = []
    answers = _compiled(items, begin_of({"a": 5, "b": 50, "c": 20}, made), lambda item: SLOW, True)
    assert made == ["b", "c", "a", "a", "a", "b"]  # the others take what is there
    assert answers == {name: f"code {name[0]}" for name in items}
    assert list(answers) == list(items)


def test_what_a_compiler_refuses_is_not_tried_again():
    items = {name: name for name in ("a1", "a2", "b1")}
    made = []
    answers = _compiled(items, begin_of({"a": 1, "b": 2}, made, refused=("a",)), lambda item: SLOW, True)
    assert made == ["b", "a"]
    assert answers["a1"] is answers["a2"]
    assert str(answers["a1"]) == "no a"
    assert answers["b1"] == "code b"


def test_kernels_of_one_code_hold_no_thread():
    both, seen = threading.Barrier(2, timeout=30), set()

    def begin(item):
        def finish():
            if item[0] not in seen:
                seen.add(item[0])
                both.wait()  # for the other code, which is made at once in the other thread
            return item

        return Begun(item[0], 0, finish)

    two = SimpleNamespace(slow=True, threads=lambda kernels: kernels)
    items = {name: name for name in ("a1", "a2", "a3", "b1")}
    assert _compiled(items, begin, lambda item: two, True) == items
