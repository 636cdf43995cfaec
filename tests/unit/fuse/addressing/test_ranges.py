"""Digits of one number taken together, and the divisions that are left."""

import itertools

from framefuse.fuse.addressing.ranges import divisions, recombined
from framefuse.ir.numbers import Symbol

X, Y, N = (Symbol(name).expr for name in ("x", "y", "n"))


def digits(value, *radices):
    found = []
    for radix in radices:
        value, digit = value // radix, value % radix
        found.append(digit)
    return [value, *reversed(found)]


def test_the_digits_of_a_number_are_the_number():
    high, middle, low = digits(X + 5 * Y, 7, N)
    assert recombined(high * N * 7 + middle * 7 + low) is X + 5 * Y
    high, low = digits(X, N + 1)
    assert recombined(high * (N + 1) * Y + low * Y) is X * Y
    high, middle, low = digits(X + 5 * Y, 7, N)
    assert recombined(3 * (high * N * 7 + middle * 7 + low) + Y) is 3 * X + 16 * Y


def test_other_sums_stay():
    high, low = digits(X, 7)
    for value in (high * 6 + low, high * 7 + 2 * low, high * 7 - low, high * 14 + low, high * Y + low):
        assert recombined(value) is value
    for x, y in itertools.product(range(30), range(3)):
        values = {Symbol("x"): x, Symbol("y"): y}
        value = high * 7 + low + (Y % 7) * 3
        assert recombined(value).evaluate(values) == value.evaluate(values)


def test_divisions_are_counted_once_and_inside_of_others():
    high, low = digits(X, 7)
    assert len(divisions([high, low])) == 2
    assert len(divisions([high // 3, high % 3, low])) == 4
    assert not divisions([X * Y + 3, X - 1])
