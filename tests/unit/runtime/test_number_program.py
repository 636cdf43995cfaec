"""Number programs compute the expressions that they were asked for, each one once."""

from hypothesis import given
from hypothesis import strategies as st

from framefuse.ir.numbers import REAL_OPS, Expr, Real, Symbol, expr, maximum
from framefuse.runtime.number_program import NumberProgram

INT_OPS = {
    "add": lambda a, b: a + b,
    "mul": lambda a, b: a * b,
    "floordiv": lambda a, b: a // b,
    "mod": lambda a, b: a % b,
    "min": min,
    "max": max,
}


def execute(instructions, numbers):
    """The instructions' meaning, from ir/plan.py."""
    for op, slot, left, right in instructions:
        if op in ("const", "real_const"):
            numbers[slot] = left
        elif op == "real_of_int":
            numbers[slot] = float(numbers[left])
        elif op.startswith("real_"):
            unary = op[5:] in ("neg", "abs", "sqrt", "floor", "float32")
            numbers[slot] = REAL_OPS[op[5:]](*([numbers[left]] if unary else [numbers[left], numbers[right]]))
        else:
            numbers[slot] = INT_OPS[op](numbers[left], numbers[right])
    return numbers


A, B = Symbol("s0"), Symbol("s1")


@given(st.integers(0, 50), st.integers(1, 50))
def test_sizes(a, b):
    program = NumberProgram({A: 0, B: 1}, 2)
    values: list[Expr] = [
        A.expr * B.expr + 3,
        (A.expr + 15) // 16 * 16,
        A.expr % (B.expr + 1),
        maximum(A.expr - 4, 0),
        A.expr * B.expr * -2,
        expr(7),
    ]
    slots = [program.slot_of(value) for value in values]
    numbers = execute(program.early, {0: a, 1: b})
    assert [numbers[slot] for slot in slots] == [value.evaluate({A: a, B: b}) for value in values]


def test_equal_expressions_share_a_slot_and_bound_ones_need_no_instruction():
    program = NumberProgram({A: 0}, 1)
    assert program.slot_of(A.expr) == 0
    first = program.slot_of(A.expr * 2)
    assert program.slot_of(A.expr + A.expr) == first
    assert len(program.early) == 2  # the constant and the product


def test_reals():
    program = NumberProgram({A: 0, "f0": 1}, 2)
    value = Real("div", (Real("symbol", ("f0",)), Real("int", (A.expr,))))
    slot = program.slot_of(value)
    half = program.slot_of(0.5)
    numbers = execute(program.early, {0: 4, 1: 10.0})
    assert numbers[slot] == 2.5
    assert numbers[half] == 0.5


def test_symbols_bound_later_are_computed_after_that_point():
    program = NumberProgram({A: 0}, 1)
    late = program.bind(B)
    doubled = program.slot_of(B.expr * 2)
    sum_ = program.slot_of(A.expr + B.expr * 2)
    early = program.slot_of(A.expr + 1)
    numbers = execute(program.early, {0: 5})
    assert numbers[early] == 6
    assert doubled not in numbers
    numbers = execute(program.take(), {**numbers, late: 21})
    assert (numbers[doubled], numbers[sum_]) == (42, 47)
    assert program.take() == ()
