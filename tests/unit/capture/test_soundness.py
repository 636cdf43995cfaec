"""A trace is never used where it is wrong: after a change, or on other arguments, it misses or gives eager's result."""

import array
import collections
import contextvars
import copy
import dataclasses
import decimal
import itertools
import threading
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.capture.replay import equal, replay

from framefuse import _native
from framefuse.capture.entry import bind
from framefuse.capture.record import record
from framefuse.guards.program import build

G: dict[str, Any] = {
    "d": {"a": 1}, "l": [1, 2], "s": {1, 2}, "dq": collections.deque([1]), "dd": collections.defaultdict(list),
    "tl": threading.local(), "cv": contextvars.ContextVar("c", default=3), "od": collections.OrderedDict(a=1, b=2),
}  # fmt: skip
G["tl"].v = 3


class C:
    n = 0

    def __init__(self):
        self.v = 1
        self.items = []

    @property
    def p(self):
        return self.v * 2

    def __len__(self):
        return self.v

    def __hash__(self):
        return 5


class MyF(float):
    pass


c = C()
X = lambda: torch.ones(3)
CASES: dict[str, Any] = {}


def case(*args: Any, change: Any = None) -> Any:
    def register(function: Any) -> Any:
        CASES[function.__name__] = (function, args, change)
        return function

    return register


@case((X(), np.float64(2)), (X(), np.float64(5)))
def np_scalar(x, k):
    return x + 1 if k > 3 else x - 1


@case((X(), np.arange(3)), (X(), np.arange(5)))
def np_arr(x, k):
    return x * len(k)


@case((X(), decimal.Decimal(1)), (X(), decimal.Decimal(9)))
def dec(x, k):
    return x + 1 if k > 3 else x - 1


@case((X(), MyF(1)), (X(), MyF(9)))
def myfloat(x, k):
    return x + 1 if k > 3 else x - 1


@case((X(), {1, 2}), (X(), {3}))
def seta(x, k):
    return x + 1 if 1 in k else x - 1


@case((X(), (1, (2, 3))), (X(), (1, (2, 4))))
def nested_tuple(x, k):
    return x * k[1][1]


@case((X(), [1, 2]), (X(), [1, 5]))
def list_eq(x, k):
    return x + 1 if k == [1, 2] else x


@case((X(), {"a": 1}), (X(), {"a": 2}))
def dict_eq(x, k):
    return x + 1 if k == {"a": 1} else x


@case((X(), "abc"), (X(), "abd"))
def stra(x, k):
    return x + 1 if k.endswith("c") else x


@case((X(), slice(0, 2)), (X(), slice(0, 1)))
def slicea(x, k):
    return x[k]


@case((X(), range(3)), (X(), range(2)))
def rangea(x, k):
    return x * len(k) + sum(k)


@case((X(),), (X(),), change=lambda: G["d"].update(b=1))
def items_view(x):
    return x * len(list(G["d"].items()))


@case((X(),), (X(),), change=lambda: G["d"].update(b=1))
def keys_in(x):
    return x * ("b" in G["d"].keys())


@case((X(),), (X(),), change=lambda: G["s"].add(9))
def set_in(x):
    return x * (9 in G["s"])


@case((X(),), (X(),), change=lambda: G["dq"].append(9))
def dq(x):
    return x * len(G["dq"])


@case((X(),), (X(),), change=lambda: setattr(G["tl"], "v", 9))
def tl(x):
    return x * G["tl"].v


@case((X(),), (X(),), change=lambda: G["cv"].set(9))
def cv(x):
    return x * G["cv"].get()


@case((X(),), (X(),), change=lambda: G["od"].move_to_end("a"))
def od(x):
    return x * G["od"][next(iter(G["od"]))]


@case((X(),), (X(),), change=lambda: setattr(c, "v", 7))
def prop(x):
    return x * c.p


@case((X(),), (X(),), change=lambda: setattr(c, "v", 0))
def truth_len(x):
    return x if c else -x


@case((X(),), (X(),), change=lambda: setattr(C, "n", 7))
def clsn(x):
    return x * C.n


@case((X(),), (X(),), change=lambda: setattr(c, "__dict__", {"v": 9, "items": []}))
def newdict(x):
    return x * c.v


@case((X(),), (X(),), change=lambda: G["l"].__setitem__(0, G["l"][0] + 1))
def ziplist(x):
    return x * sum(a for a, b in zip(G["l"], G["l"]))


@case((X(),), (X(),), change=lambda: G["l"].__setitem__(0, G["l"][0] + 1))
def copylist(x):
    return x * sum(copy.copy(G["l"]))


@case((X(),), (X(),), change=lambda: G["l"].__setitem__(0, G["l"][0] + 1))
def deep(x):
    return x * copy.deepcopy(G["l"])[0]


@case((X(),), (X(),), change=lambda: G["l"].__setitem__(0, G["l"][0] + 1))
def star(x):
    return x * max(*G["l"])


@case((X(),), (X(),), change=lambda: G["l"].__setitem__(0, G["l"][0] + 1))
def fmt(x):
    return x, f"{G['l']}"


@case((X(),), (X(),), change=lambda: G["l"].__setitem__(0, G["l"][0] + 1))
def chain(x):
    return x * sum(itertools.chain(G["l"], [1]))


@case((X(),), (X(),), change=lambda: G["l"].__setitem__(0, G["l"][0] + 1))
def sl(x):
    return x * sum(G["l"][:1])


@case((X(),), (X(),), change=lambda: G["l"].__setitem__(0, G["l"][0] + 1))
def idx(x):
    return x * G["l"].index(G["l"][-1]) * G["l"].count(1)


@case((X(),), (X(),), change=lambda: G["l"].__setitem__(0, G["l"][0] + 1))
def tens(x):
    return x + torch.tensor(G["l"])[0]


@case((X(),), (X(),), change=lambda: G["l"].__setitem__(0, G["l"][0] + 1))
def concat(x):
    return x * sum(G["l"] + [1])


@case((X(),), (X(),), change=lambda: G["l"].__setitem__(0, G["l"][0] + 1))
def mulseq(x):
    return x * sum(G["l"] * 2)


@case((X(),), (X(),), change=lambda: setattr(c, "items", [1]))
def attrlist(x):
    return x * len(c.items)


@case((X(),), (X(),), change=lambda: c.__dict__.update(q=4))
def vars_(x):
    return x * len(vars(c))


@case((X(),), (X(),), change=lambda: c.__dict__.update(q=4))
def getd(x):
    return x * c.__dict__.get("q", 1)


@case((X(), torch.ones(3)), (X(), torch.ones(3, requires_grad=True)))
def reqg(x, y):
    return x + 1 if y.requires_grad else x - 1


@case((X(), torch.ones(2, 3)), (X(), torch.ones(3, 2).T))
def contig(x, y):
    return x + 1 if y.is_contiguous() else x - 1


@case((X(), torch.ones(2, 3)), (X(), torch.ones(2, 4)))
def strd(x, y):
    return x * y.stride(0)


@case((torch.ones(4, 3),), (torch.ones(1, 3),))
def strd2(x):
    return (x.transpose(0, 1).is_contiguous(), x + 1)


@case((X(), 3), (X(), 4))
def rng(x, n):
    return [x * i for i in range(n)]


@case((X(), 3), (X(), 4))
def listmul(x, n):
    return torch.cat([x] * n)


@case((X(), 3.7), (X(), 4.7))
def intf(x, k):
    return x * int(k)


@case((X(), 3.7), (X(), 4.7))
def fcmp(x, k):
    return x if k > 4 else -x


@case((X(), 3), (X(), 0))
def divz(x, n):
    return x * (6 // n) if n else x


@case((torch.ones(4, 3),), (torch.ones(6, 3),))
def unb(x):
    return [r.sum() for r in x]


@case((torch.ones(4, 3),), (torch.ones(6, 3),))
def chunks(x):
    return x.chunk(2)[0], len(x.split(2))


@case((torch.ones(4, 3),), (torch.ones(6, 3),))
def shp(x):
    return torch.zeros(x.shape), x.shape.numel(), str(x.shape), list(x.shape), tuple(x.shape) == (4, 3)


@case((X(), torch.tensor([True, False, True])), (X(), torch.tensor([True, True, True])))
def mask(x, m):
    return x[m].shape[0], x[m].sum()


@case((X(), torch.tensor(2)), (X(), torch.tensor(1)))
def slicet(x, n):
    return x[:n].sum(), x[:n].shape


@case((X(), None), (X(), X()))
def opt(x, m):
    return x if m is None else x + m


@case((X(), True), (X(), False))
def boola(x, f):
    return x + 1 if f else x


@case((X(), [X()]), (X(), [X(), X()]))
def stack(x, l):
    return torch.stack(l).sum() + x


@case((X(), {"a": X()}), (X(), {"b": X()}))
def dk(x, d):
    return x + sum(d.values())


@case((X(),), (X(),), change=lambda: G["dd"]["k"].append(1))
def ddm(x):
    return x * len(G["dd"]["k"])


@case((X(), array.array("i", [1])), (X(), array.array("i", [5])))
def array_sum(x, a):
    return x * sum(a)


@case((X(), iter([1, 2])), (X(), iter([5])))
def iterator(x, a):
    return x * next(a)


@pytest.mark.parametrize("name", list(CASES))
def test_never_wrong(name: str) -> None:
    function, (first, second), change = CASES[name]
    made = record(function, first, {})
    assert made.exception is None
    if made.trace is None:
        assert made.reason is not None
        return
    assumed = made.trace.assumptions
    bound = {size for given in assumed.inputs for size in given.spec.sizes}
    bound |= {fact.value for fact in assumed.facts if fact.kind == "integer"}
    kept = tuple(r for r in assumed.relations if (r.left.symbols | r.right.symbols) <= bound)
    guards = _native.GuardSet(build(dataclasses.replace(assumed, relations=kept)).program)
    if change is not None:
        change()
    if not isinstance(guards.check(tuple(bind(function, second, {}))), int):
        assert equal(function(*second), replay(made.trace, function, *second))
