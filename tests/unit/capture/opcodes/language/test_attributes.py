"""Attributes, descriptors, metaclasses and ``super()`` act in CPython's order, with its texts."""

import sys

import pytest
from tests.unit.capture.opcodes.language.table import Row, Table, check

TABLE = Table()
row = TABLE.row
LOG: list = []


class Data:
    def __set_name__(self, owner, name):
        self.name = "_" + name

    def __get__(self, holder, owner=None):
        return self if holder is None else holder.__dict__.get(self.name, 7)

    def __set__(self, holder, value):
        holder.__dict__[self.name] = value * 2

    def __delete__(self, holder):
        del holder.__dict__[self.name]


class NonData:
    def __get__(self, holder, owner=None):
        return "class" if holder is None else "instance"


class Thing:
    data = Data()
    non = NonData()
    plain = 3

    def __init__(self, v=1):
        self.v = v

    @property
    def p(self):
        return self.v * 2

    @p.setter
    def p(self, value):
        self.v = value

    @p.deleter
    def p(self):
        self.v = 0

    @classmethod
    def make(cls, v):
        return cls(v)

    @staticmethod
    def add(a, b):
        return a + b


class Dynamic:
    def __init__(self):
        object.__setattr__(self, "store", {})

    def __getattr__(self, name):
        if name.startswith("no"):
            raise AttributeError(f"nothing called {name}")
        return len(name)

    def __setattr__(self, name, value):
        self.store[name] = value

    def __delattr__(self, name):
        del self.store[name]


class Everything:
    def __init__(self):
        self.a = 1

    def __getattribute__(self, name):
        if name == "b":
            return 2
        return object.__getattribute__(self, name)

    def __getattr__(self, name):
        return "fallback " + name


class Falls:
    @property
    def broken(self):
        raise AttributeError("inside")

    def __getattr__(self, name):
        return "got " + name


class Strict:
    @property
    def broken(self):
        return self.nothing


class Meta(type):
    def __call__(cls, *args, **kwargs):
        made = super().__call__(*args, **kwargs)
        made.tag = cls.__name__
        return made

    @property
    def title(cls):
        return cls.__name__.lower()

    def __getitem__(cls, key):
        return (cls.__name__, key)

    def __len__(cls):
        return 4

    def __contains__(cls, value):
        return value == 1

    def __iter__(cls):
        return iter((1, 2))

    def __instancecheck__(cls, value):
        return value == 5

    def method(cls):
        return cls.k


class WithMeta(metaclass=Meta):
    k = 9

    def __init__(self, v):
        self.v = v


class Generic:
    def __class_getitem__(cls, key):
        return f"{cls.__name__}[{key}]"


class A:
    def who(self):
        return ["A"]

    @classmethod
    def name(cls):
        return ["A", cls.__name__]

    @property
    def prop(self):
        return 1

    def __len__(self):
        return 3


class B(A):
    def who(self):
        return ["B", *super().who()]

    @classmethod
    def name(cls):
        return ["B", *super().name()]

    @property
    def prop(self):
        return super().prop + 1

    def __len__(self):
        return super().__len__() + 1


class C(A):
    def who(self):
        return ["C", *super(C, self).who()]


class D(B, C):
    def who(self):
        return ["D", *super().who()]

    def unbound(self):
        return super(B, self).who(), super(D, D).name(), super(D, self).prop

    def missing(self):
        return super().nothing


@row()
def properties():
    def f(x):
        t = Thing(2)
        a = t.p
        t.p = 5
        b = t.p
        t.p += 1
        c = t.v
        del t.p
        return x * a, b, c, t.v

    return f


@row()
def property_errors():
    def f(x):
        class P:
            @property
            def r(self):
                return 1

        texts = []
        for action in (lambda p: setattr(p, "r", 1), lambda p: delattr(p, "r"), lambda p: p.q):
            try:
                action(P())
            except AttributeError as error:
                texts.append(str(error))
        return x * 2, texts

    return f


@row()
def descriptors():
    def f(x):
        t = Thing()
        a = t.data
        t.data = 4
        b = t.data
        del t.data
        t.__dict__["non"] = "own"
        t.__dict__["data"] = "hidden"
        return x * a, b, t.data, t.non, Thing().non, Thing.non, type(Thing.data).__name__

    return f


@row()
def class_and_static_methods():
    def f(x):
        t = Thing.make(3)
        return x * t.v, t.make(4).v, Thing.add(x, 1), t.add(1, 2), Thing.plain, t.plain

    return f


@row()
def dynamic_attributes():
    def f(x):
        d = Dynamic()
        d.width = x
        d.height = 2
        del d.height
        try:
            d.nope
        except AttributeError as error:
            text = str(error)
        return d.store["width"] * d.four, sorted(d.store), text, getattr(d, "no", 5), hasattr(d, "no"), hasattr(d, "x")

    return f


@row()
def getattribute_then_getattr():
    def f(x):
        e = Everything()
        return x * e.a * e.b, e.c, getattr(e, "zz", 1), hasattr(e, "q")

    return f


@row()
def property_that_fails_falls_back():
    def f(x):
        o = Falls()
        return x * 2, o.broken, getattr(o, "broken", 1), hasattr(o, "broken")

    return f


@row()
def property_that_fails_alone():
    def f(x):
        o = Strict()
        try:
            o.broken
        except AttributeError as error:
            text = str(error), error.name
        return x * 2, text, getattr(o, "broken", 1), hasattr(o, "broken")

    return f


@row(eager="raises")
def attribute_errors():
    def f(x):
        texts = []
        for action in (
            lambda: Thing().nothing, lambda: Thing.nothing, lambda: setattr(object(), "a", 1), lambda: sys.nothing,
            lambda: delattr(Thing(), "z"), lambda: (1).x, lambda: Thing().make.z, lambda: getattr(1, "y"),
            lambda: super(D, D()).nothing, lambda: D().missing(), lambda: getattr(1, 2), lambda: super(A, 3),
        ):  # fmt: skip
            try:
                action()
            except Exception as error:
                texts.append((type(error).__name__, str(error)))
        return x * 2, texts

    return f


@row()
def metaclass_protocols():
    def f(x):
        w = WithMeta(3)
        return x * w.v, w.tag, WithMeta.title, WithMeta["k"], len(WithMeta), 1 in WithMeta, list(WithMeta), WithMeta.method()  # noqa: E501

    return f


@row()
def metaclass_instance_check():
    def f(x):
        return x * 2, isinstance(5, WithMeta), isinstance(6, WithMeta), type(WithMeta).__name__

    return f


@row()
def class_getitem():
    def f(x):
        return x * 2, Generic[int], Generic["a", 1], list[int], str(dict[str, int])

    return f


@row()
def super_in_all_forms():
    def f(x):
        d = D()
        return x * 2, d.who(), d.unbound(), d.name(), D.name(), d.prop, len(d), B().who()

    return f


@row()
def super_inside_nested_functions():
    class Sub(A):
        def who(self):
            def inner():
                return super(Sub, self).who()

            return [*inner(), *(super(Sub, self).who() for _ in range(1)).__next__()]

    def f(x):
        return x * 2, Sub().who()

    return f


@row()
def dunder_dict_and_vars():
    def f(x):
        t = Thing(4)
        t.z = x
        t.__dict__["q"] = 1
        vars(t)["r"] = 2
        return t.q + t.r, sorted(t.__dict__), t.__class__.__name__, t.__dict__["z"]

    return f


@row()
def slots():
    class S:
        __slots__ = ("a", "b")

        def __init__(self, a):
            self.a = a

    def f(x):
        s = S(x)
        try:
            s.c = 1
        except AttributeError as error:
            text = str(error)
        try:
            s.b
        except AttributeError as error:
            text2 = str(error)
        s.b = s.a * 2
        del s.a
        return s.b, hasattr(s, "a"), text, text2

    return f


@row()
def captured_object_changes():
    t = Thing(1)

    def f(x):
        t.v += 1
        t.extra = x.sum()
        return x * t.p

    return f, lambda: (t.v, t.extra)


@row()
def class_attribute_counter():
    class K:
        n = 0

        def __init__(self):
            type(self).n += 1

    def f(x):
        K()
        return x * K.n

    return f, lambda: K.n


@row()
def setattr_and_delattr_by_name():
    def f(x):
        t = Thing()
        for i in range(3):
            setattr(t, f"a{i}", x * i)
        delattr(t, "a1")
        return sorted(vars(t)), t.a2

    return f


@row()
def method_identity_and_binding():
    def f(x):
        t = Thing(2)
        m = t.make
        bound = t.add
        return x * 2, m.__self__ is Thing, m.__func__.__name__, bound(1, 2), t.make == t.make

    return f


@row()
def callable_instances():
    class Scale:
        def __init__(self, k):
            self.k = k

        def __call__(self, y, *, plus=0):
            return y * self.k + plus

    def f(x):
        s = Scale(3)
        return s(x), s(x, plus=1), list(map(s, [1, 2])), callable(s)

    return f


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_attributes(case: Row) -> None:
    check(case)
