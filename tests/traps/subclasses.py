"""Subclasses of builtin classes and of one another whose methods say otherwise than those of their bases."""

from __future__ import annotations

import collections


def brk(x):
    return x.sum().item()


class Lists(list):
    def count(self, v):
        return 1000

    def __len__(self):
        return 77

    def __iter__(self):
        return iter([100, 200])

    def __getitem__(self, i):
        return 5000

    def index(self, v):
        return 333

    def append(self, v):
        list.append(self, v)
        list.append(self, v)

    def __contains__(self, v):
        return True

    def __reversed__(self):
        return iter([9, 9])


class Dicts(dict):
    def get(self, k, d=None):
        return "mine"

    def items(self):
        return [("z", 1)]

    def keys(self):
        return ["kk"]

    def values(self):
        return [1234]

    def __iter__(self):
        return iter(["it"])

    def __getitem__(self, k):
        return 4321

    def __len__(self):
        return 55

    def __contains__(self, k):
        return False

    def pop(self, *a):
        return "popped"


class Sets(set):
    def __len__(self):
        return 42

    def __iter__(self):
        return iter([7])

    def __contains__(self, k):
        return False


class Ordered(collections.OrderedDict):
    def items(self):
        return [("o", 0)]

    def __iter__(self):
        return iter(["od"])


class Pairs(tuple):
    def __new__(cls, a, b):
        return super().__new__(cls, (a, b))

    def __init__(self, a, b):
        self.extra = a * 10

    def count(self, v):
        return 99

    def __len__(self):
        return 66

    def __iter__(self):
        return iter((70, 80))


class Ints(int):
    def bit_length(self):
        return 1000

    def __add__(self, o):
        return 12345


class Floats(float):
    def is_integer(self):
        return "no"


class Texts(str):
    def upper(self):
        return "UP"

    def __len__(self):
        return 31


class Base:
    tag = "base"

    def m(self, a):
        return ("base", a, self.k)

    @classmethod
    def c(cls, a):
        return ("basec", cls.__name__, a)

    @staticmethod
    def s(a):
        return ("bases", a)

    @property
    def p(self):
        return ("basep", self.k)

    def __repr__(self):
        return "<B>"

    def __call__(self, a):
        return ("call", a)


class Derived(Base):
    def __init__(self, k):
        self.k = k

    def m(self, a):
        return ("derived", a)

    @classmethod
    def c(cls, a):
        return ("derivedc", a)

    @staticmethod
    def s(a):
        return ("deriveds", a)

    @property
    def p(self):
        return "derivedp"

    def sup(self):
        return super()

    @classmethod
    def csup(cls):
        return super()

    def g(self):
        yield self.k
        yield super().m(2)
