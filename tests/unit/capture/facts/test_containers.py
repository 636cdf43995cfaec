"""Containers that a call changes are left as eager leaves them, also where they are read again in the same call."""

import itertools
from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.capture.effects import same_as_eager

import framefuse

PROGRAMS: dict[str, tuple[Callable[..., Any], int]] = {}


def program(traces: int = 2) -> Any:
    def register(function: Any) -> Any:
        PROGRAMS[function.__name__] = (function, traces)
        return function

    return register


@program(traces=1)
def appended_list():
    log = []

    def f(x):
        log.append(x * 2)
        return x + 1

    return f, lambda: log


@program(traces=1)
def length_after_append():
    log = []

    def f(x):
        log.append(x)
        return x * len(log)

    return f, lambda: log


@program(traces=1)
def length_before_and_after():
    log = []

    def f(x):
        before = len(log)
        log.append(before)
        return x * before + len(log)

    return f, lambda: log


@program(traces=1)
def last_of_appended():
    log = []

    def f(x):
        log.append(x + 1)
        log.append(x + 2)
        return log[-1] * log[-2]

    return f, lambda: log


@program(traces=2)
def last_before_append():
    log = [torch.zeros(1)]

    def f(x):
        y = log[-1].sum() + x
        log.append(y)
        return log[-2] + log[-1].sum()

    return f, lambda: log


@program(traces=2)
def truth_of_growing():
    log = []

    def f(x):
        y = x + 1 if log else x
        log.append(1)
        return y * 2 if log else y

    return f, lambda: log


@program(traces=1)
def list_of_fixed_length():
    cells = [torch.zeros(1), torch.zeros(1)]

    def f(x):
        cells[0] = x + 1
        cells[-1] = cells[0] * 2
        a, b = cells
        return a + b + sum(c.sum() for c in cells)

    return f, lambda: cells


@program(traces=1)
def list_counters():
    counts = [0, 0]

    def f(x):
        counts[1] += 1
        counts[0] += 2
        return x * counts[1]

    return f, lambda: counts


@program(traces=1)
def popped_again():
    stack = [1]

    def f(x):
        stack.append(x)
        y = stack.pop() * 2
        return y + len(stack)

    return f, lambda: stack


@program(traces=1)
def restored_list():
    items = [3, 1, 2]

    def f(x):
        items.insert(1, items.pop())
        items.sort()
        items.reverse()
        last = items.pop(0)
        items.extend([last, 7])
        items.remove(7)
        del items[0]
        items.insert(0, 2)
        items[:] = [3, 1, 2]
        return x * items[0] + len(items)

    return f, lambda: items


@program(traces=1)
def cleared_list():
    items = [5]

    def f(x):
        items.clear()
        items.append(x)
        items.extend([x + 1])
        return items[0] + items[1] + len(items)

    return f, lambda: items


@program(traces=1)
def sliced_list():
    items = [1, 2, 3]

    def f(x):
        items[1:] = [x, x + 1]
        y = items[1] + items[2]
        items[1:3] = [2, 3]
        return y * sum(items)

    return f, lambda: items


@program(traces=1)
def dict_counters():
    counts = {"a": 0, "b": 1}

    def f(x):
        counts["a"] += 1
        counts["b"] = counts["a"] + counts["b"]
        return x * counts["b"]

    return f, lambda: counts


@program(traces=3)
def dict_order():
    d = {"a": 1, "b": 2, "c": 3}

    def f(x):
        first = next(iter(d))
        a = d.pop("a")
        d["a"] = a
        del d["b"]
        d["z"] = x
        d["b"] = 2
        return x * len(d), list(d), first

    return f, lambda: d


@program(traces=2)
def dict_cache():
    cache = {}

    def f(x):
        if "mask" not in cache:
            cache["mask"] = torch.ones(1) * 2
        return x * cache["mask"], len(cache)

    return f, lambda: cache


@program(traces=2)
def dict_defaults():
    d = {}

    def f(x):
        got = d.setdefault("k", [])
        got.append(1)
        d.update(n=len(got), m=2)
        return x * d["n"] + d.get("m", 0) + d.get("missing", 1)

    return f, lambda: d


@program(traces=1)
def dict_emptied():
    d = {"old": 1}

    def f(x):
        d.clear()
        d["new"] = x
        d["other"] = 2
        return x + len(d), list(d), "old" in d

    return f, lambda: d


@program(traces=2)
def dict_by_tuple():
    d = {}

    def f(x):
        d["row", 1] = x + 1
        d[2] = d["row", 1] * 2
        return d[2] + (("row", 2) in d)

    return f, lambda: d


@program(traces=2)
def dict_last_item():
    d = {"a": 1, "b": 2}

    def f(x):
        key, value = d.popitem()
        d[key] = value
        return x * value, key

    return f, lambda: d


@program(traces=1)
def dict_values_after_write():
    d = {"a": 1, "b": 2}

    def f(x):
        d["a"] = x
        total = x * 0
        for value in d.values():
            total = total + value
        return total, [key for key, _ in d.items()]

    return f, lambda: d


@program(traces=3)
def ordered_moves():
    d = OrderedDict(a=1, b=2, c=3)

    def f(x):
        d.move_to_end("a")
        d.move_to_end("c", last=False)
        return x * d["b"], list(d)

    return f, lambda: d


@program(traces=1)
def ordered_moves_unread():
    d = OrderedDict(a=1, b=2, c=3)

    def f(x):
        d.move_to_end("a")
        return x * d["b"]

    return f, lambda: d


@program(traces=2)
def default_dict():
    d = defaultdict(list)

    def f(x):
        d["k"].append(x)
        return x * len(d["k"])

    return f, lambda: d


@program(traces=2)
def default_dict_counter():
    d = defaultdict(int)

    def f(x):
        d["k"] += 1
        d["other"] += 2
        return x * d["k"]

    return f, lambda: d


@program(traces=2)
def counter_object():
    d = Counter()

    def f(x):
        d["k"] += 1
        return x * d["k"]

    return f, lambda: d


@program(traces=2)
def set_of_names():
    s = set()

    def f(x):
        seen = "a" in s
        s.add("a")
        s.add("b")
        s.discard("b")
        return x + 1 if seen else x, "a" in s, "b" in s

    return f, lambda: s


@program(traces=2)
def set_grown():
    s = {1}

    def f(x):
        s.update([1, 2])
        s.remove(1)
        s.add(1)
        return x * len(s)

    return f, lambda: s


@program(traces=1)
def set_of_objects():
    s = set()

    def f(x):
        s.add(object())
        return x + 1

    return f, lambda: len(s)


@program(traces=1)
def deque_log():
    d = deque()

    def f(x):
        d.append(x.sum())
        return x + d[-1] + len(d)

    return f, lambda: d


@program(traces=1)
def deque_with_bound():
    d = deque(maxlen=2)

    def f(x):
        d.append(x + 1)
        return x * 2

    return f, lambda: d


@program(traces=1)
def deque_rotated():
    d = deque([1, 2, 3])

    def f(x):
        d.rotate(1)
        d.appendleft(d.popleft())
        d.rotate(-1)
        return x * d[0]

    return f, lambda: d


@program(traces=1)
def objects_in_known_list():
    class Layer:
        def __init__(self):
            self.keys = None

    log = []

    def f(x):
        layer = Layer()
        layer.keys = x + 1
        log.append(layer)
        log[-1].count = len(log)
        return layer.keys

    return f, lambda: log


@program(traces=1)
def shared_in_two_lists():
    a, b = [], []

    def f(x):
        part = [x + 1]
        a.append(part)
        b.append(part)
        part.append(2)
        return part

    return f, lambda: (a, b)


@program(traces=2)
def nested_growth():
    state = {"runs": [], "best": None}

    def f(x):
        state["runs"].append({"x": x + 1, "n": len(state["runs"])})
        state["best"] = state["runs"][-1]
        return state["best"]["x"]

    return f, lambda: state


@program(traces=1)
def subclass_of_list():
    class Log(list):
        def append(self, value):
            self.count = getattr(self, "count", 0) + 1
            super().append(value)

    log = Log()
    log.count = 0

    def f(x):
        log.append(x)
        return x * log.count

    return f, lambda: log


@program(traces=1)
def instance_dict_as_dict():
    class Box:
        pass

    box = Box()
    box.n = 1

    def f(x):
        box.n = box.n + 1
        vars(box)["m"] = box.n * 2
        return x * vars(box)["n"] + box.m

    return f, lambda: vars(box)


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_program(name: str) -> None:
    make, traces = PROGRAMS[name]
    same_as_eager(make, traces=traces)


def test_caches_passed_as_arguments_and_grown() -> None:
    """One-token steps of a cache that is a list of pairs, or a dict of lists, hit without recording again."""

    def make():
        def f(x, cache, table):
            if len(cache) == 0:
                cache.append((x, x * 2))
            else:
                k, v = cache[0]
                cache[0] = (torch.cat([k, x]), torch.cat([v, x * 2]))
            table.setdefault("steps", []).append(x.sum())
            table["count"] = table.get("count", 0) + 1
            return cache[0][0].sum() + cache[-1][1].sum() + len(table["steps"])

        return f, lambda: None

    sides = itertools.cycle([([], {}), ([], {})])  # eager's and ours, called in turn
    same_as_eager(make, traces=3, calls=8, args=lambda call: (torch.arange(2.0) + call, *next(sides)))


def test_the_same_list_passed_twice() -> None:
    def make():
        def f(x, a, b):
            a.append(x)
            return x * len(b)

        return f, lambda: None

    def args(call: int) -> tuple[Any, ...]:
        one: list[Any] = [0] * call
        return (torch.ones(2), one, one if call % 2 else [])

    same_as_eager(make, traces=2, args=args)


def changed_in_hidden_ways():
    d, o, q, items = defaultdict(int, a=1), OrderedDict(a=1, b=2), deque([1, 2]), [3, 1]

    def f(x, n):
        o.move_to_end("a")
        merged = {**o, "z": 1}
        q[0] = (n, x)
        items[-1] = (n, x)
        q.append(1)
        q.pop()
        items.append(2)
        items.pop()
        d.clear()
        d.update({("t", 1): (n, x)})
        return x * n, list(merged)

    return f, lambda: (d, o, q, items)


def test_tuples_of_numbers_and_orders_of_their_own() -> None:
    same_as_eager(changed_in_hidden_ways, traces=4, args=lambda call: (torch.ones(3), 2))


def test_a_defaultdict_gets_no_entry_by_being_checked() -> None:
    def make():
        d = defaultdict(int, a=1)

        def f(x):
            return x * d.popitem()[1] if d else x

        return f, lambda: d

    same_as_eager(make, traces=2)


def test_no_tracked_number_stays_behind_when_a_recording_ends() -> None:
    kept: list[Any] = []

    def f(x, n):
        part = (n, x.shape[0])
        items = [5, 1]
        items.sort(key=Reversed)
        kept.append(part)
        kept.append(n)
        raise ValueError(n)

    fast = framefuse.compile(f)
    with pytest.raises(ValueError, match="3"):
        fast(torch.ones(2), 3)
    assert [type(value) for value in (*kept[0], kept[1])] == [int, int, int]


class Reversed:
    def __init__(self, value):
        self.value = value

    def __lt__(self, other):
        return other.value < self.value


def test_dicts_with_types_and_dtypes_as_keys():
    factors = {int: 2.0, torch.float32: 3.0, program: 4.0}

    def f(x):
        return x * factors[torch.float32] + factors.get(int, 0) + factors.get(str, 1) + len(list(factors))

    fast = framefuse.compile(f)
    state = fast.__framefuse__
    x = torch.randn(3)
    torch.testing.assert_close(fast(x), f(x))
    del factors[program]
    for _ in range(2):
        torch.testing.assert_close(fast(x), f(x))
    assert state.dispatch.hits == 1, state.reasons
    factors[str] = 5.0
    torch.testing.assert_close(fast(x), f(x))
    factors[torch.float32] = 6.0
    torch.testing.assert_close(fast(x), f(x))


def test_the_error_of_a_list_times_a_float_is_the_operators():
    def f(x):
        x *= 0.5
        return x

    with pytest.raises(TypeError) as eager:
        f([])
    with pytest.raises(TypeError) as compiled:
        framefuse.compile(f)([])
    assert str(compiled.value) == str(eager.value)
