"""``match`` chooses as CPython does, for every kind of pattern."""

import collections
import dataclasses
import enum

import pytest
from tests.unit.capture.opcodes.language.table import Row, Table, check

TABLE = Table()
row = TABLE.row


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Lazy:
    __match_args__ = ("first", "second")

    def __init__(self):
        self.reads = []

    @property
    def first(self):
        self.reads.append("first")
        return 1

    @property
    def second(self):
        self.reads.append("second")
        return 2


class Missing:
    __match_args__ = ("a", "b")
    a = 1


def kind(value):
    match value:
        case None | True:
            return "constant"
        case 0 | 1 as n:
            return f"small {n}"
        case -1 | 2.5 | "text" | b"b" | 1 + 2j:
            return "literal"
        case Colour.RED:
            return "red"
        case Colour() as c:
            return f"colour {c.name}"
        case []:
            return "empty"
        case [a]:
            return f"one {a}"
        case (1, *rest) if len(rest) > 2:
            return f"guarded {rest}"
        case [first, *_, last]:
            return f"ends {first} {last}"
        case {"kind": "a", "value": v, **rest}:
            return f"mapping {v} {rest}"
        case {}:
            return f"any mapping {len(value)}"
        case Point(0, y=b):
            return f"point zero {b}"
        case Point(x=a, y=b) if a == b:
            return f"diagonal {a}"
        case Point():
            return "point"
        case int(n) | float(n):
            return f"number {n}"
        case str() as text:
            return f"string {text}"
        case Lazy(1, 3):
            return "no"
        case Lazy(1, two):
            return f"lazy {two} {value.reads}"
        case Missing(a, b):
            return "no"
        case Missing(a):
            return f"missing {a}"
        case _:
            return type(value).__name__


VALUES = [
    None, True, False, 0, 1, -1, 2.5, "text", b"b", 1 + 2j, Colour.RED, Colour.BLUE, [], (3,), [1, 2, 3, 4], (5, 6),
    [1, 2], {"kind": "a", "value": 3, "z": 4}, {"kind": "b"}, {}, Point(0, 5), Point(4, 4), Point(1, 2), 17, 0.5,
    "other", Missing(), {1}, object(), range(3), collections.deque([1]),
    collections.OrderedDict(kind="a", value=1), "", b"",
    bytearray(b"a"),
]  # fmt: skip


@row()
def every_kind():
    def f(x):
        return x * 2, [kind(value) for value in (
            None, True, False, 0, 1, -1, 2.5, "text", b"b", 1 + 2j, Colour.RED, Colour.BLUE, [], (3,), [1, 2, 3, 4],
            (5, 6), [1, 2], {"kind": "a", "value": 3, "z": 4}, {"kind": "b"}, {}, Point(0, 5), Point(4, 4), Point(1, 2),
            17, 0.5, "other", range(3), {1}, "", b"", bytearray(b"a"), Missing(),
        )]  # fmt: skip

    return f


@row(eager="argument")
def every_kind_from_a_global():
    def f(x):
        return x * 2, [kind(value) for value in VALUES]

    return f


@row()
def properties_in_order():
    def f(x):
        return x * 2, kind(Lazy())

    return f


@row()
def tensors_in_patterns():
    def f(x):
        def g(value):
            match value:
                case {"x": t, "n": int(n)}:
                    return t * n
                case [t, *_]:
                    return t + 1

        return g({"x": x, "n": 3}), g([x, 2])

    return f


@row()
def nested():
    def f(x):
        match {"points": [Point(1, 2), Point(3, 4)], "t": x}:
            case {"points": [Point(a, b), Point(c, d) as last], "t": t}:
                return t * (a + b + c + d), last.x

    return f


@row()
def no_case_leaves_names():
    def f(x):
        match (1, 2):
            case (a, 3):
                pass
            case (b, 2):
                pass
        try:
            return a
        except UnboundLocalError:
            return x * b

    return f


@row()
def too_many_positional():
    def f(x):
        try:
            match Point(1, 2):
                case Point(1, 2, 3):
                    pass
        except TypeError as error:
            return x * 2, str(error)

    return f


@row()
def class_that_is_none():
    def f(x):
        thing = 3
        try:
            match x.dim():
                case thing():
                    pass
        except TypeError as error:
            return x * 2, str(error)

    return f


@row()
def attribute_twice():
    def f(x):
        try:
            match Point(1, 2):
                case Point(1, x=1):
                    pass
        except TypeError as error:
            return x * 2, str(error)

    return f


@row()
def match_args_that_are_wrong():
    class A:
        __match_args__ = ["a"]

    class B:
        __match_args__ = (1,)

    def f(x):
        texts = []
        for value in (A(), B()):
            try:
                match value:
                    case A(_) | B(_):
                        pass
            except TypeError as error:
                texts.append(str(error))
        return x * 2, texts

    return f


@row()
def keys_twice():
    def f(x):
        key = "a"

        class K:
            name = "a"

        try:
            match {"a": 1}:
                case {K.name: 1, "a": 1}:
                    pass
        except ValueError as error:
            return x * 2, str(error), key

    return f


@row()
def default_dict_grows_not():
    def f(x):
        d = collections.defaultdict(list)
        match d:
            case {"k": v}:
                return x, v
            case {**rest}:
                return x * 2, rest, len(d)

    return f


@row()
def computed_attribute():
    class Lazy:
        def __getattr__(self, name):
            if name == "value":
                return 5
            raise AttributeError(name)

    def f(x):
        match Lazy():
            case Lazy(other=_):
                return x
            case Lazy(value=v):
                return x * v

    return f


@row()
def sub_pattern_of_builtin():
    def f(x):
        out = []
        for value in (1, "a", (1,), {"a": 1}, 2.0, b"c", frozenset((1,))):
            match value:
                case int(v) | str(v) | tuple(v) | dict(v) | float(v) | bytes(v) | frozenset(v):
                    out.append(v)
        return x * 2, out

    return f


@row()
def captured_sequence_by_subclass():
    class Seq(collections.UserList):
        pass

    def f(x):
        match Seq([1, 2]):
            case [a, b]:
                return x * a * b

    return f


ROWS = [pytest.param(case, id=case.name, marks=[pytest.mark.first_call] * bool(case.eager)) for case in TABLE]


@pytest.mark.parametrize("case", ROWS)
def test_patterns(case: Row) -> None:
    check(case)
