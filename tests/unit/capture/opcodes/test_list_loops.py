"""A loop over a list sees what is written to the list meanwhile, also where its numbers move from call to call."""

import pytest
import torch

import framefuse


def overwritten(y, r):
    for number in r:
        r[-1] = number
        y = y + number
    r += [1]
    return y


def grown(y, r):
    for number in r:
        if len(r) < 5:
            r.append(number + 1)
        y = y + number
    return y


def shrunk(y, r):
    for number in r:
        r.pop()
        y = y * 2 + number
    r.extend([7, len(r)])
    return y


def taken(y, r):
    numbers = iter(r)
    first = next(numbers)
    r[-1] = first + 3
    for number in numbers:
        y = y + number
    return y + first


def delegated(y, r):
    def each():
        yield from r

    for number in each():
        r[-1] = number
        y = y + number
    return y


@pytest.mark.parametrize("function", [overwritten, grown, shrunk, taken, delegated])
def test_the_list_itself_is_iterated(function):
    compiled = framefuse.compile(function)
    for start in ([0], [0, 1], [0, 2, 5], [0, 2, 6], [1, 2, 6], [4, 3, 1]):
        lists, results = [list(start), list(start)], []
        for _ in range(3):
            results.append([run(torch.zeros(2), held) for run, held in zip((function, compiled), lists, strict=True)])
            assert lists[0] == lists[1]
        assert all(torch.equal(*pair) for pair in results)


def test_a_list_of_moving_numbers_is_iterated_by_one_trace():
    def total(x, numbers):
        for number in numbers:
            x = x * number
        return x

    compiled = framefuse.compile(total)
    for start in range(2, 12):
        numbers = [start, start + 1, start * 2]
        x = torch.full((2,), 1.0)
        assert torch.equal(compiled(x, numbers), total(x, numbers))
    assert compiled.hits >= 6
