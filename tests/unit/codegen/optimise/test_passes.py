"""Optimised nests mean what the nests meant, keep the rules, and have each value once."""

import random

import pytest
import torch
from tests.unit.codegen import kernels as k

from framefuse.codegen.interpreter import interpret
from framefuse.codegen.optimise import PASSES, Optimised, optimised
from framefuse.ir.dtypes import BOOL, FLOAT32, INT64
from framefuse.ir.loops import (
    Accumulate,
    Accumulator,
    Apply,
    Buffer,
    Check,
    Index,
    Let,
    Load,
    Local,
    Loop,
    LoopKind,
    Store,
)
from framefuse.ir.loops.print import kernel_text
from framefuse.ir.loops.verify import problems
from framefuse.ir.loops.walk import statements, values_of
from framefuse.ir.numbers import Symbol, expr

I, J, N, ROWS, COLS = k.I, k.J, k.N, k.ROWS, k.COLS
AT = I.expr * COLS.expr + J.expr
X, Y, OUT = Buffer("x", FLOAT32, False), Buffer("y", FLOAT32, False), Buffer("out", FLOAT32, True)


def rows(*body, buffers=(X, OUT)):
    return k.kernel(buffers, [ROWS, COLS], [Loop(I, ROWS.expr, body, LoopKind.PARALLEL)], ROWS.expr)


def loop(*body, axis=J, kind=LoopKind.VECTOR):
    return Loop(axis, COLS.expr, body, kind)


def lines(kernel):
    return [line.strip() for line in kernel_text(optimised(kernel).kernel).splitlines()[1:]]


def number(nest, value):
    return nest.numbers[id(value)]


@pytest.mark.parametrize("make", [k.softmax, k.layer_norm, lambda: k.row_operation("argmax"), lambda: k.chain_sum(12)])
def test_an_optimised_kernel_computes_the_same(make):
    kernel = make()
    sizes = [5, 7] if len(kernel.numbers) == 2 else [35]
    given = [torch.randn(35).to(b.dtype.torch) for b in kernel.buffers if not b.written]
    plain = [torch.zeros(35, dtype=b.dtype.torch) for b in kernel.buffers if b.written]
    better = [each.clone() for each in plain]
    assert interpret(kernel, [*given, *plain], sizes) == interpret(optimised(kernel).kernel, [*given, *better], sizes)
    for one, other in zip(plain, better, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def test_every_pass_keeps_the_rules():
    for kernel in (k.softmax(), k.layer_norm(), k.chain_sum(9), k.row_operation("max")):
        nest = Optimised(kernel)
        for name, run in PASSES:
            assert not problems(nest.kernel), name
            nest = run(nest)
        assert not problems(nest.kernel)


def test_a_kernel_is_optimised_once():
    kernel = k.softmax()
    assert optimised(kernel) is optimised(kernel)


def test_equal_values_get_one_name():
    double = k.apply("mul", k.load("x", AT), k.const(2.0))
    again = k.apply("mul", k.load("x", AT), k.const(2.0))
    kernel = rows(loop(Let("a", double), Let("b", again), Store("out", AT, k.apply("add", Local("a", FLOAT32), again))))
    text = lines(kernel)
    assert text[2] == "a = (x[cols*i + j] * f32(2.0))" and text[3].endswith("= (a + a)") and len(text) == 4


def test_loops_over_one_range_share_their_axis():
    other = Symbol("other")
    first, second = k.load("x", AT), k.load("x", I.expr * COLS.expr + other.expr)
    kernel = rows(
        Accumulator("a", "sum", FLOAT32),
        loop(Accumulate("a", first)),
        loop(Store("out", I.expr * COLS.expr + other.expr, k.apply("sub", second, Local("a", FLOAT32))), axis=other),
    )
    nest = optimised(kernel)
    loads = [value for value in values_of(nest.kernel.body) if isinstance(value, Load)]
    assert len({number(nest, load) for load in loads}) == 1
    assert len({s.axis for s in statements(nest.kernel.body) if isinstance(s, Loop)}) == 2


def test_loops_of_other_lengths_do_not():
    body = (Store("out", J.expr, k.load("x", J.expr)),)
    kernel = k.kernel((X, OUT), [N], [Loop(J, N.expr, body), Loop(J, expr(3), body)])
    nest = optimised(kernel)
    assert len({loop.axis for loop in nest.kernel.body}) == 2 and not problems(nest.kernel)
    loads = [value for value in values_of(nest.kernel.body) if isinstance(value, Load)]
    assert len({number(nest, load) for load in loads}) == 2


def test_a_load_behind_a_store_is_another_value():
    load = k.load("out", AT)
    kernel = rows(loop(Let("a", load), Store("out", AT, k.const(1.0)), Let("b", load), Store("out", AT, k.apply(
        "add", Local("a", FLOAT32), Local("b", FLOAT32)))))  # fmt: skip
    out = torch.full((6,), 5.0)
    assert interpret(optimised(kernel).kernel, [torch.zeros(6), out], [2, 3]) == 0
    assert out.tolist() == [6.0] * 6


def test_a_load_from_memory_that_is_overwritten_is_another_value():
    load, buffers = k.load("x", AT), (X, Buffer("out", FLOAT32, True, "x"))
    kernel = rows(loop(Let("a", load), Store("out", AT, k.const(1.0)), Store("out", AT, k.apply(
        "add", Local("a", FLOAT32), load))), buffers=buffers)  # fmt: skip
    nest = optimised(kernel)
    loads = [value for value in values_of(nest.kernel.body) if isinstance(value, Load)]
    assert len({number(nest, each) for each in loads}) == len(loads) == 2


def test_what_a_serial_loop_stores_is_read_anew_by_its_turns():
    load = k.load("out", I.expr)
    turn = Loop(J, expr(4), (Store("out", I.expr, k.apply("add", load, k.const(1.0))),))
    body = (Let("before", load), turn, Store("out", I.expr, k.apply("add", load, Local("before", FLOAT32))))
    kernel = k.kernel((OUT,), [N], [Loop(I, N.expr, body, LoopKind.PARALLEL)], N.expr)
    out = torch.tensor([1.0, 2.0])
    assert interpret(optimised(kernel).kernel, [out], [2]) == 0
    assert out.tolist() == [6.0, 8.0]


def test_an_accumulator_has_another_value_after_each_term():
    total = k.apply("mul", Local("a", FLOAT32), k.const(1.0))
    kernel = rows(
        Accumulator("a", "sum", FLOAT32),
        loop(Accumulate("a", k.load("x", AT)), kind=LoopKind.SERIAL),
        Let("once", total),
        loop(Accumulate("a", k.load("x", AT)), kind=LoopKind.SERIAL),
        Store("out", I.expr, k.apply("sub", total, Local("once", FLOAT32))),
    )
    out = torch.zeros(2)
    assert interpret(optimised(kernel).kernel, [torch.ones(6), out], [2, 3]) == 0
    assert out.tolist() == [3.0, 3.0]


def test_what_nothing_reads_is_left_out_unless_it_may_fail():
    whole = k.load("y", AT, INT64)
    quotient = Apply("floordiv", (whole, whole), INT64)
    kernel = rows(
        loop(
            Let("unused", Index(J.expr * 2, INT64)),
            Let("chain", k.apply("exp", k.load("x", AT))),
            Let("end", k.apply("exp", Local("chain", FLOAT32))),
            Let("fails", quotient),
            Store("out", AT, k.load("x", AT)),
        ),
        buffers=(X, Buffer("y", INT64, False), OUT),
    )
    text = "\n".join(lines(kernel))
    assert "unused" not in text and "chain" not in text and "end" not in text and "fails = " in text
    buffers = [torch.ones(6), torch.zeros(6, dtype=torch.int64), torch.zeros(6)]
    assert interpret(optimised(kernel).kernel, buffers, [2, 3]) == 1


def test_a_position_is_the_value_that_it_is_named_after():
    t, index = Local("t", INT64), Index(Symbol("t").expr, INT64)
    inside = k.apply("ge", index, k.const(0, INT64))
    kernel = rows(
        Let("raw", k.load("y", I.expr, INT64)),
        Let("t", Local("raw", INT64)),
        Check(k.apply("ge", t, k.const(0, INT64))),
        Let("m", inside),
        loop(Store("out", AT, k.load("x", Symbol("t").expr, mask=Local("m", BOOL)))),
        buffers=(X, Buffer("y", INT64, False), OUT),
    )
    text = "\n".join(lines(kernel))
    assert "check((raw >= i64(0)))" in text and "m = (raw >= i64(0))" in text and "x[raw]" in text


def test_a_name_that_comes_twice_stands_for_one_value():
    one, two = k.load("x", AT), k.apply("neg", k.load("x", AT))
    kernel = rows(
        loop(Let("v", one), Store("out", AT, Local("v", FLOAT32))),
        loop(Let("v", two), Store("out", AT, Local("v", FLOAT32))),
    )
    nest = optimised(kernel).kernel
    names = [s.name for s in statements(nest.body) if isinstance(s, Let)]
    assert len(set(names)) == 2 and not problems(nest)


def test_a_long_chain_is_no_deep_recursion():
    value = k.load("x", I.expr)
    for _ in range(3000):
        value = k.apply("add", value, value)
    assert len(values_of(optimised(k.pointwise([FLOAT32], value)).kernel.body)) > 0


def test_random_programs_keep_their_meaning():
    draw = random.Random(0)
    for _ in range(60):
        body, known = [], ["x0"]
        body.append(Let("x0", k.load("x", AT)))
        for step in range(draw.randint(2, 9)):
            operands = [Local(draw.choice(known), FLOAT32), draw.choice([k.load("x", AT), k.load("out", AT)])]
            draw.shuffle(operands)
            value = k.apply(draw.choice(["add", "sub", "mul"]), *operands)
            if draw.random() < 0.4:
                body.append(Store("out", AT, value))
            else:
                known.append(draw.choice(known) if draw.random() < 0.2 else f"v{step}")
                body.append(Let(known[-1], value))
        body.append(Store("out", AT, Local(known[-1], FLOAT32)))
        kernel = rows(loop(*body), loop(*body))
        x, plain = torch.randn(6), torch.randn(6)
        better = plain.clone()
        interpret(kernel, [x, plain], [2, 3])
        interpret(optimised(kernel).kernel, [x, better], [2, 3])
        assert torch.equal(plain, better), kernel_text(kernel)
