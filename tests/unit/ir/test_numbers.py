"""Expressions keep Python's value under every operation, and equal forms are one object."""

import operator
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from framefuse.ir.comparisons import Relation
from framefuse.ir.numbers import Expr, Real, Symbol, ceildiv, expr, maximum, minimum, product

NAMES = ("s0", "s1", "s2")
INTEGERS = st.integers(-12, 12)
VALUES = st.fixed_dictionaries({Symbol(name): INTEGERS for name in NAMES})


def leaves() -> st.SearchStrategy[tuple[Expr, object]]:
    symbols = st.sampled_from(NAMES).map(lambda n: (Symbol(n).expr, lambda v: v[Symbol(n)]))
    constants = INTEGERS.map(lambda c: (expr(c), lambda v: c))
    return symbols | constants


OPERATIONS = (
    (operator.add, operator.add),
    (operator.sub, operator.sub),
    (operator.mul, operator.mul),
    (minimum, min),
    (maximum, max),
)


def pairs(children: st.SearchStrategy) -> st.SearchStrategy:
    def build(left: tuple, right: tuple, op: tuple) -> tuple:
        return op[0](left[0], right[0]), lambda v: op[1](left[1](v), right[1](v))

    def divide(left: tuple, divisor: int, op: object) -> tuple:
        return op(left[0], divisor), lambda v: op(left[1](v), divisor)

    division = st.builds(
        divide, children, INTEGERS.filter(bool), st.sampled_from((operator.floordiv, operator.mod))
    )
    return st.builds(build, children, children, st.sampled_from(OPERATIONS)) | division


TREES = st.recursive(leaves(), pairs, max_leaves=8)


@given(TREES, VALUES)
def test_value_is_pythons(tree, values):
    value, reference = tree
    assert value.evaluate(values) == reference(values)


@given(TREES, VALUES, TREES)
def test_substitution_then_value_is_value_of_the_substituted(tree, values, other):
    value, _ = tree
    inner, reference = other
    replaced = value.substitute({Symbol("s0"): inner})
    assert replaced.evaluate(values) == value.evaluate({**values, Symbol("s0"): reference(values)})


@given(TREES, VALUES)
def test_affine_parts_add_up(tree, values):
    value, _ = tree
    symbol = Symbol("s0")
    factor = value.coefficient(symbol)
    if factor is not None:
        assert symbol not in factor.symbols
        whole = factor.evaluate(values) * values[symbol] + value.without(symbol).evaluate(values)
        assert whole == value.evaluate(values)


@given(TREES)
def test_equal_forms_are_one_object_and_pickle_keeps_that(tree):
    value, _ = tree
    assert value + 1 - 1 is value
    assert value * 2 - value is value
    assert pickle.loads(pickle.dumps(value)) is value


def test_division_by_a_symbol_cancels_exactly():
    a, b = Symbol("s0").expr, Symbol("s1").expr
    assert (a * b * 6) // (b * 3) is a * 2
    assert (a * b * 3) // (b * 6) is a // 2
    assert (a * 6 + b * 4) // -10 is (a * -3 - b * 2) // 5
    assert (a * 16 + 3) % 16 == 3
    assert ceildiv(a * 8, 8) is a
    assert product([a, 1, b]) is a * b


def test_division_by_zero_is_pythons_error():
    with pytest.raises(ZeroDivisionError):
        Symbol("s0").expr // 0
    with pytest.raises(ZeroDivisionError):
        Symbol("s0").expr % 0


def test_relations_know_when_they_need_no_check():
    a = Symbol("s0").expr
    assert Relation("==", a + 1, a + 1).constant is True
    assert Relation("<", a, a).constant is False
    assert Relation("<=", a, expr(4)).constant is None
    assert Relation("<=", a, expr(4)).holds({Symbol("s0"): 4})
    assert not Relation("!=", a, expr(4)).holds({Symbol("s0"): 4})


def test_reals_follow_pythons_arithmetic():
    n = Real("int", (Symbol("s0").expr,))
    x = Real("symbol", ("f0",))
    value = Real("div", (Real("add", (x, n)), Real("const", (4.0,))))
    assert value.evaluate({Symbol("s0"): 3}, {"f0": 0.5}) == 0.875
    assert value.symbols == {Symbol("s0")}
    assert value.substitute({Symbol("s0"): expr(7)}).evaluate({}, {"f0": 1.0}) == 2.0
    with pytest.raises(ZeroDivisionError):
        Real("div", (x, Real("const", (0.0,)))).evaluate({}, {"f0": 1.0})
