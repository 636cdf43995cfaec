"""functools, itertools and collections give what they give eagerly, in order and in laziness."""

import collections
import functools
import heapq
import itertools
import operator

import pytest
from tests.unit.capture.opcodes.language.table import Row, Table, check

TABLE = Table()
row = TABLE.row
LOG: list = []


def power(base, exponent, *, plus=0):
    return base**exponent + plus


@functools.lru_cache(maxsize=None)
def cached(n):
    LOG.append(n)
    return n * 2


@functools.singledispatch
def kind_of(value):
    return "other"


@kind_of.register
def _(value: int):
    return "int"


@kind_of.register(list)
def _of_list(value):
    return "list"


class Cell:
    def __init__(self):
        self.reads = 0

    @functools.cached_property
    def value(self):
        self.reads += 1
        return self.reads * 10

    def add(self, a, b=1):
        return a + b

    add_five = functools.partialmethod(add, b=5)

    @functools.singledispatchmethod
    def show(self, value):
        return "other"

    @show.register
    def _(self, value: int):
        return "int"


@row()
def partials():
    square = functools.partial(power, exponent=2)

    def f(x):
        cube = functools.partial(power, x, 3)
        nested = functools.partial(square, plus=1)
        return square(x), cube(), cube(plus=1), nested(x), nested.keywords, cube.args[1], Cell().add_five(x)

    return f


@row()
def wraps_and_reduce():
    def deco(g):
        @functools.wraps(g)
        def inner(*args):
            return g(*args) * 2

        return inner

    def f(x):
        @deco
        def g(y):
            "A text."
            return y + 1

        return g(x), g.__name__, g.__doc__, functools.reduce(lambda a, b: a + b, [x, x, 1]), functools.reduce(operator.mul, [2, 3], 4)  # noqa: E501

    return f


@row()
def cached_property():
    def f(x):
        c = Cell()
        return x * c.value, c.value, c.reads, "value" in c.__dict__

    return f


@row()
def cache_of_the_user():
    LOG.clear()

    def f(x):
        return x * cached(3) + cached(3), len(LOG) > 0

    return f


@row(eager="native-call")
def cache_made_inside():
    def f(x):
        calls = []

        @functools.lru_cache(maxsize=2)
        def g(n):
            calls.append(n)
            return n + 1

        return x * (g(1) + g(1) + g(2)), calls, g.cache_info().hits

    return f


@row()
def single_dispatch():
    def f(x):
        return x * 2, kind_of(1), kind_of([]), kind_of("a"), Cell().show(3), Cell().show("q")

    return f


@row()
def comparison_keys():
    def f(x):
        key = functools.cmp_to_key(lambda a, b: b - a)
        return x * 2, sorted([1, 3, 2], key=key), sorted("bca", reverse=True), sorted([(1, "b"), (1, "a")], key=lambda p: p[0])  # noqa: E501

    return f


@row()
def iterators_endless():
    def f(x):
        return (
            x * 2, list(itertools.islice(itertools.count(3, 2), 3)), [a for a, _ in zip(itertools.cycle("ab"), range(5))],  # noqa: E501
            list(itertools.repeat(x, 2)), list(itertools.islice("abcdef", 1, None, 2)),
        )  # fmt: skip

    return f


@row()
def iterators_finite():
    def f(x):
        return (
            list(itertools.accumulate([1, 2, 3])), list(itertools.accumulate([x, x, x], lambda a, b: a * b)),
            list(itertools.accumulate([1, 2], initial=5)), list(itertools.chain([1], (2,), "a")),
            list(itertools.chain.from_iterable([[x], [1]])), list(itertools.compress("abc", [1, 0, 1])),
            list(itertools.dropwhile(lambda v: v < 2, [1, 2, 1])), list(itertools.takewhile(lambda v: v < 2, [1, 2, 1])),  # noqa: E501
            list(itertools.filterfalse(lambda v: v % 2, range(4))), list(itertools.starmap(power, [(x, 2), (2, 3)])),
            [(k, list(g)) for k, g in itertools.groupby("aabc")], list(itertools.pairwise([1, 2, 3])),
            [(k, list(g)) for k, g in itertools.groupby([1, 3, 2], key=lambda v: v % 2)],
            list(itertools.zip_longest([1], [2, 3], fillvalue=0)),
        )  # fmt: skip

    return f


@row()
def iterators_of_combinations():
    def f(x):
        return (
            x * 2, list(itertools.product([1, 2], "ab")), list(itertools.product(range(2), repeat=2)),
            list(itertools.permutations([1, 2, 3], 2)), list(itertools.combinations([1, 2, 3], 2)),
            list(itertools.combinations_with_replacement("ab", 2)),
        )  # fmt: skip

    return f


@row()
def iterators_are_lazy():
    def f(x):
        log = []

        def note(v):
            log.append(v)
            return v

        m = map(note, [1, 2, 3])
        first = next(m)
        seen = list(log)
        a, b = itertools.tee((note(v) for v in "xy"))
        pair = next(a), next(b), next(a)
        z = zip(filter(None, [0, 1, 2]), m)
        return x * first, seen, pair, list(z), log

    return f


@row()
def iterator_captured_and_partly_consumed():
    def f(x):
        it = iter([1, 2, 3, 4])
        a = next(it)
        b, c = next(it), list(itertools.islice(it, 1))
        return x * a * b, c, list(it), next(it, None)

    return f


@row(eager="raises")
def two_sided_queue():
    def f(x):
        d = collections.deque([1, 2, 3], maxlen=4)
        d.append(x)
        d.appendleft(0)
        d.rotate(1)
        d.extendleft([7, 8])
        return list(d), d.pop(), d.popleft(), len(d), d.maxlen, d[0], d.index(0)

    return f


@row()
def counters():
    def f(x):
        c = collections.Counter("abca")
        c["z"] += 2
        c.update("b")
        return x * c["a"], c.most_common(2), dict(c + collections.Counter(a=1)), c["none"], sum(c.values()), sorted(c.elements())  # noqa: E501

    return f


@row()
def dictionaries():
    def f(x):
        o = collections.OrderedDict(a=1, b=x)
        o.move_to_end("a")
        chain = collections.ChainMap({"a": 1}, {"a": 2, "b": 3})
        chain["n"] = 5
        dd = collections.defaultdict(lambda: 7, a=1)
        user = collections.UserDict(k=2)
        user["j"] = 3
        return (
            list(o), o.popitem(last=False)[0], chain["a"] + chain["b"], sorted(chain), chain.maps[0], dd["q"], dict(dd),
            dict(user), user.get("none", 4), {**{"x": x}}, dict.fromkeys("ab", 0), {"a": 1} | {"b": 2}, len(user), "k" in user,  # noqa: E501
        )  # fmt: skip

    return f


@row()
def dict_methods():
    def f(x):
        d = {"a": 1, "b": x}
        d.setdefault("c", []).append(3)
        popped = d.pop("a"), d.pop("zz", None)
        d.update(e=5)
        keys = d.keys() & {"b", "e"}
        return d["b"] * 2, popped, list(d), list(d.values())[1:], list(d.items())[-1], sorted(keys), d.get("q", 1), list(reversed(d))  # noqa: E501

    return f


@row()
def list_methods():
    def f(x):
        v = [3, 1, 2]
        v.sort(key=lambda n: -n)
        v.insert(1, x.dim())
        v.extend(range(2))
        v.remove(1)
        w = v.copy()
        w.reverse()
        return x * v.pop(), v, w, v.index(2), v.count(2), v == w, [*v, *w][-1], v * 2, sorted(v), min(v), sum(v, 10)

    return f


@row()
def set_methods():
    def f(x):
        s = {1, 2, x.dim()}
        t = frozenset([2, 3])
        s.add(9)
        s.discard(1)
        return x * len(s), sorted(s | t), sorted(s & t), sorted(s - t), sorted(s ^ t), t <= {2, 3, 4}, s.isdisjoint({7}), 2 in t  # noqa: E501

    return f


@row()
def heaps():
    kept = [5, 9, 7]

    def f(x):
        heap = [(3, "c"), (1, "a"), (2, x)]
        heapq.heapify(heap)
        heapq.heappush(heap, (0, x + 1))
        first = heapq.heappop(heap)
        heapq.heapreplace(kept, heapq.heappushpop(kept, 6) + 1)
        return (
            x * heap[0][0], first, len(heap), kept[0], heapq.nlargest(2, [1, 5, 3]), heapq.nsmallest(2, "cab", key=ord),
            list(heapq.merge([1, 4], [2, 3])),
        )  # fmt: skip

    return f, lambda: (kept.clear(), kept.extend([5, 9, 7]))


@row()
def groups_with_keys():
    def f(x):
        seen = []

        def parity(value):
            seen.append(value)
            return value % 2

        groups = itertools.groupby([1, 3, 2, 4, 5], key=parity)
        first, own = next(groups)
        took = next(own)
        second, other = next(groups)
        return x * took, first, second, list(own), list(other), [(k, list(g)) for k, g in groups], seen

    return f


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_library(case: Row) -> None:
    check(case)
