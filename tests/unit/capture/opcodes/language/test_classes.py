"""Dataclasses, named tuples, enums, abstract classes, protocols and classes made inside the call behave as CPython's."""  # noqa: E501

import abc
import collections
import copy
import dataclasses
import enum
import typing
import weakref

import pytest
from tests.unit.capture.opcodes.language.table import Row, Table, check

TABLE = Table()
row = TABLE.row


@dataclasses.dataclass
class Plain:
    a: object
    b: int = 2
    c: list = dataclasses.field(default_factory=list)
    d: int = dataclasses.field(init=False, default=0, repr=False, compare=False)

    def __post_init__(self):
        self.d = self.b * 2


@dataclasses.dataclass(frozen=True)
class Frozen:
    a: int
    b: tuple = ()


@dataclasses.dataclass(order=True)
class Ordered:
    a: int
    b: str = ""


@dataclasses.dataclass(slots=True)
class Slotted:
    a: object
    b: int = 1


@dataclasses.dataclass(kw_only=True)
class Only:
    a: int
    v: dataclasses.InitVar[int] = 3

    def __post_init__(self, v):
        self.a += v


class Pair(typing.NamedTuple):
    x: object
    y: int = 3

    def total(self):
        return self.x + self.y


Point = collections.namedtuple("Point", "a b", defaults=[9])


class Colour(enum.Enum):
    RED = 1
    BLUE = "b"
    CRIMSON = 1

    @property
    def low(self):
        return self.name.lower()

    @classmethod
    def first(cls):
        return cls.RED


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 5


class Access(enum.Flag):
    READ = enum.auto()
    WRITE = enum.auto()
    ALL = READ | WRITE


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self):
        ...

    @property
    def double(self):
        return self.area() * 2


class Square(Shape):
    def __init__(self, side):
        self.side = side

    def area(self):
        return self.side * self.side


@typing.runtime_checkable
class HasArea(typing.Protocol):
    def area(self): ...


class Registry:
    made: dict = {}

    def __init_subclass__(cls, /, tag="none", **kwargs):
        super().__init_subclass__(**kwargs)
        cls.tag = tag


class Tagged(Registry, tag="yes"):
    pass


@row()
def dataclass_basics():
    def f(x):
        p = Plain(x, b=4)
        q = Plain(x * 2)
        p.c.append(1)
        return p.a * p.b, p.c, q.c, p.d, p

    return f


@row()
def dataclass_functions():
    def f(x):
        s = Ordered(1, "z")
        return (
            x * 2, dataclasses.asdict(s), dataclasses.astuple(s), dataclasses.replace(s, a=5).a,
            [field.name for field in dataclasses.fields(s)], dataclasses.is_dataclass(s),
        )  # fmt: skip

    return f


@row()
def dataclass_of_tensors_replaced():
    def f(x):
        p = dataclasses.replace(Plain(x, 3), a=x + 1)
        return p.a * p.d

    return f


@row()
def dataclass_compared():
    def f(x):
        return x * 2, Ordered(1) == Ordered(1), Ordered(1) < Ordered(2), sorted([Ordered(2), Ordered(1, "b")])[0].b, Frozen(1) == 1  # noqa: E501

    return f


@row()
def dataclass_frozen():
    def f(x):
        o = Frozen(3)
        try:
            o.a = 4
        except dataclasses.FrozenInstanceError as error:
            text = str(error)
        return x * o.a, text, hash(o) == hash(Frozen(3)), {o: 1}[Frozen(3)]

    return f


@row()
def dataclass_slots_and_keywords():
    def f(x):
        s = Slotted(x)
        s.b += Only(a=1, v=4).a
        try:
            Only(1)
        except TypeError as error:
            text = str(error)
        return s.a * s.b, text, hasattr(s, "__dict__")

    return f


@row()
def dataclass_repr():
    def f(x):
        return x * 2, repr(Ordered(1, "q")), str(Frozen(2))

    return f


@row()
def named_tuples():
    def f(x):
        p = Pair(x)
        a, b = p
        q = p._replace(y=5)
        return p.total(), q.y, p._fields, Point(1), Point(*[1, 2])._asdict(), p[0] * b, len(p), Point._make([3, 4]).b, a is x  # noqa: E501

    return f


@row()
def enums():
    def f(x):
        return (
            x * Level.HIGH, Colour.RED.name, Colour("b"), Colour["RED"], Colour.CRIMSON is Colour.RED, list(Colour),
            Colour.first().low, Level.LOW < Level.HIGH, Level(5) + 1, Colour.RED in Colour, isinstance(Level.LOW, int),
            {Colour.RED: 1}[Colour.RED],
        )  # fmt: skip

    return f


@row()
def flags():
    def f(x):
        rw = Access.READ | Access.WRITE
        return x * 2, rw is Access.ALL, Access.READ in rw, bool(rw & Access.READ), (rw ^ Access.READ).name, ~Access.READ

    return f


@row(eager="raises")
def enum_errors():
    def f(x):
        texts = []
        for action in (lambda: Colour(7), lambda: Colour["Q"], lambda: Colour.Q):
            try:
                action()
            except Exception as error:
                texts.append((type(error).__name__, str(error)))
        return x * 2, texts

    return f


@row()
def abstract_classes():
    def f(x):
        try:
            Shape()
        except TypeError as error:
            text = str(error)
        s = Square(3)
        return x * s.double, text, isinstance(s, Shape), issubclass(Square, Shape)

    return f


@row()
def protocols():
    def f(x):
        return x * 2, isinstance(Square(1), HasArea), isinstance(3, HasArea), isinstance([], collections.abc.Sequence), callable(f)  # noqa: E501

    return f


@row()
def init_subclass():
    def f(x):
        return x * 2, Tagged.tag, Registry.made is Tagged.made

    return f


@row()
def class_inside():
    def f(x):
        class Base:
            n = x.dim()

            def __init__(self, k):
                self.k = k

            def get(self):
                return x * self.k * self.n

        class Sub(Base):
            def get(self):
                return super().get() + 1

        return Sub(3).get(), Sub.__name__, Sub.__qualname__, Sub.__mro__[1] is Base

    return f


@row()
def class_inside_with_everything():
    def f(x):
        log = []

        class Meta(type):
            @classmethod
            def __prepare__(mcs, name, bases, **kwargs):
                log.append(("prepare", name, sorted(kwargs)))
                return {"given": 5}

            def __new__(mcs, name, bases, space, **kwargs):
                log.append(("new", name))
                return super().__new__(mcs, name, bases, space)

            def __init__(cls, name, bases, space, **kwargs):
                log.append(("init", name))
                super().__init__(name, bases, space)

        class Named:
            def __set_name__(self, owner, name):
                log.append(("set_name", name))

        class K(metaclass=Meta, flag=1):
            field = Named()
            other = given + 1  # noqa: F821
            count: int = 3

            def __init_subclass__(cls, **kwargs):
                log.append(("subclass", cls.__name__))

        class L(K):
            pass

        return x * K.other, log, K.__annotations__["count"].__name__, type(L).__name__

    return f


@row(after=lambda made: (made.make().value, made(5).area(), made.__mro__[1].__abstractmethods__, made(1).own()))
def class_returned():
    def f(x):
        class Shape(abc.ABC):
            sides = 3

            def __init__(self, k):
                self.k = k

            @property
            def value(self):
                return self.k * x

            @classmethod
            def make(cls):
                return cls(2)

            @abc.abstractmethod
            def area(self): ...

            def own(self):
                return __class__.__name__

        class Square(Shape):
            def area(self):
                return super().value + 1

        return Square

    return f


@row(after=lambda pair: (pair[0].scaled(), type(pair[0]) is pair[1], pair[0].a, hasattr(pair[0], "__dict__")))
def instance_of_a_class_inside_returned():
    def f(x):
        class Holder:
            __slots__ = ("a",)

            def __init__(self, a):
                self.a = a

            def scaled(self):
                return self.a * x

        return Holder(x * 2), Holder

    return f


@row(after=lambda p: (p.total(), repr(p)[:40], dataclasses.replace(p, b=4).total(), p == p, dataclasses.fields(p)[1].name))  # noqa: E501
def dataclass_inside_returned():
    def f(x):
        @dataclasses.dataclass(order=True)
        class P:
            a: object
            b: int = 3
            c: list = dataclasses.field(default_factory=list)

            def total(self):
                return self.a * self.b

        q = P(1, 2)
        return P(x * 1, b=q.b + (q == P(1, 2)) + (q < P(2)))

    return f


@row(after=lambda p: (p.a, p.b, p._replace(b=1).b, p._fields, type(p).__name__))
def named_tuple_inside_returned():
    def f(x):
        kind = collections.namedtuple("kind", ["a", "b"])
        p = kind(x * 2, 2)
        return p._replace(a=p.a * p.b)

    return f


@row()
def class_inside_with_hooks():
    made = []

    class Registered:
        def __init_subclass__(cls, tag=0):
            made.append(cls.__name__)
            cls.tag = tag

    class Meta(type):
        def __call__(cls, *args):
            return super().__call__(*args)

    def f(x):
        class A(Registered, tag=4):
            pass

        class B(metaclass=Meta):
            def __init__(self, v):
                self.v = v

        B.extra = lambda self: self.v + 1
        return x * A.tag + B(x).extra()

    return f, lambda: made


@row()
def class_inside_across_a_break():
    def f(x):
        class K:
            n = x.sum().item()

            def scaled(self):
                return x * self.n

        return K().scaled()

    return f


@row(traces=3)
def special_methods_read_closures():
    n = 1

    class K:
        def __init__(self):
            self.v = n

        def __bool__(self):
            return n > 2

    def f(x):
        return x * K().v if K() else x + K().v

    def watch():
        nonlocal n
        n += 1

    return f, watch


@row()
def class_namespace():
    def f(x):
        class A:
            a = 3
            b = [a, a + 1]
            del a
            c: int = 4
            names = sorted(name for name in locals() if name[0] != "_")

        class E(ValueError):
            def __init__(self, v):
                super().__init__(v)
                self.v = v

        try:
            raise E(3)
        except E as error:
            return x * error.v, A.b, A.c, hasattr(A, "a"), A.__annotations__, A.names

    return f


@row(after=lambda found: (next(iter(found))(), next(iter(found.values()))[0]()))
def functions_as_keys_returned():
    def f(x):
        def g():
            return x

        return {g: (g, 1)}

    return f


@row()
def shallow_copies():
    kept = Plain(1, 3, [1])

    def f(x):
        p = Plain(x, 3, [1, [2]])
        a, b = copy.copy(p), copy.copy(kept)
        a.c.append(5)
        b.b = 7
        return p.c, a.a * kept.b, a.a is x, b.b, b.c is kept.c, copy.copy([x])[0] is x, copy.copy(Pair(x)).y

    return f


@row()
def copies():
    def f(x):
        p = Plain(x, 3, [1, [2]])
        a, b = copy.copy(p), copy.deepcopy(p)
        a.c.append(5)
        d = copy.deepcopy({"t": x, "l": [x, x]})
        return p.c, b.c, b.a * 2, a.a is x, d["t"] is d["l"][0], d["t"] is x

    return f


@row()
def weak_references():
    def f(x):
        s = Square(2)
        ref = weakref.ref(s)
        alive = ref() is s
        del s
        return x * 2, alive, ref() is None

    return f


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_classes(case: Row) -> None:
    check(case)
