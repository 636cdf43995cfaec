"""Closures, cells, scopes and comprehensions are what CPython makes of them. PYTEST_DONT_REWRITE"""

import pytest
import torch
from tests.unit.capture.opcodes.language.table import Row, Table, check

TABLE = Table()
row = TABLE.row
COUNT = 0
LIMIT = 3


@row()
def nonlocal_counter():
    n = 0

    def f(x):
        def up():
            nonlocal n
            n += 1
            return n

        return x * up() + up()

    return f, lambda: n


@row()
def cells_are_shared_by_siblings():
    def f(x):
        total = x

        def add(y):
            nonlocal total
            total = total + y

        def get():
            return total

        add(x * 2)
        add(1)
        return get()

    return f


@row()
def late_binding_in_a_loop():
    def f(x):
        makers = [lambda y: y * i for i in range(3)]
        return [make(x) for make in makers]

    return f


@row()
def early_binding_by_default():
    def f(x):
        makers = [lambda y, i=i: y * i for i in range(3)]
        return [make(x) for make in makers]

    return f


@row()
def closure_deep():
    def f(x):
        def a():
            def b():
                def c():
                    return x + 1

                return c()

            return b()

        return a()

    return f


@row()
def argument_that_is_a_cell():
    def f(x):
        def scale(k):
            def apply(y):
                nonlocal k
                k = k + 1
                return y * k

            return apply

        g = scale(2)
        return g(x) + g(x)

    return f


@row(after=lambda g: g(torch.ones(4, 3)).sum() * 0)
def returned_closure():
    def f(x):
        y = x * 2

        def g(z):
            return y.sum() + z

        return g

    return f


@row(after=lambda g: (g(), g(), g.__defaults__, g.__kwdefaults__, g.__doc__, g.__annotations__))
def returned_closure_with_state():
    def f(x):
        y, n = x + 1, 0

        def g(a=3, *, b: int = 4) -> int:
            "A text."
            nonlocal n
            n += a
            return y * n * b

        return g

    return f


@row(after=lambda pair: (pair[0](5), pair[1](), pair[0](1), pair[1]()))
def returned_closures_share_a_cell():
    def f(x):
        total = 0

        def add(k):
            nonlocal total
            total += k

        def get():
            return x * total

        return add, get

    return f


@row(after=lambda g: g(5))
def returned_recursive_closure():
    def f(x):
        y = x.sin()

        def fact(n):
            return y if n <= 1 else n * fact(n - 1)

        return fact

    return f


@row(after=lambda g: g(2))
def returned_lambda_over_nothing():
    def f(x):
        x + 1
        return lambda k: k * 3

    return f


@row(after=lambda o: o["f"](1))
def closure_inside_a_dict():
    def f(x):
        y = x * 3
        return {"f": lambda k: y + k, "y": y}

    return f


@row()
def function_attributes():
    def f(x):
        def g():
            return x * g.scale

        g.scale = 3
        return g(), g.__name__, g.__qualname__

    return f


@row()
def global_counter():
    def f(x):
        global COUNT
        COUNT += 1
        return x + COUNT - COUNT

    return f


@row()
def global_read_from_nested():
    def f(x):
        def g():
            return LIMIT

        return x * g()

    return f


@row()
def unbound_local_text():
    def f(x):
        try:
            if x is None:
                y = 1
            return x * y
        except UnboundLocalError as error:
            return x, str(error)

    return f


@row()
def deleted_local_text():
    def f(x):
        y = x + 1
        del y
        try:
            return y
        except UnboundLocalError as error:
            return x, str(error)

    return f


@row()
def free_variable_text():
    def f(x):
        def g():
            return y

        try:
            return g()
        except NameError as error:
            text = str(error), type(error).__name__
        y = 1
        return x * y, text

    return f


@row()
def deleted_cell_text():
    def f(x):
        y = x + 1

        def g():
            return y

        first = g()
        del y
        try:
            return g()
        except NameError as error:
            return first, str(error)

    return f


@row()
def unknown_global_text():
    def f(x):
        try:
            return x + no_such_name  # noqa: F821
        except NameError as error:
            return x, str(error), error.name

    return f


@row()
def nested_comprehensions():
    def f(x):
        k = 2
        return [[x * i * k + j for j in range(i)] for i in range(3)]

    return f


@row()
def comprehension_of_every_kind():
    def f(x):
        rows = {i: x * i for i in range(3) if i != 1}
        keys = {i % 2 for i in range(5)}
        total = sum(v for v in rows.values())
        return rows, keys, total, [a + b for a, b in zip(range(2), rows)]

    return f


@row()
def comprehension_with_walrus():
    def f(x):
        parts = [y := x + i for i in range(3)]
        return parts, y

    return f


@row()
def comprehension_reads_its_class():
    def f(x):
        class C:
            n = 3
            values = [i for i in range(n)]

        return x * C.n, C.values

    return f


@row()
def walrus_everywhere():
    def f(x):
        if (n := x.dim()) > 1:
            x = x * n
        while (n := n - 1) > 0:
            x = x + n
        return x, n

    return f


@row()
def locals_in_a_function():
    def f(x):
        y = x * 2
        z = 3
        found = locals()
        return sorted(found), found["y"] + z

    return f


@row()
def locals_with_cells():
    def f(x):
        a = 1

        def g():
            return a, sorted(locals())

        return g(), sorted(locals()), x * a

    return f


@row()
def recursion():
    def f(x):
        def fib(n):
            return x if n < 2 else fib(n - 1) + fib(n - 2)

        return fib(6)

    return f


@row()
def mutual_recursion():
    def f(x):
        def even(n, y):
            return y if n == 0 else odd(n - 1, y + 1)

        def odd(n, y):
            return y * 2 if n == 0 else even(n - 1, y - 2)

        return even(7, x)

    return f


@row()
def recursion_error():
    def f(x):
        def g(n):
            return g(n + 1)

        try:
            g(0)
        except RecursionError as error:
            return x, "maximum recursion depth exceeded" in str(error)

    return f


@row()
def chained_assignment_and_swap():
    def f(x):
        a = b = x
        a, b = b + 1, a * 2
        (c, [d, *e]), g = (1, [2, 3, 4]), 5
        return a, b, c, d, e, g

    return f


@row()
def loops_with_else():
    def f(x):
        for i in range(3):
            if i == 5:
                break
        else:
            x = x + 1
        while i > 0:
            i -= 1
            if i == 1:
                continue
            x = x * 2
        else:
            x = x - 1
        return x

    return f


@row()
def conditional_expressions():
    def f(x):
        n = x.dim()
        a = x if n == 2 else None
        b = None or a
        c = (n and 0) or 7
        return b, c, not n, 1 < n <= 2 != 3

    return f


@row()
def assertions():
    def f(x):
        assert x.dim() == 2
        try:
            assert x.dim() == 3, f"dim {x.dim()}"
        except AssertionError as error:
            return x, str(error)

    return f


@row(eager="frame")
def eval_of_constants():
    def f(x):
        return x * eval("1 + 2")

    return f


@row(eager="frame")
def exec_defines():
    def f(x):
        space = {}
        exec("def g(y): return y * 3", space)
        return space["g"](x)

    return f


@row()
def cell_contents():
    def f(x):
        def g():
            return x

        return g.__closure__[0].cell_contents * 2, g.__code__.co_freevars

    return f


@row()
def default_is_shared():
    def f(x):
        def g(v, seen=[]):  # noqa: B006
            seen.append(v)
            return len(seen)

        return x * g(1) * g(2), g(3)

    return f


@row()
def mutable_default_of_an_outer_function():
    def add(v, seen=[]):  # noqa: B006
        seen.append(v)
        return v

    def f(x):
        return x * add(2)

    return f, lambda: add.__defaults__


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_closures(case: Row) -> None:
    check(case)
