"""Arguments are bound, unpacked and refused as CPython does it."""

import heapq

import pytest
from tests.unit.capture.opcodes.language.table import Row, Table, check

TABLE = Table()
NOTHING, TEXT, THREE = None, "a", 3
row = TABLE.row


def every(a, /, b, c=3, *args, d, e=5, **kwargs):
    return a, b, c, args, d, e, kwargs


def only(a, /, *, k):
    return a, k


def plain(a, b=2):
    return a, b


class Callable:
    def __call__(self, *args, **kwargs):
        return args, kwargs


@row()
def binding():
    def f(x):
        return (
            every(x, 2, d=4), every(x, b=2, d=4, z=9), every(1, 2, 3, 4, 5, d=6),
            every(1, 2, *(3, 4), **{"d": 5, "e": 6}),
            every(*[1, 2], d=x, **{}),
            only(1, k=x), Callable()(1, *(2,), a=3, **{"b": x}), every(1, 2, d=3, **{"a": 4}),
        )  # fmt: skip

    return f


@row()
def errors():
    def f(x):
        texts = []
        for action in (
            lambda: every(), lambda: every(1), lambda: every(1, 2), lambda: every(a=1, b=2, d=3), lambda: only(1, 2),
            lambda: only(a=1, k=2), lambda: only(1), lambda: plain(), lambda: plain(1, 2, 3), lambda: plain(1, a=2),
            lambda: plain(1, z=3), lambda: plain(**{"a": 1}, **{"a": 2}), lambda: plain(*3), lambda: plain(**3),
            lambda: plain(**{1: 2}), lambda: (lambda a, b, c: 1)(), lambda: (lambda *, a, b: 1)(),
            lambda: (lambda: 1)(1), lambda: (lambda a=1: 1)(1, 2), lambda: (lambda *, k: 1)(1, k=2),
            lambda: Callable.nothing(), lambda: x(), lambda: NOTHING(), lambda: TEXT(), lambda: int(TEXT, z=3),
            lambda: len(), lambda: len(1, 2), lambda: [].append(), lambda: {}.get(), lambda: isinstance(1),
            lambda: (lambda a, /: 1)(a=1), lambda: (lambda a, /, b: 1)(1, 2, b=3), lambda: object(1), lambda: dict(1),
        ):  # fmt: skip
            try:
                action()
            except Exception as error:
                texts.append((type(error).__name__, str(error)))
        return x * 2, texts

    return f


@row()
def evaluation_order():
    def f(x):
        log = []

        def note(value):
            log.append(value)
            return value

        every(note(1), *note([2]), d=note(3), **note({"z": 4}))
        {note("k"): note("v")}
        [note(5), *note([6])]
        a = [0, 0]
        a[note(0)] = note(7)
        note(1) < note(2) < note(3)
        return x * 2, log

    return f


@row()
def star_displays():
    def f(x):
        a, d = [1, x], {"k": x}
        return [*a, *a], (*a, 3), {*[1, 2], *range(3)}, {**d, "z": 1, **{"k": 2}}

    return f


@row()
def star_mapping_of_the_user():
    class Mapping:
        def keys(self):
            return iter(["a", "b"])

        def __getitem__(self, key):
            return key * 2

    def f(x):
        return x * 2, plain(**Mapping()), {**Mapping()}

    return f


@row()
def defaults_are_evaluated_once():
    def f(x):
        n = [0]

        def next_value():
            n[0] += 1
            return n[0]

        def g(a=next_value(), *, b=next_value()):  # noqa: B008
            return a, b

        return x * 2, g(), g(), n

    return f


@row()
def kwargs_are_fresh():
    def f(x):
        given = {"a": 1}

        def g(**kwargs):
            kwargs["b"] = 2
            return kwargs

        return x * 2, g(**given), given

    return f


@row()
def keyword_order_is_kept():
    def f(x):
        return x * 2, list(every(1, 2, d=3, zz=1, aa=2)[6])

    return f


@row()
def methods_of_every_kind():
    class C:
        n = 3

        def method(self, y):
            return y * self.n

        @classmethod
        def cls(cls, y):
            return y * cls.n

        @staticmethod
        def static(y):
            return y + 1

    def f(x):
        c = C()
        return c.method(x), C.method(c, x), c.cls(x), C.cls(x), c.static(x), C.static(x)

    return f


@row()
def decorators():
    def twice(g):
        def inner(*args, **kwargs):
            return g(*args, **kwargs) * 2

        return inner

    def by(n):
        return lambda g: lambda *args: g(*args) * n

    def f(x):
        @twice
        @by(3)
        def g(y):
            return y + 1

        return g(x)

    return f


@row()
def unpacking():
    def f(x):
        texts = []
        a, *b, c = [1, 2, 3, 4]
        (d, e), f_ = "ab", x
        for action in (lambda: [p for p, q in [(1, 2, 3)]], lambda: [p for p, q in [(1,)]], lambda: [p for p, q in [3]],
                       lambda: [p for p, *q, r in [(1,)]]):  # fmt: skip
            try:
                action()
            except Exception as error:
                texts.append(str(error))
        return a, b, c, d, e, f_, texts

    return f


@row(eager="frame")
def native_code_changes_the_very_objects():
    def f(x):
        values, table = [3, 1, 2, x.dim()], {"n": 1}
        heapq.heapify(values)
        heapq.heappush(values, 0)
        exec("n = n + 1", table)
        return x * 2, values, table["n"]

    return f


@row()
def many_locals_and_constants():
    source = "def f(x):\n"
    source += "".join(f"    v{i} = {i} + x.dim()\n" for i in range(300)) + "    return x * (v1 + v299), v270"
    space = {"__name__": __name__}
    exec(source, space)
    return space["f"]


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_arguments(case: Row) -> None:
    check(case)
