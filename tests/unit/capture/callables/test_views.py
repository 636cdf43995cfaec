"""Loops over dicts and sets that a break interrupts meet what happens to them later, errors too."""

import pytest
import torch

import framefuse


def popped(x, held):
    for _, value in held.items():
        x = x + value
        if x.sum() > 0:
            held.pop("a", None)
    return x


def changed(x, held):
    for key in held:
        if x.sum() > 0:
            held["b"] = 5.0
        x = x + held[key]
    return x


def later_values(x, held):
    for value in held.values():
        if x.sum() > 0:
            held["c"] = value * 2
        x = x + value
    return x


def grown(x, held):
    for number, key in enumerate(held):
        if x.sum() > number + 100:
            held[key + "x"] = 1.0
        x = x + held[key]
    return x


def own_dict(x, held):
    mine = {**held, "z": 1.0}
    for _, value in mine.items():
        if x.sum() > 0:
            mine.pop("a", None)
        x = x + value
    return x


def members(x, held):
    names = set(held)
    for name in sorted(names):
        for other in names:
            if x.sum() > 0:
                x = x + held[other]
        x = x + held[name] * 2
        if x.sum() > 50:
            names.discard("c")
    return x


def members_changed(x, held):
    names = set(held)
    for _ in names:
        if x.sum() > 0:
            names.discard("a")
        x = x + 1
    return x


def emptied(held):
    held.clear()


def by_others(x, held):
    for _ in held:
        if x.sum() > 0:
            torch.utils.data.get_worker_info()  # looks at nothing, and is no part of a recording
            x = x + 1
        EMPTY[0](held)
        x = x + 1
    return x


EMPTY = [len]


@pytest.mark.parametrize(
    "function", [popped, changed, later_values, grown, own_dict, members, members_changed, by_others]
)
def test_a_loop_goes_on_over_the_dict_itself(function):
    compiled = framefuse.compile(function)
    raised = 0
    for turn, (names, start) in enumerate(
        [("abc", 1.0), ("abc", 1.0), ("abc", -9.0), ("a", 1.0), ("a", 1.0), ("ab", 1.0), ("", 1.0), ("bc", 200.0)] * 2
    ):
        EMPTY[0] = emptied if turn in (3, 5, 12) else len
        found = []
        for run in (function, compiled):
            held = {name: float(place) for place, name in enumerate(names)}
            try:
                with torch.no_grad():
                    result = run(torch.full((2,), start), held).tolist()
            except RuntimeError as error:
                result = str(error)
            found.append((result, held))
        assert found[0] == found[1], (turn, names)
        raised += isinstance(found[0][0], str)
    assert bool(raised) == (function is not members)
    assert compiled.hits >= 4
