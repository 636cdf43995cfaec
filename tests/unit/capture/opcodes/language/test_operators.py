"""Operators, comparisons, conversions and the protocols behind builtins act as in CPython."""

import collections
import functools
import math
import operator

import pytest
from tests.unit.capture.opcodes.language.table import Row, Table, check

TABLE = Table()
row = TABLE.row


class V:
    """Overloads everything, and says which method ran."""

    def __init__(self, v):
        self.v = v

    def __repr__(self):
        return f"V({self.v})"

    def __eq__(self, other):
        return isinstance(other, V) and self.v == other.v

    def __hash__(self):
        return hash(self.v)

    def __lt__(self, other):
        return self.v < (other.v if isinstance(other, V) else other)

    def __bool__(self):
        return self.v != 0

    def __len__(self):
        return 5

    def __index__(self):
        return self.v

    def __int__(self):
        return self.v + 100

    def __float__(self):
        return self.v + 0.5

    def __complex__(self):
        return complex(self.v, 1)

    def __neg__(self):
        return V(-self.v)

    def __pos__(self):
        return V(self.v + 1)

    def __invert__(self):
        return V(~self.v)

    def __abs__(self):
        return V(abs(self.v))

    def __round__(self, digits=None):
        return ("round", digits)

    def __trunc__(self):
        return "trunc"

    def __floor__(self):
        return "floor"

    def __ceil__(self):
        return "ceil"

    def __divmod__(self, other):
        return ("divmod", other)

    def __rdivmod__(self, other):
        return ("rdivmod", other)

    def __contains__(self, item):
        return item == self.v

    def __getitem__(self, key):
        return key

    def __format__(self, spec):
        return f"<{self.v}:{spec}>"

    def __reversed__(self):
        return iter((3, 2, 1))

    def __dir__(self):
        return ["b", "a"]

    def __bytes__(self):
        return b"v"

    def __call__(self, *args):
        return args


for name in "add sub mul matmul truediv floordiv mod pow lshift rshift and or xor".split():
    setattr(V, f"__{name}__", functools.partialmethod(lambda self, other, _n: (_n, self.v, other), _n=name))
    setattr(V, f"__r{name}__", functools.partialmethod(lambda self, other, _n: ("r" + _n, self.v, other), _n=name))


class Left:
    def __add__(self, other):
        return NotImplemented if isinstance(other, Right) else "left"

    def __eq__(self, other):
        return NotImplemented

    def __lt__(self, other):
        return NotImplemented

    def __iadd__(self, other):
        return NotImplemented


class Right:
    def __radd__(self, other):
        return "right"

    def __eq__(self, other):
        return "right equal"

    def __gt__(self, other):
        return "right greater"


class Base:
    def __add__(self, other):
        return "base"

    def __radd__(self, other):
        return "base reflected"

    def __lt__(self, other):
        return "base less"

    def __gt__(self, other):
        return "base greater"


class Derived(Base):
    def __radd__(self, other):
        return "derived reflected"

    def __gt__(self, other):
        return "derived greater"


class Hidden(Base):
    __radd__ = None


class Bag(dict):
    def __missing__(self, key):
        self[key] = key * 2
        return self[key]


class Old:
    """Iterates by the old protocol."""

    def __getitem__(self, index):
        if index > 2:
            raise IndexError
        return index * 10


@row()
def unary():
    def f(x):
        v = V(3)
        return x * 2, repr([-v, +v, ~v, abs(v)]), not v, not V(0), bool(v), round(v), round(v, 2), math.trunc(v)

    return f


@row()
def binary_and_reflected():
    def f(x):
        v, n = V(3), 4
        return x * 2, [
            v + n, n + v, v - n, n - v, v * n, n * v, v @ n, n @ v, v / n, n / v, v // n, n // v, v % n, n % v, v**n, n**v,  # noqa: E501
            v << n, n << v, v >> n, n >> v, v & n, n & v, v | n, n | v, v ^ n, n ^ v, divmod(v, n), divmod(n, v),
        ]  # fmt: skip

    return f


@row()
def reflected_after_not_implemented():
    def f(x):
        texts = []
        try:
            Left() + 3.5 + Left()
        except TypeError as error:
            texts.append(str(error))
        for action in (lambda: Left() < Left(), lambda: Left() - 1, lambda: 1 + Left(), lambda: Hidden() + 1, lambda: 1 + Hidden()):  # noqa: E501
            try:
                texts.append(action())
            except TypeError as error:
                texts.append(str(error))
        a = Left()
        a += Right()
        return x * 2, texts, Left() + Right(), Left() == Right(), Left() < Right(), Left() == 3, Left() != Left(), a

    return f


@row(traces=3)
def reflected_methods_read_state():
    class W:
        def __init__(self):
            self.k = 1.5

        def __rmul__(self, n):
            return n * self.k

        def __eq__(self, other):
            return self.k > 3

    w = W()

    def f(x):
        y = x * (2 * w)
        if w != 1:
            y = y + 100
        w.k += 1
        return y

    return f, lambda: w.k


@row()
def subclass_goes_first():
    def f(x):
        return (
            x * 2, Base() + Derived(), Derived() + Base(), Base() < Derived(), Base() + Base(), 1 + Derived(),
            Base() > Derived(), Derived() + Derived(),
        )  # fmt: skip

    return f


@row()
def in_place():
    class Acc:
        def __init__(self):
            self.log = []

        def __iadd__(self, other):
            self.log.append(other)
            return self

        def __imatmul__(self, other):
            return "replaced"

    def f(x):
        a = b = Acc()
        a += 1
        a += x
        same = a is b
        a @= 2
        n = V(1)
        n += 2
        items = [1]
        alias = items
        items += (2,)
        items *= 2
        t = (1,)
        t += (2,)
        s = {1}
        s |= {2}
        s &= {2, 3}
        d = {"a": 1}
        d |= {"b": 2}
        return b.log[1] * 2, same, a, n, alias, t, s, d

    return f


@row()
def in_place_on_places():
    def f(x):
        o = V(1)
        o.v += 2
        items = [x, 1]
        items[1] += 4
        items[0] *= 2
        d = {"n": 1}
        d["n"] -= 5
        return items, d, o.v

    return f


@row()
def tuple_item_in_place_fails_after_the_act():
    def f(x):
        t = ([1],)
        try:
            t[0] += [2]
        except TypeError as error:
            return x * 2, str(error), t

    return f


@row(eager="native-call")
def comparisons():
    def f(x):
        a, b = V(1), V(2)
        return (
            x * 2, a < b, b > a, a == V(1), a != b, a == 1, sorted([b, a, V(0)]), max(a, b), min([b, a]), [a] == [V(1)],
            (a, 1) < (b, 0), {a: 1} == {V(1): 1}, a in [V(1)], [V(1), b].index(b), [a, V(1)].count(a), {a, V(1)}, a is a,  # noqa: E501
        )  # fmt: skip

    return f


@row()
def total_ordering():
    @functools.total_ordering
    class T:
        def __init__(self, n):
            self.n = n

        def __eq__(self, other):
            return self.n == other.n

        def __lt__(self, other):
            return self.n < other.n

    def f(x):
        a, b = T(1), T(2)
        return x * 2, a <= b, a > b, a >= b, a >= T(1), sorted([b, a])[0].n

    return f


@row(eager="native-call")
def conversions():
    def f(x):
        v = V(3)
        return (
            x * 2, int(v), float(v), complex(v), operator.index(v), bytes(v), str(v), repr(v), hash(v), len(v),
            [10, 20, 30, 40][v], "abcdef"[v], range(v), hex(v), "%d %s" % (v, v), list(reversed(v)), dir(v), bin(v),
            math.floor(v), math.ceil(v), [0] * v, v[1:2], v["k"], 3 in v, 4 in v, bool([]), bool({0}),
        )  # fmt: skip

    return f


@row()
def conversion_errors():
    def f(x):
        class Bad:
            def __bool__(self):
                return 3

            def __len__(self):
                return -1

            def __index__(self):
                return "a"

            def __str__(self):
                return 3

            def __hash__(self):
                return "h"

            def __iter__(self):
                return 3

            def __contains__(self, item):
                return []

        texts = []
        bad = Bad()
        for action in (
            lambda: bool(bad), lambda: len(bad), lambda: [1][bad], lambda: str(bad), lambda: hash(bad), lambda: iter(bad),  # noqa: E501
            lambda: 1 in bad, lambda: not bad, lambda: list(bad), lambda: f"{bad}", lambda: {bad: 1}, lambda: [*bad],
        ):  # fmt: skip
            try:
                texts.append(action())
            except Exception as error:
                texts.append((type(error).__name__, str(error)))
        return x * 2, texts

    return f


@row(traces=2)
def formats():
    def f(x):
        v, n, r = V(3), 42, 3.14159
        return (
            x * 2, f"{v}", f"{v!r}", f"{v:>5}", f"{v!s:>8}", f"{n:05d} {n:#x} {n!r:>4}", f"{r:.{2}f} {r:e} {r:{'8'}.1f}",  # noqa: E501
            "{:>4}|{:<4}|{a[0]}|{b.v}".format(1, 2, a=[9], b=v), "%5.2f|%-4d|%s|%r" % (r, n, v, "q"), f"{n=} {r=:.1f}",
            "{0!r} {1}".format("a", v), format(v, "spec"), format(n, ","), f"{{}} {'a' 'b'}", "%(k)s" % {"k": 1}, f"{x.shape}",  # noqa: E501
        )  # fmt: skip

    return f


@row()
def missing_keys():
    def f(x):
        bag = Bag()
        bag["a"]
        d = collections.defaultdict(list)
        d["k"].append(x)
        return d["k"][0] * 2, bag["b"], dict(bag), bag.get("zz"), "q" in bag, list(d), d.get("none")

    return f


@row()
def old_iteration():
    def f(x):
        return x * 2, list(Old()), [v for v in Old()], 20 in Old(), sum(Old()), list(zip(Old(), "ab")), [*Old()]

    return f


@row()
def iterators_of_the_user():
    class Up:
        def __init__(self, n):
            self.i, self.n = 0, n

        def __iter__(self):
            return self

        def __next__(self):
            if self.i >= self.n:
                raise StopIteration
            self.i += 1
            return self.i

    def f(x):
        u = Up(4)
        first = next(u)
        a, b = Up(2)
        return x * first, list(u), next(u, "end"), a, b, sum(Up(3)), list(map(str, Up(2))), dict(zip(Up(2), Up(2))), 2 in Up(3)  # noqa: E501

    return f


@row()
def slices():
    def f(x):
        items = list(range(6))
        items[1:3] = "abc"
        del items[::2]
        s = slice(1, None, 2)
        return x[1:, ::2], x[..., -1], x[None].shape, items, items[s], s.indices(5), "hello"[::-1], V(0)[1:2, ...]

    return f


@row()
def chained_and_short_circuit():
    def f(x):
        log = []

        def note(v):
            log.append(v)
            return v

        a = note(1) < note(3) < note(2) < note(9)
        b = note(0) or note("") or note([]) or note(5)
        c = note(1) and note(0) and note(7)
        return x * b, a, c, log

    return f


@row()
def operator_module():
    def f(x):
        v = V(2)
        get = operator.itemgetter(1, 0)
        attr = operator.attrgetter("v")
        call, keys = operator.methodcaller("count", 1), operator.methodcaller("sum", dim=0)
        return (
            operator.mul(x, 2), get([5, 6]), attr(v), call([1, 1]), keys(x),
            operator.add(v, 1), operator.contains([1], 1),
            operator.truth(v), operator.not_(v), operator.getitem({"a": x}, "a"), operator.concat([1], [2]),
            operator.is_(v, v), operator.lt(V(1), v), operator.length_hint([1, 2]), operator.neg(3), operator.call(max, 1, 2),  # noqa: E501
        )  # fmt: skip

    return f


@row(traces=2)
def numbers_behave():
    def f(x):
        n = x.shape[0]
        return (
            x * 2, -7 // 2, -7 % 3, 7 // -2, 2**-1, 10**20, 1 << 70, True + True, 0.1 + 0.2, -0.0, round(2.5), round(-1.5),  # noqa: E501
            divmod(-7, 2), int("12", 3), float("inf"), (5).bit_length(), 3.0.is_integer(), n // 2, n % 3, -n, abs(-n), n == 4,  # noqa: E501
        )  # fmt: skip

    return f


@row()
def strings_behave():
    def f(x):
        s = "Hello, World"
        return (
            x * 2, s.split(", "), s.lower(), s.replace("l", "L", 1), s[::2], s.find("W"), ",".join(map(str, range(3))),
            s.partition(","), "a" * 3, s.startswith(("H", "h")), " x ".strip(), "1,2".split(","), s.encode(), b"ab"[0],
            "%s" % x.dim(), "ß".upper(), "a\tb".expandtabs(4), s.center(20, "*"), "abc".translate({97: "z"}), sorted("bca"),  # noqa: E501
        )  # fmt: skip

    return f


@row()
def comparisons_with_effects_in_a_list():
    log = []

    class Logged:
        def __init__(self, v):
            self.v = v

        def __eq__(self, other):
            log.append(self.v)
            return self.v == other.v

    def f(x):
        return x * 2, [Logged(1)] == [Logged(1)], (Logged(2),) != (Logged(3),)

    return f, lambda: log


@row(eager="native-call")
def texts_that_read_more_than_the_object():
    limit = 0

    class Limited:
        def __init__(self, v):
            self.v = v

        def __repr__(self):
            return f"{self.v} of {limit}"

    def f(x):
        return x * 2, repr([Limited(1)])

    def watch():
        nonlocal limit
        limit += 1

    return f, watch


@row(traces=2)
def texts_of_plain_objects_in_containers():
    class Plain:
        def __init__(self, v):
            self.v = v

        def __repr__(self):
            return f"Plain({self.v!r})"

        def __eq__(self, other):
            return type(other) is type(self) and self.v == other.v

    def f(x):
        a = Plain(x.shape[0])
        return x * 2, repr([a]), str({1: Plain("q")}), "%s %r" % (a, (a,)), f"{[a]}", [a] == [Plain(4)], Plain(5) in (1, a)  # noqa: E501

    return f


@pytest.mark.parametrize("case", TABLE, ids=lambda case: case.name)
def test_operators(case: Row) -> None:
    check(case)
