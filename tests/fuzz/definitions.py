"""The definitions that a generated program may use: state, classes and helpers, as text by name."""

# In the order in which they must stand.
DEFINITIONS: dict[str, str] = {
    "Trouble": "class Trouble(Exception):\n    pass",
    "Box": """class Box:
    kind = 2

    def __init__(self, n):
        self.n = n
        self.w = data(2, 2)
        self.items = [1, 2]
        self.flag = False

    def scaled(self, a):
        self.n += 1
        return a * self.n

    @property
    def twice(self):
        return self.n * 2""",
    "Other": "class Other(Box):\n    kind = 3\n\n    def scaled(self, a):\n        return a + self.kind",
    "Point": "@dataclasses.dataclass\nclass Point:\n    x: object\n    k: int = 1",
    "Pair": "Pair = collections.namedtuple('Pair', 'left right')",
    "Slots": """class Slots:
    __slots__ = ("n", "w")

    def __init__(self, n):
        self.n = n""",
    "Lazy": """class Lazy:
    def __init__(self):
        self._level = 1
        self.asked = 0

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        self.asked += 1
        return len(name)

    @property
    def level(self):
        return self._level

    @level.setter
    def level(self, value):
        self._level = value + 1""",
    "Vector": """class Vector:
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, index):
        return self.items[index]

    def __iter__(self):
        return iter(self.items)

    def __add__(self, other):
        return self.items + other

    def __eq__(self, other):
        return isinstance(other, Vector)

    def __call__(self, n):
        return self.items * n""",
    "Scaler": """class Scaler:
    made = 0

    def __init__(self, n):
        self.n = n

    @classmethod
    def of(cls, n):
        return cls(n + 1)

    @staticmethod
    def double(n):
        return n * 2

    def times(self, a):
        return a * self.n""",
    "Louder": """class Louder(Scaler):
    def __init__(self, n):
        super().__init__(n)
        self.extra = 1

    def times(self, a):
        return super().times(a) + self.extra""",
    "Bag": """class Bag(list):
    def __init__(self, *items):
        super().__init__(items)
        self.asked = 0

    def append(self, item):
        self.asked += 1
        super().append(item)

    def __getitem__(self, index):
        self.asked += 1
        return super().__getitem__(index)

    def __contains__(self, item):
        return any(item is each for each in super().__iter__())

    def __eq__(self, other):
        return isinstance(other, Bag) and len(self) == len(other)

    def __iter__(self):
        self.asked += 10
        return super().__iter__()""",
    "Store": """class Store(dict):
    def __missing__(self, key):
        self[key] = len(self)
        return self[key]

    def __setitem__(self, key, value):
        COUNT[0] += 1
        super().__setitem__(key, value)

    def get(self, key, default=3):
        return super().get(key, default)

    def items(self):
        return [(key, value) for key, value in super().items() if key != 'z']

    def __len__(self):
        return super().__len__() + 1

    def __eq__(self, other):
        return super().__eq__(other) or len(other) == 9

    def __ne__(self, other):
        return not self == other""",
    "Marks": """class Marks(set):
    def add(self, item):
        super().add(item)
        super().add(len(self))

    def __contains__(self, item):
        return not super().__contains__(item)""",
    "Key": """class Key:
    def __init__(self, n):
        self.n = n

    def __eq__(self, other):
        return isinstance(other, Key) and self.n % 2 == other.n % 2

    def __hash__(self):
        return self.n % 2""",
    "Loudest": """class Loudest(Louder):
    def __init__(self, n):
        super().__init__(n)
        self.base = super().times

    def times(self, a):
        before = super().times
        return super(Louder, self).times(a) + before(a)

    @classmethod
    def of(cls, n):
        made = super().of(n)
        made.extra = n
        return made

    @property
    def twice(self):
        return self.n * 2""",
    "Mood": "class Mood(enum.Enum):\n    BAD = 0\n    GOOD = 1",
    "COUNT": "COUNT = [0]",
    "LOG": "LOG = []",
    "TABLE": "TABLE = {'a': data(3, 2), 'z': data(4)}",
    "SCALE": "SCALE = 2.0",
    "WEIGHT": "WEIGHT = data(5)",
    "total": "total = 0",
    "ORDERED": "ORDERED = collections.OrderedDict(a=1, b=2)",
    "GROUPS": "GROUPS = collections.defaultdict(list)",
    "RATES": "RATES = {'a': 1.5, 'b': 2}",
    "safe": """def safe(function, *args):
    try:
        return round(function(*args) * 4) / 4
    except (ArithmeticError, ValueError) as error:
        return len(str(error))""",
    "QUEUE": "QUEUE = collections.deque([1, 2], maxlen=4)",
    "SEEN": "SEEN = {1, 2}",
    "VARIABLE": "VARIABLE = contextvars.ContextVar('variable', default=3)",
    "BOX": "BOX = Box(2)",
    "BAG": "BAG = Bag(1, 2)",
    "STORE": "STORE = Store(a=1)",
    "MARKS": "MARKS = Marks([1])",
    "NAMES": "NAMES = {}",
    "HELD": "HELD = [data(1, 2), data(2, 2)]",
    "SLOTS": "SLOTS = Slots(2)",
    "LAZY": "LAZY = Lazy()",
    "adder": """class Adder:
    def __init__(self):
        self.calls = 0

    def add(self, a, n):
        self.calls += 1
        return a + n

adder = Adder()""",
    "Guard": """class Guard:
    def __enter__(self):
        LOG.append("in")
        return len(LOG)

    def __exit__(self, kind, error, trace):
        LOG.append(kind.__name__ if kind else "out")
        return kind is Trouble""",
    "scaled": """@contextlib.contextmanager
def scaled(k):
    COUNT[0] += k
    try:
        yield k
    finally:
        COUNT[0] -= k""",
    "bump": "def bump(k):\n    global total\n    total += k\n    return total",
    "raise_if": "def raise_if(flag):\n    if flag:\n        raise Trouble('raised', flag)",
    "star": """def star(a, *rest, k=1, **more):
    for r in rest:
        a = a + r
    return a * k""",
    "keep": "def keep(a, n=2, memo=None):\n    if memo is not None:\n        memo['a'] = a\n    return a * n",
    "pair": "def pair(a, b):\n    return a, b",
    "count_to": "def count_to(n):\n    for i in range(min(n, 4)):\n        yield i\n    return n",
    "doubled": "def doubled(items):\n    for item in items:\n        yield item * 2",
    "relay": "def relay(n):\n    got = yield from count_to(n)\n    yield got",
    "talk": """def talk(n):
    def answers():
        total = 0
        while True:
            given = yield total
            if given is None:
                return
            total += given

    conversation = answers()
    next(conversation)
    conversation.send(n)
    try:
        return conversation.send(2)
    finally:
        conversation.close()""",
    "cached": "@functools.lru_cache\ndef cached(n):\n    LOG.append(n)\n    return n * 2",
    "twice": """def doubling(function):
    @functools.wraps(function)
    def inner(*args, **kwargs):
        return function(*args, **kwargs) * 2

    return inner

@doubling
def twice(a):
    return a + 1""",
    "deep": "def deep(a, n):\n    return a if n == 0 else deep(a + 1, n - 1) if n > 0 else raise_if(True)",
    "outer": "def outer(n):\n    def inner(a):\n        return a + n\n\n    return inner",
    "make_counter": """def make_counter():
    calls = 0

    def counter(a):
        nonlocal calls
        calls += 1
        return a * calls

    return counter""",
    "finish": """def finish(a, n):
    try:
        if n > 1:
            return a
        raise Trouble(n)
    except Trouble:
        return a + 1
    finally:
        LOG.append('finish')""",
}
NET = """class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, a):
        self.calls += 1
        return a * 2 if self.training else a + 1

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.w = torch.nn.Parameter(data(1, 2))
        self.register_buffer("b", data(2, 2))
        self.n = 0
        self.seen = []
        self.linear = torch.nn.Linear(2, 2)
        with torch.no_grad():
            self.linear.weight.copy_(data(3, 2, 2))
            self.linear.bias.copy_(data(4, 2))
        self.parts = torch.nn.Sequential(torch.nn.ReLU(), Block())
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.last = data(5)
        self.total = torch.zeros(())
        self.cache = {}
"""
HEAD = '''import collections, contextlib, contextvars, copy, dataclasses, enum
import functools, itertools, logging, math, os, random, sys
import torch

def data(seed, *shape):
    """Halves from -2 to 2: sums and products of them are exact in any order."""
    return ((torch.arange(math.prod(shape)) * 5 + seed * 7) % 9 - 4).reshape(shape) / 2

def call(*args, **kwargs):
    return args, kwargs
'''
