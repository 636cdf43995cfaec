"""Attributes, globals and cells that a call writes, and objects that it makes, are left as eager leaves them."""

import collections
import dataclasses
import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.unit.capture.effects import same_as_eager

import framefuse
from framefuse.api import compiled_function

PROGRAMS: dict[str, tuple[Callable[..., Any], int]] = {}
HITS, SWITCH, TABLE = 0, 1.5, types.ModuleType("table")


def program(traces: int = 1) -> Any:
    def register(function: Any) -> Any:
        PROGRAMS[function.__name__] = (function, traces)
        return function

    return register


class Plain:
    pass


class Slotted:
    __slots__ = ("_hidden", "n", "t", "unset")

    def __init__(self, n, t=None):
        self.n, self.t, self._hidden = n, t, 0


class Derived(Slotted):
    __slots__ = ("more",)


class Managed:
    def __init__(self):
        self._n = 0

    @property
    def n(self):
        return self._n

    @n.setter
    def n(self, value):
        self._n = value
        self.writes = getattr(self, "writes", 0) + 1

    @n.deleter
    def n(self):
        self._n = -1


class Guarded:
    def __setattr__(self, name, value):
        object.__setattr__(self, "last", name)
        object.__setattr__(self, name, value)


@dataclasses.dataclass
class Point:
    x: Any
    n: int = 0


@dataclasses.dataclass(frozen=True)
class Frozen:
    x: Any
    n: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class FrozenSlots:
    x: Any
    rest: Any = None


Named = collections.namedtuple("Named", "a b")


class Pair(tuple):
    pass


class Failure(ValueError):
    pass


@program()
def counter():
    box = Plain()
    box.n = 0

    def f(x):
        box.n += 1
        return x * box.n

    return f, lambda: box


@program()
def counter_of_floats():
    box = Plain()
    box.rate = 0.5

    def f(x):
        box.rate = box.rate * 0.9
        return x * box.rate

    return f, lambda: box


@program()
def module_counter():
    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.n = 0
            self.last = None

        def forward(self, x):
            self.n += 1
            self.last = x * self.n
            return self.last + 1

    net = Net()
    return net.forward, lambda: (net.n, net.last)


@program()
def slots():
    box = Slotted(1)

    def f(x):
        box.n += 1
        box.t = x * box.n
        return box.t + 1

    return f, lambda: box


@program(traces=2)
def unset_slot():
    box = Derived(1)

    def f(x):
        seen = hasattr(box, "more")
        box.more = x + 1
        return box.more * (2 if seen else 3)

    return f, lambda: (box.n, box.more)


@program(traces=2)
def deleted_and_made_again():
    box, slotted = Plain(), Slotted(3)
    box.a, box.b = 1, 2

    def f(x):
        del box.a
        box.a = x
        n = slotted.n
        del slotted.n
        seen = hasattr(slotted, "n")
        slotted.n = n
        return x + seen, list(vars(box))

    return f, lambda: (box, slotted)


@program(traces=2)
def property_with_setter():
    box = Managed()
    box.writes = 0

    def f(x):
        box.n = box.n + 2
        del box.n
        return x * box.writes

    return f, lambda: box


@program(traces=2)
def own_setattr():
    box = Guarded()

    def f(x):
        box.a = x + 1
        box.b = box.last
        return box.a

    return f, lambda: box


@program()
def global_counter():
    def f(x):
        global HITS
        HITS += 1
        return x * HITS

    f = types.FunctionType(f.__code__, space := {"HITS": 0, "__name__": "space"})
    return f, lambda: space["HITS"]


@program(traces=2)
def counter_behind_a_property():
    class Box:
        @property
        def n(self):
            return self.hidden

        def step(self):
            setattr(self, "hidden", self.n + 3)  # noqa: B010

    box = Box()
    box.hidden = 1

    def f(x):
        box.step()
        return x * box.n

    return f, lambda: box


@program()
def global_deleted():
    def f(x):
        global SWITCH
        y = x * SWITCH
        del SWITCH
        SWITCH = 1.5  # noqa: F841
        return y

    return f, lambda: SWITCH


@program()
def attribute_of_python_module():
    table = types.ModuleType("table")
    table.count = 0

    def f(x):
        table.count += 1
        return x * table.count

    return f, lambda: vars(table)["count"]


@program()
def cells():
    n, last = 0, None

    def f(x):
        nonlocal n, last
        n += 1
        last = x * n
        return last + 1

    return f, lambda: (n, last)


@program()
def tensor_attribute():
    weight = torch.ones(1)
    weight.uses = 0

    def f(x):
        weight.uses += 1
        weight.last = x
        return x * weight.uses

    return f, lambda: (weight.uses, weight.last)


@program()
def tensor_state_of_changing_size():
    box = Plain()
    box.seen = torch.zeros(2)

    def f(x):
        box.seen = torch.cat([box.seen, x])
        return box.seen.sum() + x

    return f, lambda: box


@program()
def stored_and_read_back():
    box = Plain()
    box.part = None

    def f(x):
        part = Plain()
        part.value = x * 2
        box.part = part
        box.part.again = box.part
        return box.part.value + 1, box.part

    return f, lambda: box


@program()
def swapped():
    box = Plain()
    box.a, box.b = torch.zeros(3), torch.ones(4)

    def f(x):
        box.a, box.b = box.b, box.a
        return x + box.a.sum()

    return f, lambda: box


@program()
def objects():
    def f(x):
        y = x + 1
        return Point(y, 2), Frozen(y), FrozenSlots(y, [y]), Slotted(3, y), Derived(1, y), Named(y, b=(x, y))

    return f, lambda: None


@program()
def containers():
    def f(x):
        y = x * 2
        d = collections.defaultdict(list)
        d["a"].append(y)
        ordered = collections.OrderedDict(b=y, a=1)
        return collections.deque([y, 1], maxlen=3), d, ordered, collections.Counter("aab"), {1}

    return f, lambda: None


@program()
def cycles():
    def f(x):
        node, items = Plain(), [x]
        node.me, node.items = node, items
        items.append(node)
        items.append(items)
        return node

    return f, lambda: None


@program()
def errors_as_values():
    def f(x):
        return Failure("bad", x + 1), KeyError("k")

    return f, lambda: None


@program()
def closures():
    def f(x):
        y, count = x * 2, [0]

        def add(z=1, *, w=2):
            count[0] += 1
            return y + z + w

        def loop(n):
            return y if n == 0 else loop(n - 1) + count[0]

        made = functools.partial(add, 3, w=4)
        return add(), made, types.SimpleNamespace(add=add, y=y), loop

    def called(x):
        value, made, space, loop = f(x)
        return value, made(), space.add(), space.y, loop(2), made.func is space.add

    return called, lambda: None


@program()
def tuple_subclass():
    def f(x):
        return Pair((x + 1, x)), slice(1, x.shape[0]), range(3)

    return f, lambda: None


@program()
def objects_in_sets():
    def f(x):
        part = Plain()
        part.x = x + 1
        return {part}, {part: 1}, {("a", 1), ("b", 2)}

    return f, lambda: None


@pytest.mark.parametrize("name", list(PROGRAMS))
def test_program(name: str) -> None:
    make, traces = PROGRAMS[name]
    same_as_eager(make, traces=traces)


def test_returned_functions_work() -> None:
    """What comes back from compiled code is a function over the tensors of that very call."""

    def make():
        def f(x):
            y, count = x * 2, 0

            def add(z=1):
                nonlocal count
                count += 1
                return y + z + count

            def down(n):
                return y if n == 0 else down(n - 1) + 1

            return add, functools.partial(add, 5), down, Plain

        def called(x):
            add, partial, down, _ = fast(x)
            return add(), partial(), add(3), down(2), add.__name__, add.__qualname__, add.__closure__[1] is not None

        fast = f
        made = {"f": f}

        def through(x):
            add, partial, down, _ = made["f"](x)
            return add(), partial(), add(3), down(2), add.__name__, add.__defaults__

        return f, through, made

    function, through, made = make()
    expected = [through(torch.full((3,), float(call))) for call in range(3)]
    made["f"] = fast = framefuse.compile(function)
    for call, want in enumerate(expected):
        got = through(torch.full((3,), float(call)))
        assert all(torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b for a, b in zip(want, got, strict=True))
    state = compiled_function(fast)
    assert state is not None and len(state.products) == 1 and state.eager_calls == 0 and state.dispatch.hits == 2


def test_a_cell_of_a_function_that_is_an_argument() -> None:
    def make():
        def f(x, count):
            count()
            return x * count()

        return f, lambda: None

    def counter() -> Callable[[], int]:
        n = 0

        def count() -> int:
            nonlocal n
            n += 1
            return n

        return count

    same_as_eager(make, traces=1, args=lambda call: (torch.ones(2), counter()))
