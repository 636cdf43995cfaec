"""Numbers that change, given to native code that takes their value: another value is another result."""

from __future__ import annotations

import array
import collections
import copy
import ctypes
import itertools
import json
import math
import numbers
import pickle
import random
import struct

import numpy as np
import torch
from tests.traps.plainly import with_numbers
from tests.traps.trap import Table, Trap, hold

# ruff: noqa: C405, C416, E712, UP030, UP031, UP032  The programs say it in all the ways there are.

TABLE = Table()


@with_numbers(TABLE)
def max_mixed(x, n):
    return max(n, 4.5), max(4.5, n), min(n, 4.5), min(4.5, n), max([n, 4.5]), max(4.5, n, 2), x * n


@with_numbers(TABLE)
def max_float(x, n):
    f = n * 1.5
    return max(f, 5), max(5, f), max(f, True), min([5, f]), max(f, n), x * f


@with_numbers(TABLE)
def sorted_mixed(x, n):
    return sorted([n, 4.5, 1]), sorted([4.5, n]), x * n


@with_numbers(TABLE)
def sort_inplace(x, n):
    q = [4.5, n, 5]
    q.sort()
    r = [n, 4]
    r.sort(reverse=True)
    return q, r, x * n


@with_numbers(TABLE)
def contains_mixed(x, n):
    return (
        4.0 in [n],
        4 in (n,),
        n in [4.0],
        n in {4},
        n in (4, 5.0),
        n in range(4, 5),
        [n] == [4.0],
        [4.0] == [n],
        (4.0, 1) < (n, 2),
        x * n,
    )


@with_numbers(TABLE)
def index_mixed(x, n):
    return [1.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0].index(n), [4.0, n].count(4), [n].count(4.0), x * n


@with_numbers(TABLE)
def cmp_mixed(x, n):
    return 4.5 < n, 4.0 == n, 4.0 != n, 4.5 >= n, True < n, True == n, (4 + 0j) == n, x * n


@with_numbers(TABLE)
def div_mixed(x, n):
    return (
        divmod(7.5, n),
        7.5 % n,
        7.5 // n,
        2.0**n,
        n**0.5,
        True + n,
        True * n,
        1j * n,
        complex(n),
        complex(n, n),
        pow(2, n, 5),
        x * n,
    )


@with_numbers(TABLE)
def round_n(x, n):
    return round(3.14159265, n), round(n, -1), round(n * 1.1, n), x * n


@with_numbers(TABLE)
def ints_n(x, n):
    return int(n), float(n), bool(n - 3), int("7" * n), str(n), int(str(n), 16), x * n


@with_numbers(TABLE)
def math_n(x, n):
    return (
        math.comb(9, n),
        math.factorial(n),
        math.gcd(n, 12),
        math.isclose(n, 4),
        math.ldexp(1.0, n),
        math.hypot(n, 1),
        math.dist([n], [0]),
        math.fsum([n, 1.5]),
        math.prod([n, 2]),
        math.isqrt(n),
        math.floor(n),
        math.log(n, 2),
        math.perm(9, n),
        math.frexp(n),
        math.modf(n * 1.5),
        math.nextafter(n, 0.0),
        math.copysign(1.0, n - 4),
        math.lcm(n, 4),
        math.trunc(n * 1.5),
        math.sumprod([n], [2]) if hasattr(math, "sumprod") else 0,
        x * n,
    )


@with_numbers(TABLE)
def str_n(x, n):
    return (
        str(n),
        repr(n),
        f"{n}",
        f"{n:03d}",
        "%s %r %d" % (n, n, n),
        "{} {!r}".format(n, n),
        "a".zfill(n),
        "abc".center(n),
        "x" * n,
        "abcdefghij"[:n],
        "abcdefghij"[n:],
        "-".join([str(n)]),
        "{0[0]}".format([n]),
        "{a}".format(a=n),
        "%(a)s" % {"a": n},
        str([n]),
        str((n,)),
        str({n: n}),
        f"{[n]}",
        x * n,
    )


@with_numbers(TABLE)
def seq_n(x, n):
    return (
        [1, 2, 3, 4, 5, 6, 7, 8, 9][n],
        (1, 2, 3, 4, 5, 6, 7, 8, 9)[:n],
        [1] * n,
        [0, 1] * n,
        n * (1,),
        list(range(n)),
        [*range(n)],
        (1, 2, 3, 4, 5, 6, 7, 8, 9)[-n],
        L2([1, 2, 3, 4, 5, 6, 7, 8, 9])[1:n],
        L2([1, 2, 3, 4, 5, 6, 7, 8, 9])[n],
        x * n,
    )


class L2(list):
    pass


class D2(dict):
    def __missing__(self, k):
        return ("miss", k)


@with_numbers(TABLE)
def dict_n(x, n):
    d = {n: 1, "a": n}
    e = dict.fromkeys([n], 0)
    d2 = D2()
    d3 = {}
    d3.setdefault(n, n)
    d3.update({n: 5})
    d3.update([(n, 6)])
    d3.update(k=n)
    d3 |= {n: 8}
    return (
        d,
        e,
        d2[n],
        d3,
        n in d,
        d[n],
        {k: v for k, v in d.items()},
        [type(k) is int for k in d],
        [type(k) is int for k in e],
        type(d2[n][1]) is int,
        d.get(n),
        d.pop(n),
        x * n,
    )


@with_numbers(TABLE)
def set_n(x, n):
    s = {n, 1}
    s.add(n + 1)
    t = frozenset([n])
    u = set([n, n + 1])
    u.update([n + 5])
    u |= {n}
    u.discard(n)
    return sorted(s), t, sorted(u), n in s, [type(k) is int for k in s | t | u], x * n


@with_numbers(TABLE, hits=0)
def slice_ops(x, n):
    q = list(range(20))
    q[1:n] = [7]
    del q[:n]
    q[n] = n
    q[-n:] = []
    b = bytearray(range(20))
    b[n] = n
    b[:n] = b"z"
    del b[n]
    return q, b, slice(n).indices(9), slice(1, n) == slice(1, 4), x * n


@with_numbers(TABLE)
def array_n(x, n):
    a = array.array("i", [1, 2, 3])
    a.append(n)
    a[0] = n
    a.insert(n, 9)
    return list(a), x * n


@with_numbers(TABLE)
def struct_n(x, n):
    return struct.pack("i", n), struct.pack("%ds" % n, b"abc"), struct.calcsize("%di" % n), x * n


@with_numbers(TABLE)
def ctypes_n(x, n):
    c = ctypes.c_int(n)
    d = (ctypes.c_int * n)()
    d[0] = n
    return c.value, len(d), d[0], x * n


@with_numbers(TABLE)
def json_n(x, n):
    return json.dumps({"a": n, "b": [n, n * 1.5]}), json.loads(json.dumps([n]))[0], x * n


@with_numbers(TABLE)
def pickle_n(x, n):
    return pickle.loads(pickle.dumps((n, n * 0.5, [n]))), pickle.dumps(n), x * n


@with_numbers(TABLE)
def copy_n(x, n):
    return copy.copy(n), copy.deepcopy([n, {"a": n}]), type(copy.deepcopy((n,))[0]) is int, x * n


@with_numbers(TABLE)
def type_n(x, n):
    f = n * 0.5
    return (
        type(n) is int,
        type(f) is float,
        isinstance(n, int),
        isinstance(n, bool),
        isinstance(n, numbers.Integral),
        isinstance(f, numbers.Real),
        n.__class__ is int,
        type(n).__name__,
        list(map(type, [n, f])) == [int, float],
        {type(n): 1}[int],
        type(n) in (int, float),
        issubclass(type(n), int),
        type(n)(3),
        callable(n),
        hash(n),
        id(n) == id(n),
        n is n,
        x * n,
    )


@with_numbers(TABLE)
def match_n(x, n):
    def m(v):
        match v:
            case bool():
                return "bool"
            case 4:
                return "four"
            case int(k):
                return ("int", k)
            case float():
                return "float"
            case [a, *r]:
                return ("seq", a, r)
            case {"k": v}:
                return ("map", v)

    return m(n), m(n * 0.5), m([n, 2]), m({"k": n}), m(n > 3), x * n


@with_numbers(TABLE, hits=0)
def random_n(x, n):
    r = random.Random(n)
    s = random.Random(0)
    return (
        r.random(),
        s.randint(0, n),
        s.choice([n, 1]),
        s.sample(range(9), n),
        s.uniform(0, n),
        s.choices([n, 2], k=n),
        x * n,
    )


@with_numbers(TABLE, hits=0)
def numpy_n(x, n):
    a = np.ones(3, np.float32)
    return (
        (a / n).dtype.name,
        (n * a).dtype.name,
        (a + n * 0.5).dtype.name,
        np.full(2, n).tolist(),
        np.array([n, 2]).dtype.name,
        np.float32(n).item(),
        a[: n - 2].tolist(),
        np.arange(n).tolist(),
        (a**n).tolist(),
        (a == n).tolist(),
        np.zeros(n).shape,
        np.linspace(0, n, n).tolist(),
        np.sum([n, 1]).item(),
        type(np.array([n], object)[0]) is int,
        float(np.float32(2) * n),
        (np.float32(2) * n).dtype.name,
        (np.int8(2) * n).dtype.name,
        (n - np.float32(1)).dtype.name,
        (-np.float32(n)).item(),
        abs(np.int64(-n)),
        "abcdefghijklmnopqrstuvwxyz"[np.int64(n)],
        "abcdefghijklmnopqrstuvwxyz"[: np.int64(n)],
        list(range(np.int64(n))),
        round(np.float64(n) / 3, 2),
        {np.int64(n): 1}[n],
        x * n,
    )


@with_numbers(TABLE)
def numpy_in(x, n):
    a = np.ones(3, np.float32)
    a *= n
    b = a.copy()
    b[0] = n
    b += n * 0.5
    b[n - 3 :] = n
    return a.dtype.name, b.tolist(), x * n


@with_numbers(TABLE)
def enum_start(x, n):
    t = 0.0
    for i, v in enumerate([1.0, 2.0], n):
        t = t + x * i * v
    return t


@with_numbers(TABLE)
def enum_start_kw(x, n):
    return [(i, v) for i, v in enumerate([1.0, 2.0], start=n)], x * n


@with_numbers(TABLE)
def insert_at(x, n):
    q = [0] * 20
    q.insert(n, 1)
    q.insert(1, n)
    return q, x * 2


@with_numbers(TABLE)
def pop_at(x, n):
    q = list(range(20))
    return q.pop(n), q, x * 2


@with_numbers(TABLE)
def del_at(x, n):
    q = list(range(20))
    del q[n]
    del q[n : n + 2]
    return q, x * 2


@with_numbers(TABLE)
def rotate(x, n):
    q = collections.deque(range(20))
    q.rotate(n)
    return list(q), x * 2


@with_numbers(TABLE)
def mul_list(x, n):
    q = [1] * n
    q *= n
    return len(q), x * 2


@with_numbers(TABLE)
def mul_str(x, n):
    return "ab" * n, x * 2, b"a" * n, (1,) * n


@with_numbers(TABLE)
def count_from(x, n):
    c = itertools.count(n)
    return next(c), next(c), x * 2


@with_numbers(TABLE)
def islice_n(x, n):
    return list(itertools.islice(range(20), n)), x * 2, list(itertools.islice([1] * 9, 1, n, 2))


@with_numbers(TABLE)
def repeat_n(x, n):
    return list(itertools.repeat(x, n))


@with_numbers(TABLE)
def comb_n(x, n):
    return len(list(itertools.combinations(range(9), n))), x * 2


@with_numbers(TABLE)
def range_ops(x, n):
    r = range(n)
    return len(r), r[-1], n in r, r.index(n - 1), list(r), x * 2, r[1:n].stop, range(n) == range(3)


@with_numbers(TABLE, hits=0)
def bytes_n(x, n):
    return bytes(n), bytearray(n), n.to_bytes(2, "big"), chr(n), bin(n), hex(n), x * n


@with_numbers(TABLE)
def str_fmt(x, n):
    return (
        "%d" % n,
        "{:>{w}}".format("a", w=n),
        f"{'a':>{n}}",
        "a".ljust(n),
        "abcdefgh"[n],
        "a,b,c,d,e,f,g".split(",", n),
        x * n,
    )


@TABLE.trap(traces=6, hits=2)
def truths_of_numpy(compiled):
    @compiled
    def f(x, flag):
        y = x * 2 if flag else x - 3
        return y, flag, flag == True, flag & True, not flag, flag is np.True_

    for flag in (np.True_, np.False_, np.bool_(1), True, np.False_, np.True_, np.int64(0), False):
        yield f(torch.ones(2), flag)


@TABLE.trap(traces=12, hits=2)
def a_truth_of_numpy_over_a_break(compiled):
    @compiled
    def f(x, n):
        flag = np.lcm(n, 4) % 8 == 0
        y = x + 1
        total = y.sum().tolist()
        return (y * total if flag else y), flag

    for n in (2, 8, 3, 8, 2, 16):
        yield f(torch.ones(2) * n, n)


@TABLE.parametrize()
def test_native_code_takes_the_number_of_the_call(trap: Trap) -> None:
    hold(trap)
