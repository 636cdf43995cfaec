"""What 3.12 added: comprehensions inside their function's frame, type parameters, f-strings of any expression."""

import typing

import pytest
import torch
from tests.unit.capture.opcodes.language.table import Row, Table, check

from framefuse.capture.record import record

TABLE = Table()
row = TABLE.row
FACTOR = 3


# Comprehensions (PEP 709): their variables are slots of the function, put away and brought back.
@row()
def the_variable_comes_back():
    def f(x):
        n = 10
        made = [x * n for n in range(3)]
        return made, n

    return f


@row()
def an_unbound_variable_stays_unbound():
    def f(x):
        made = [x * n for n in range(3)]
        try:
            return made, n
        except UnboundLocalError as error:
            return made, str(error)
        n = 1

    return f


@row()
def an_exception_brings_the_variable_back():
    def f(x):
        n = 10
        try:
            made = [x / n for n in (2, 1, 0) if 4 // n]
        except ZeroDivisionError as error:
            made = [str(error)]
        return x * n, made

    return f


@row()
def the_variable_is_a_cell_inside_only():
    def f(x):
        n = 10
        made = [lambda: x * n for n in range(3)]
        return [g() for g in made], n

    return f


@row()
def the_variable_is_a_cell_outside_too():
    def f(x):
        n = 10

        def outer():
            return n

        made = [lambda: n for n in range(3)]
        return [x * g() for g in made], outer(), n

    return f


@row()
def the_variable_is_free_outside():
    n = 7

    def f(x):
        before = n
        made = [x * n for k in range(2) for n in range(k + 1)]
        return made, before, n

    return f


@row()
def a_name_is_free_outside_and_local_inside():
    n = 7

    def f(x):
        return [x * n for _ in range(2)], [n for n in range(3)], n

    return f


@row()
def nested_in_each_other():
    def f(x):
        a = b = 5
        made = [[x * (a + b) for a in range(b)] for b in range(3)]
        return made, {a: {b for b in range(a)} for a in range(3)}, a, b

    return f


@row()
def names_of_an_expression_stay():
    def f(x):
        made = [(last := x + n) for n in range(3)]
        return made, last

    return f


@row()
def locals_inside_shows_the_function():
    def f(x):
        a = 1
        return x * 2, [sorted(locals()) for _ in range(1)], a

    return f


@row()
def super_inside():
    class Base:
        def scaled(self, x, n):
            return x * n

    class Derived(Base):
        def scaled(self, x, n):
            return [super().scaled(x, k) for k in range(n)]

    derived = Derived()

    def f(x):
        return derived.scaled(x, 3)

    return f


@row()
def in_the_body_of_a_loop_with_a_finally():
    def f(x):
        log = []
        for n in range(3):
            try:
                if [n for n in (n, n + 1) if n == 2]:
                    continue
            finally:
                log.append(n)
        return x * n, log

    return f


@row(eager="raises")
def a_traceback_has_no_frame_of_the_comprehension():
    def f(x):
        return [x * (1 // n) for n in (1, 0)]

    return f


# Type parameters (PEP 695).
def scaled[T](x: T, factor: int = FACTOR) -> T:
    return x * factor


class Box[T]:
    kept: T

    def __init__(self, kept: T) -> None:
        self.kept = kept

    def mapped[S](self, function: typing.Callable[[T], S]) -> "Box[S]":
        return Box[S](function(self.kept))


type Pair[T] = tuple[T, T]


@row()
def a_generic_function_runs():
    def f(x):
        return scaled(x), scaled(x, 2), scaled.__type_params__[0].__name__

    return f


@row()
def a_generic_class_runs():
    def f(x):
        return Box(x).mapped(lambda kept: kept * 2).kept, Box[int](3).kept

    return f


@row()
def an_alias_is_read():
    def f(x):
        return x * 2, Pair.__name__, repr(Pair.__value__)

    return f


@row()
def a_generic_function_is_made_inside():
    def f(x):
        def twice[T: (int, float), *Ts, **P](value: T, by: int = 2) -> T:
            """Twice."""
            return value * by

        t, ts, p = twice.__type_params__
        told = [t.__name__, t.__infer_variance__, repr(t.__constraints__), ts.__name__, p.__name__]
        told += [twice.__doc__, twice.__name__, twice.__defaults__, sorted(twice.__annotations__), t.__module__]
        return twice(x), told, twice.__annotations__["value"] is t

    return f


@row()
def a_bound_is_read_late():
    def f(x):
        def kept[T: Later](value: T) -> T:
            return value

        Later = int
        return kept(x) * 2, kept.__type_params__[0].__bound__ is Later

    return f


@row()
def an_alias_is_made_inside():
    def f(x):
        type Two[T] = tuple[T, T]
        return x * 2, Two.__name__, repr(Two.__value__), Two.__type_params__[0].__name__, Two.__module__

    return f


@row()
def a_type_parameter_is_read_in_the_body():
    def f(x):
        def named[T](value: T):
            return value * 2, T.__name__

        return named(x)

    return f


# f-strings (PEP 701).
@row()
def any_expression_in_a_text():
    def f(x):
        names = ["a", "b"]
        return x * 2, f"{", ".join([f"{name!r:>{x.dim() + 3}}" for name in names])} {x.dim()=}"

    return f


@row()
def conversions_and_formats():
    class Odd:
        def __format__(self, spec):
            return f"<{spec}>"

        def __repr__(self):
            return "odd é"

    def f(x):
        odd = Odd()
        return x * 2, f"{odd} {odd:spec} {odd!r} {odd!s:>8} {odd!a} {1.5:6.2f} {3!r:>4}"

    return f


@row(eager="item", traces=2)
def the_text_of_a_tensor_in_a_computed_field():
    def f(x):
        n = x.dim()
        return x * 2, f"{x.sum() * 0!r:>{n + 20}} {x.sum() * 0!s} {x.sum() * 0!r:>30}"

    return f


@row(traces=2)
def a_size_in_a_computed_field():
    def f(x):
        n = x.shape[0]
        return x * n, f"{n!r:>{n}} {n!s} {n!a:>5} {n:{n}}"

    return f


# super() with its attribute in one instruction.
class Root(typing.NamedTuple("Root", [("a", int)])):
    @property
    def doubled(self):
        return self.a * 2

    @classmethod
    def named(cls):
        return cls.__name__

    @staticmethod
    def plain(value):
        return value + 1

    def method(self, x):
        return x * self.a


class Leaf(Root):
    @property
    def doubled(self):
        return super().doubled + 1

    @classmethod
    def named(cls):
        return super().named() + "!"

    @staticmethod
    def plain(value):
        return super(Leaf, Leaf).plain(value)

    def method(self, x):
        return super().method(x) + super(Leaf, self).method(x)

    def missing(self):
        return super().nothing


@row()
def super_of_every_kind():
    def f(x):
        leaf = Leaf(4)
        return leaf.method(x), leaf.doubled, Leaf.named(), leaf.named(), Leaf.plain(1)

    return f


@row(eager="raises")
def super_without_the_attribute():
    def f(x):
        return Leaf(4).missing()

    return f


@row()
def another_super():
    def f(x):
        return method(x, lambda *given: Root(len(given) + 1))

    def method(x, super):
        return super().method(x), super(Root, None).method(x)

    return f


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_since_312(case: Row) -> None:
    check(case)


def test_comprehensions_have_no_frame_of_their_own() -> None:
    """On 3.11 this would enter a function for each comprehension."""

    def f(x):
        return [x * n for n in range(2)], {n for n in range(2)}, {n: 1 for n in range(2)}

    made = record(f, (torch.ones(2),), {})
    assert made.trace is not None and made.trace.inlined == 0
