from tests.unit.codegen import kernels as k

from framefuse.ir.dtypes import BOOL, FLOAT32
from framefuse.ir.loops import Accumulate, AtomicAdd, Const, Let, Load, Local, Loop, Scratch, Store
from framefuse.ir.loops.key import key_of
from framefuse.ir.loops.rewrite import with_parts, with_values
from framefuse.ir.loops.walk import in_order, operands, position, positions, statements, values, values_of
from framefuse.ir.numbers import expr

X = k.load("x0", k.I)


def chain(length):
    value = X
    for _ in range(length):
        value = k.apply("add", value, value)
    return value


def test_shared_values_are_met_once():
    value = chain(200)
    body = (Store("out", k.I.expr, value), Let("again", value))
    assert len(values_of(body)) == len(list(in_order(value, {}))) == 201


def test_operands_come_first():
    value = chain(4)
    met = list(in_order(value, {}))
    assert met[0] is X and met[-1] is value
    assert all(met.index(part) < met.index(each) for each in met for part in operands(each))


def test_what_is_known_is_left_out():
    value = chain(3)
    inner = value.args[0]
    assert list(in_order(value, {id(inner): None})) == [value]


def test_a_mask_is_an_operand():
    mask = Local("m", BOOL)
    masked = Load("x0", k.I.expr, FLOAT32, mask)
    assert operands(masked) == (mask,) and operands(X) == ()
    assert values(AtomicAdd("out", k.I.expr, X, mask)) == (X, mask)


def test_positions_are_those_of_statements_and_values():
    body = (Scratch("row", FLOAT32, k.N.expr), Loop(k.J, expr(3), (Accumulate("a", X, k.J.expr),)))
    assert set(positions(body)) == {k.N.expr, expr(3), k.J.expr, k.I.expr}
    assert len(list(statements(body))) == 3


def test_rewriting_keeps_what_stays():
    value = k.apply("add", X, X)
    store = Store("out", k.I.expr, value)
    assert with_parts(value, (X, X), None) is value
    assert with_values(store, (value,), k.I.expr) is store
    other = Const(1.0, FLOAT32)
    assert with_parts(value, (other, X), None) == k.apply("add", other, X)
    moved = with_parts(X, (), k.J.expr)
    assert position(moved) is k.J.expr and with_values(store, (moved,), k.J.expr) == Store("out", k.J.expr, moved)


def test_keys_are_equal_for_equal_kernels_and_tell_others():
    assert key_of(k.softmax()) == key_of(k.softmax()) and hash(key_of(k.softmax())) == hash(key_of(k.softmax()))
    zeros = [key_of(k.pointwise([FLOAT32], k.apply("add", X, k.const(zero)))) for zero in (0.0, -0.0)]
    assert zeros[0] != zeros[1]
    assert key_of(k.pointwise([FLOAT32], chain(300))) == key_of(k.pointwise([FLOAT32], chain(300)))
