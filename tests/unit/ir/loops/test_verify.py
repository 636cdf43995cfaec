import pytest
from tests.unit.codegen import kernels as k

from framefuse.ir.dtypes import FLOAT32, INT64
from framefuse.ir.loops import Accumulate, Apply, Buffer, Check, Kernel, Let, Load, Local, Loop, LoopKind, Scalar, Store
from framefuse.ir.loops.verify import problems
from framefuse.ir.numbers import Symbol, expr

I, N, X = k.I, k.N, k.load("x0", k.I)
BUFFERS = Buffer("x0", FLOAT32, False), Buffer("out", FLOAT32, True)


def kernel(*body, buffers=BUFFERS):
    return k.kernel(buffers, [N], [Loop(I, N.expr, body, LoopKind.PARALLEL_VECTOR)], N.expr)


@pytest.mark.parametrize("make", [k.softmax, k.layer_norm, lambda: k.chain_sum(5), lambda: k.row_operation("argmin")])
def test_right_kernels_have_no_problems(make):
    assert problems(make()) == []


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (Store("out", I.expr, Local("v", FLOAT32)), "v is not known as float32"),
        (Store("out", Symbol("j").expr, X), "j has no value here"),
        (Store("x0", I.expr, X), "float32 is stored to x0"),
        (Store("out", I.expr, k.const(1, INT64)), "int64 is stored to out"),
        (Store("out", I.expr, Load("x0", I.expr, INT64)), "int64 is loaded from x0"),
        (Store("out", I.expr, Load("x0", I.expr, FLOAT32, X)), "a load is masked by float32"),
        (Store("out", I.expr, Apply("add", (X,), FLOAT32)), "add of 1 operands"),
        (Store("out", I.expr, Scalar(N, FLOAT32, True)), "n is no such number"),
        (Accumulate("a", X), "a is no accumulator"),
        (Check(X), "a check of float32"),
        (Loop(k.J, expr(3), (), LoopKind.PARALLEL), "the parallel loop over j is inside another loop"),
    ],
)
def test_a_broken_rule_is_told(body, says):
    assert says in problems(kernel(body))


def test_what_a_loop_names_is_not_known_behind_it():
    inside = Loop(k.J, expr(3), (Let("v", X),))
    assert problems(kernel(inside, Store("out", I.expr, Local("v", FLOAT32)))) == ["v is not known as float32"]


def test_memory_is_shared_with_what_is_read_alone():
    shared = (BUFFERS[0], Buffer("out", FLOAT32, True, "out"))
    assert problems(Kernel("t", shared, (), (), expr(1))) == [
        "out is the memory of out, which is no buffer that is read"
    ]
