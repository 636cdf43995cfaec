"""Small programs, each with a maker of arguments and the objects it may change: the table record() is held against."""

# ruff: noqa: B905, C400, C408, C417, F841, RUF034, UP028, UP031 - the programs are written as users write them

import collections
import contextlib
import dataclasses
import enum
import functools
import itertools
import math
import operator
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

Rand = Callable[..., torch.Tensor]


@dataclasses.dataclass(frozen=True)
class Program:
    """``make()`` gives (function, arguments of a generator and a size, objects to watch); ``stop`` is the expected
    code, None for a trace.
    """

    name: str
    make: Callable[[], tuple[Any, ...]]
    stop: str | None
    once: bool


TABLE: list[Program] = []


def program(stop: str | None = None, once: bool = False) -> Callable[[Any], Any]:
    """``once``: the first call changes what it read, so that the second is another trace."""

    def register(make: Any) -> Any:
        TABLE.append(Program(make.__name__, make, stop, once))
        return make

    return register


def one(rand: Rand, n: int) -> tuple[Any, ...]:
    return (rand(n, 6),)


def two(rand: Rand, n: int) -> tuple[Any, ...]:
    return (rand(n, 6), rand(n, 6))


SCALE = 1.5
COUNTER = 0
REGISTRY: list[Any] = []
TABLES = {"a": 2.0, "b": 3.0}
FACTOR = torch.tensor(2.0)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Box:
    value: Any
    note: str = "box"

    @property
    def double(self) -> Any:
        return self.value * 2


class Color(enum.Enum):
    RED = 1
    BLUE = 2


class Slotted:
    __slots__ = ("a",)

    def __init__(self, a: Any) -> None:
        self.a = a


class Dynamic:
    def __init__(self) -> None:
        self.known = 2.0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("x_"):
            return float(len(name))
        raise AttributeError(name)


class Descriptor:
    def __get__(self, holder: Any, kind: Any = None) -> Any:
        return 3.0


class Described:
    field = Descriptor()
    shared = 4.0

    @classmethod
    def make(cls) -> float:
        return cls.shared

    @staticmethod
    def fixed(x: Any) -> Any:
        return x * 2

    @functools.cached_property
    def late(self) -> float:
        return 7.0


class Base:
    def go(self, x: Any) -> Any:
        return x + 1


class Child(Base):
    def go(self, x: Any) -> Any:
        return super().go(x) * 2


class Manager:
    def __init__(self) -> None:
        self.log: list[str] = []

    def __enter__(self) -> "Manager":
        self.log.append("in")
        return self

    def __exit__(self, *error: Any) -> bool:
        self.log.append("out")
        return error[0] is KeyError


class Vector:
    def __init__(self, x: Any) -> None:
        self.x = x

    def __add__(self, other: Any) -> "Vector":
        return Vector(self.x + (other.x if isinstance(other, Vector) else other))

    __radd__ = __add__

    def __getitem__(self, key: Any) -> Any:
        return self.x[key]

    def __len__(self) -> int:
        return 3

    def __iter__(self) -> Any:
        yield self.x
        yield self.x + 1

    def __contains__(self, item: Any) -> bool:
        return item == 3

    def __eq__(self, other: Any) -> bool:
        return isinstance(other, Vector)

    def __bool__(self) -> bool:
        return True

    def __call__(self, y: Any) -> Any:
        return self.x * y

    def __lt__(self, other: Any) -> bool:
        return True


class Countdown:
    def __init__(self, n: int) -> None:
        self.n = n

    def __iter__(self) -> "Countdown":
        return self

    def __next__(self) -> int:
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.lin = nn.Linear(6, 6)
        self.eps = 0.5
        self.register_buffer("bias", torch.ones(6))
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.ReLU()])
        self.steps = 0

    def forward(self, x: Any) -> Any:
        x = self.lin(x) + self.bias * self.eps
        for layer in self.layers:
            x = layer(x)
        return x


class Counting(Net):
    def forward(self, x: Any) -> Any:
        self.steps += 1
        return super().forward(x) * self.steps


def numbers(n: Any) -> Any:
    for i in range(n):
        yield i


@contextlib.contextmanager
def scaled(log: list[str]) -> Any:
    log.append("enter")
    try:
        yield 2.0
    finally:
        log.append("leave")


def decorate(function: Any) -> Any:
    @functools.wraps(function)
    def inner(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs) + 1

    return inner


@program()
def op_chain():
    def f(x):
        x = torch.sin(x + 0.1)
        x = x * 1.1 - 2
        x = torch.relu(x) / 3
        return x.sum()

    return f, one


@program()
def all_kinds_of_parameters():
    def f(a, /, b, c=2.0, *rest, d, e=3.0, **named):
        return a + b * c + sum(rest) * d - e + named["z"]

    return lambda x, y: f(x, y, 1.0, y, y, d=2.0, z=x), two


@program()
def keyword_and_star_arguments():
    def f(*args, **kwargs):
        return args[0] * kwargs["k"] + len(args)

    return f, lambda rand, n: (rand(n, 2), rand(n, 2)), (), {"k": 2.0}


@program()
def closure_variable():
    scale = 2.5
    weight = torch.arange(6.0)

    def f(x):
        return x * scale + weight

    return f, one


@program()
def nonlocal_counter():
    n = 0

    def f(x):
        nonlocal n
        n += 1
        return x * n

    return f, one, (lambda: n,)


@program()
def global_values():
    def f(x):
        return x * SCALE * FACTOR + TABLES["b"] + math.pi

    return f, one


@program()
def global_counter():
    def f(x):
        global COUNTER
        COUNTER = COUNTER + 1
        return x + 1

    return f, one


@program()
def global_list_append():
    def f(x):
        REGISTRY.append(x + 1)
        return x * 2

    return f, one


@program()
def instance_attributes():
    box = Box(2.0)

    def f(x):
        return x * box.value + box.double

    return f, one


@program()
def attribute_write():
    box = Box(2.0)

    def f(x):
        box.value = x.sum()
        box.note = "new"
        return x + 1

    return f, one, (lambda: box,)


@program()
def attribute_counter():
    box = Box(1)

    def f(x):
        box.value += 1
        return x * box.value

    return f, one, (lambda: box.value,)


@program()
def attribute_set_and_restored():
    box = Box(2.0)

    def f(x):
        box.note = "inside"
        y = x * len(box.note)
        box.note = "box"
        return y

    return f, one, (lambda: box,)


@program()
def argument_object_attributes():
    def f(box, x):
        return box.value * x

    return f, lambda rand, n: (Box(rand(n, 2)), rand(n, 2))


@program()
def argument_object_written():
    def f(box, x):
        box.value = box.value + x
        return x

    return f, lambda rand, n: (Box(rand(n, 2)), rand(n, 2))


@program()
def slots_are_read():
    def f(s, x):
        return s.a * x

    return f, lambda rand, n: (Slotted(rand(n, 2)), rand(n, 2))


@program()
def getattr_fallback():
    d = Dynamic()

    def f(x):
        return x * d.x_one + d.known + getattr(d, "nothing", 5.0) + (1 if hasattr(d, "none") else 2)

    return f, one


@program(once=True)
def descriptors_and_class_attributes():
    d = Described()

    def f(x):
        return x * d.field + d.shared + Described.make() + d.fixed(x) + Described.fixed(x) + d.late

    return f, one, (lambda: vars(d),)


@program()
def super_calls():
    c = Child()

    def f(x):
        return c.go(x)

    return f, one


@program()
def enum_members():
    def f(x):
        return x * (2 if Color.RED is Color.RED else 3) + Color.BLUE.value

    return f, one


@program()
def inlined_calls():
    def g(x, k=2.0):
        return x * k

    def f(x):
        return g(g(x), k=3.0)

    return f, one


@program()
def decorated_call():
    @decorate
    def f(x):
        return x * 2

    return f, one


@program()
def partial_and_lambda():
    p = functools.partial(torch.add, alpha=2)

    def f(x, y):
        return p(x, y) + (lambda z: z * 2)(x)

    return f, two


@program()
def recursion():
    def f(x, depth=3):
        return x if depth == 0 else f(x, depth - 1) * 2

    return lambda x: f(x), one


@program()
def callable_object_and_operators():
    def f(x):
        v = Vector(x)
        w = v + 1
        u = 2 + w
        assert 3 in v and v == w and (v < w) and v
        return (v(x), u[0], len(v), [*v][1])

    return f, one


@program()
def python_iterator():
    def f(x):
        for i in Countdown(3):
            x = x + i
        return x

    return f, one


@program()
def loops_with_break_and_else():
    def f(x):
        for i in range(10):
            if i == 3:
                break
            if i == 1:
                continue
            x = x + i
        else:
            x = x * 100
        k = 0
        while k < 3:
            k += 1
            x = x * 1.5
        return x

    return f, one


@program()
def comprehensions():
    def f(x):
        a = [x * i for i in range(3)]
        b = {i: x + i for i in range(2)}
        c = {i % 2 for i in range(4)}
        d = tuple(v.sum() for v in a)
        return a, b, c, d, sum(v.sum() for v in a)

    return f, one


@program()
def nested_comprehension_closure():
    def f(x):
        k = 2.0
        return [[x * i * k + j for i in range(2)] for j in range(2)]

    return f, one


@program()
def generator_function():
    def f(x):
        for i in numbers(3):
            x = x + i
        return x

    return f, one


@program()
def generator_send_and_return():
    def gen(x):
        got = yield x
        got2 = yield x + got
        return got2 * 2

    def outer(x):
        result = yield from gen(x)
        yield result

    def f(x):
        g = outer(x)
        next(g)
        g.send(1.0)
        return g.send(x)

    return f, one


@program()
def generator_to_native_code():
    def f(x):
        parts = list(x * i for i in numbers(3))
        return (
            torch.cat(parts),
            torch.stack(tuple(x + i for i in range(2))),
            max(i for i in numbers(4)),
            list(zip(numbers(2), "ab")),
        )

    return f, one


@program()
def generator_throw_and_close():
    def gen(x):
        try:
            yield x
        except ValueError:
            yield x * 2
        finally:
            pass

    def f(x):
        g = gen(x)
        a = next(g)
        b = g.throw(ValueError("no"))
        g.close()
        return a + b

    return f, one


@program()
def containers():
    def f(x):
        a = [x, x + 1]
        a.append(x + 2)
        a.insert(0, x - 1)
        a[1] = x * 3
        d = {"k": a, "m": x}
        d["z"] = a.pop()
        d.update(q=1)
        s = slice(0, 2)
        return d, a[s], len(a), (*a, 1), list(d), d.get("none", 4)

    return f, one


@program()
def aliased_containers_in_the_result():
    def f(x):
        a = [x + 1]
        return {"one": a, "two": a, "three": (a, x)}

    return f, one


@program()
def unpacking():
    def f(x):
        a, (b, *c), *d = x, (1, 2, 3), 4, 5
        (e,) = [x * 2]
        return a + b + sum(c) + sum(d) + e

    return f, one


@program()
def tensor_unpacking():
    def f(x):
        a, b, c = x.unbind(1)
        p, q = torch.split(x, 2, dim=1)
        return a + b + c + p.sum() + q.sum()

    return f, lambda rand, n: (rand(n, 3),)


@program()
def strings():
    def f(x):
        name = f"{'sin'!s}{3:>3}" + "%s-%d" % ("a", 4) + f"{2}"
        return getattr(torch, name[:3])(x), name, ",".join(str(i) for i in range(3)), name.upper().split("-")

    return f, one


@program()
def text_of_a_size():
    def f(x):
        return f"{x.shape[1]}", x + 1

    return f, one


@program()
def no_grad_block():
    def f(x):
        with torch.no_grad():
            y = x * 2
        return y + torch.is_grad_enabled()

    return f, one


@program()
def user_context_manager():
    def f(x):
        m = Manager()
        with m as n, m:
            y = x + len(n.log)
            raise KeyError("swallowed")
        return y, m.log

    return f, one


@program()
def contextlib_manager():
    def f(x):
        log = []
        with scaled(log) as k, contextlib.suppress(ValueError), contextlib.nullcontext(3) as j:
            x = x * k + j
            raise ValueError
        with contextlib.ExitStack() as stack:
            stack.enter_context(scaled(log))
            x = x + 1
        return x, log

    return f, one


@program()
def exceptions_caught():
    def f(x):
        try:
            try:
                {}["missing"]
            except KeyError as error:
                raise ValueError("other") from error
            finally:
                x = x + 1
        except (TypeError, ValueError) as error:
            return x * 2, type(error.__cause__).__name__, str(error)
        return x

    return f, one


@program()
def try_else_and_finally_return():
    def g(x):
        try:
            x = x + 1
        except Exception:
            x = x * 0
        else:
            x = x * 2
        finally:
            x = x - 1
        return x

    def f(x):
        for _ in range(2):
            try:
                x = g(x)
                continue
            finally:
                x = x + 5
        return x

    return f, one


@program()
def context_of_an_exception():
    def f(x):
        try:
            try:
                raise KeyError("a")
            except KeyError:
                raise ValueError("b")  # noqa: B904
        except ValueError as error:
            return x, type(error.__context__).__name__, error.__suppress_context__

    return f, one


@program(stop="raises")
def exception_escapes():
    def f(x):
        if x.shape[1] == 6:
            raise ValueError("wrong width")
        return x

    return f, one


@program(stop="raises")
def exception_after_mutation():
    box = Box(1)

    def f(x):
        box.value = 5
        x.add_(1)
        raise RuntimeError("late")

    return f, one, (lambda: box,)


@program(stop="raises")
def torch_error():
    def f(x):
        return torch.mm(x, x)

    return f, lambda rand, n: (rand(3, 4),)


@program(stop="raises")
def missing_attribute():
    box = Box(1)

    def f(x):
        return x * box.nothing

    return f, one


@program(stop="raises")
def missing_name():
    def f(x):
        return x * undefined_name  # noqa: F821

    return f, one


@program(stop="raises")
def wrong_call():
    def g(a, b):
        return a

    def f(x):
        return g(x)

    return f, one


@program(stop="raises")
def failing_assert():
    def f(x):
        assert x.shape[0] > 1000, "too few"
        return x

    return f, one


@program(stop="raises")
def unpack_errors():
    def f(x):
        a, b = (1, 2, 3)
        return x

    return f, one


@program()
def builtins_of_every_kind():
    def f(x):
        v = [3, 1, 2]
        return (
            x * max(v) + min(1, 2) + abs(-2) + round(2.6) + pow(2, 3) + divmod(7, 2)[0],
            sorted(v), list(reversed(v)), any(i > 2 for i in v), all(v), sum(v, 10), list(enumerate(v, 1)),
            list(map(lambda i: i + 1, v)), list(filter(lambda i: i > 1, v)), list(zip(v, v)), isinstance(v, list),
            callable(f), ord("a"), chr(98), hex(10), bool(v), int("3"), float("2.5"), str(4), tuple(v), set(v),
            dict(a=1), len(v),
            sorted(v, key=lambda i: -i), max(v, key=lambda i: -i), functools.reduce(lambda a, b: a + b, v),
            type(v) is list,
        )  # fmt: skip

    return f, one


@program()
def modules_of_the_library():
    def f(x):
        c = collections.OrderedDict(a=x, b=x + 1)
        d = collections.defaultdict(list)
        d["k"].append(x)
        q = list(itertools.chain([1], [2]))
        return x * math.sqrt(4.0) + operator.add(1, 2) + sum(q) + len(d), c, operator.itemgetter(1)(q)

    return f, one


@program()
def results_of_every_shape():
    def f(x):
        return (
            Pair(x, x + 1),
            Box(x * 2, "n"),
            collections.OrderedDict(k=x + 1),
            {1: (None, True, 2.5, "s")},
            frozenset({1, 2}),
            slice(1, 2),
        )

    return f, one


@program()
def argument_returned():
    def f(x, items):
        return x, items, items[0]

    return f, lambda rand, n: (rand(n, 2), [rand(n), 3])


@program()
def same_tensor_twice_in_the_result():
    def f(x):
        y = x + 1
        return y, y, [y]

    return f, one


@program()
def match_statement():
    def f(x, command):
        match command:
            case {"op": "add", "by": k}:
                return x + k
            case ["mul", k]:
                return x * k
            case Box(value=v):
                return x - v
            case _:
                return x

    return lambda x: (f(x, {"op": "add", "by": 2}), f(x, ["mul", 3]), f(x, Box(1.0)), f(x, 0)), one


@program()
def conditional_and_boolean_expressions():
    def f(x, flag):
        k = 2 if flag else 3
        return x * k + ((flag and 5) or 6) + (not flag) + (1 < k < 4)

    return f, lambda rand, n: (rand(n), True)


@program()
def walrus_del_and_star():
    def f(x):
        if (n := 3) > 2:
            y = x + n
        z = [y, y]
        del y
        del z[0]
        return [*z, *range(2)]

    return f, one


@program()
def locals_and_imports():
    def f(x):
        import math as m
        from math import floor

        a = 3
        return x * len(locals()) + m.ceil(1.5) + floor(2.5) + a

    return f, one


@program()
def local_class():
    def f(x):
        class Local:
            k = 2.0

            def go(self, y):
                return y * self.k

        return Local().go(x)

    return f, one


@program()
def sizes_in_arithmetic():
    def f(x):
        b, c = x.shape
        y = x.view(b * c)
        z = y.reshape(b, -1) / c + x.size(0) - x.numel() / len(x)
        return z.expand(2, *x.shape), x.new_zeros(b + 1, c // 2), torch.arange(b), b, x.shape, b / 2

    return f, one


@program()
def sizes_decide_a_branch():
    def f(x):
        if x.shape[0] > 2 and x.shape[1] == 6:
            return x * 2
        return x * 3

    return f, one


@program()
def sizes_compared_and_indexed():
    def f(x, y):
        if x.shape == y.shape:
            x = x + y
        if x.shape[0] in (0, 1):
            return x
        return x[: x.shape[0] - 1], x[..., -1], min(x.shape[0], 100), max(2, x.shape[0])

    return f, two


@program()
def integer_argument():
    def f(x, n):
        return x * n + n // 2, n + 1

    return f, lambda rand, n: (rand(3), n)


@program()
def integer_argument_decides():
    def f(x, n):
        return x * 2 if n > 3 else x

    return f, lambda rand, n: (rand(3), n + 3)


@program()
def float_argument():
    def f(x, k):
        return x * k + k / 2, k * 2

    return f, lambda rand, n: (rand(3), float(n) / 3)


@program()
def container_arguments():
    def f(items, table, pair):
        return items[0] + items[-1] * table["k"] + pair[0] + len(items), list(table)

    return f, lambda rand, n: ([rand(n), rand(n)], {"k": rand(n), "m": 2.0}, (rand(n), "x"))


@program()
def list_argument_iterated():
    def f(items):
        total = 0
        for i, item in enumerate(items):
            total = total + item * i
        return total, torch.cat(items)

    return f, lambda rand, n: ([rand(n), rand(n), rand(n)],)


@program()
def list_argument_appended():
    def f(items, x):
        items.append(x + 1)
        return x

    return f, lambda rand, n: ([rand(n)], rand(n))


@program()
def dict_argument_written():
    def f(table, x):
        table["new"] = x + 1
        table["old"] = 3
        return table["new"] * 2

    return f, lambda rand, n: ({"old": 1}, rand(n))


@program()
def none_and_optional_arguments():
    def f(x, mask=None, flag=False):
        if mask is not None:
            x = x + mask
        return x if not flag else x * 2

    return f, lambda rand, n: (rand(n), None)


@program()
def function_argument():
    def f(x, g):
        return g(x) + 1

    return f, lambda rand, n: (rand(n), lambda y: y * 2)


@program()
def dtype_and_device_arguments():
    def f(x, dtype, device):
        return x.to(dtype), torch.zeros(2, device=device), x.dtype == torch.float32, str(x.device), x.device == device

    return f, lambda rand, n: (rand(n), torch.float64, torch.device("cpu"))


@program()
def in_place_on_an_argument():
    def f(x):
        x.add_(1)
        x[0] = 5
        return x.mul_(2), x * 3

    return f, one


@program()
def in_place_on_an_intermediate():
    def f(x):
        y = x.clone()
        v = y[0]
        v.add_(1)
        y[:, 1] = 5
        y += 2
        torch.add(y, 1, out=y)
        return y, v

    return f, one


@program()
def views_and_properties():
    def f(x):
        return x.T, x.mT.contiguous(), x.real, x.ndim, x.dtype, x.is_floating_point(), x.shape[-1]

    return f, one


@program()
def several_results():
    def f(x):
        values, indices = torch.max(x, 1)
        top = torch.topk(x, 2)
        return values, indices, top.values, top[1], torch.max(x, 0)

    return f, one


@program()
def random_numbers():
    def f(x):
        return x * torch.rand(3), F.dropout(x, 0.5, training=False)

    return f, lambda rand, n: (rand(n, 3),)


@program()
def torch_functional():
    def f(x):
        y = F.softmax(F.gelu(x), dim=-1)
        y = F.layer_norm(y, (6,)) + F.pad(x, (1, 1))[:, 1:-1]
        return torch.einsum("ij,kj->ik", y, x), torch.where(x > 0, x, -x)

    return f, one


@program()
def data_dependent_sizes():
    def f(x):
        return x[x > 0], torch.nonzero(x > 0)

    return f, one


@program()
def a_branch_on_a_data_dependent_size():
    def f(x):
        y = x[x > 0]
        return y if y.shape[0] > 2 else x

    return f, one


@program()
def module_call():
    m = Net().eval()
    return m, one


@program()
def module_with_counter():
    m = Counting().eval()
    return m, one, (lambda: m.steps,)


@program()
def module_with_hooks():
    m = Net().eval()
    m.lin.register_forward_hook(lambda module, args, out: out * 2)
    m.register_forward_pre_hook(lambda module, args: (args[0] + 1,))
    return m, one


@program()
def module_in_a_closure():
    m = Net().eval()

    def f(x):
        return m(x) + m.lin.weight.sum() + sum(p.sum() for p in m.parameters())

    return f, one


@program()
def module_containers():
    torch.manual_seed(2)
    m = nn.Sequential(nn.Linear(6, 4), nn.GELU(), nn.Sequential(nn.LayerNorm(4), nn.Dropout(0.1))).eval()
    table = nn.ModuleDict({"a": m})

    def f(x):
        return table["a"](x) + len(m) + ("a" in table)

    return f, one


@program()
def batch_norm_in_training():
    m = nn.BatchNorm1d(6)
    return m, one, (lambda: [b.clone() for b in m.buffers()],)


@program()
def module_train_flag_is_read():
    m = nn.Dropout(0.5).eval()

    def f(x):
        return m(x) if not m.training else x

    return f, one


@program()
def bound_method():
    m = Child()
    return m.go, one


@program()
def environment_is_read():
    def f(x):
        return x * 2 if os.environ.get("FRAMEFUSE_TEST_UNSET") is None else x

    return f, one


@program()
def is_compiling_is_seen():
    def f(x):
        return x * (2 if torch.compiler.is_compiling() else 2)

    return f, one


@program(stop="item")
def a_list_is_read():
    def f(x):
        return x * x.sum(1).tolist()[0]

    return f, one


@program()
def an_element_is_read():
    def f(x):
        return x * x.sum().item()

    return f, one


@program(stop="branch")
def branch_on_a_tensor():
    def f(x):
        return x + 1 if x.sum() > 0 else x - 1

    return f, one


@program(stop="item")
def tolist_is_read():
    def f(x):
        return [v * 2 for v in x[0].tolist()]

    return f, one


@program(stop="numpy")
def numpy_inside():
    def f(x):
        return torch.from_numpy(x.numpy() * 2) + 1

    return f, one


@program()
def print_inside():
    def f(x):
        print("hello")
        return x + 1

    return f, one


@program()
def identity_number():
    def f(x):
        return x + (id(x) == id(x))

    return f, one


@program(stop="unknown-tensor")
def parameter_made_inside():
    def f(x):
        p = nn.Parameter(torch.ones(6))
        return x * p

    return f, one


@program()
def custom_autograd_function():
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    def f(x):
        return Double.apply(x) + 1

    return f, lambda rand, n: (rand(n, 6).requires_grad_(torch.is_grad_enabled()),)


@program()
def autocast_inside():
    def f(x):
        with torch.autocast("cpu", torch.bfloat16):
            return x @ x.T

    return f, one


@program(stop="transform")
def functionalize_inside():
    def f(x):
        return torch.func.functionalize(lambda r: r * 2)(x)

    return f, one


@program()
def checkpoint_inside():
    from torch.utils.checkpoint import checkpoint

    def f(x):
        return checkpoint(lambda y: torch.relu(y), x, use_reentrant=False)

    return f, one


@program()
def grad_mode_leaks():
    def f(x):
        torch._C._set_grad_enabled(not torch.is_grad_enabled())
        return x + 1

    return f, one


@program()
def a_function_is_returned():
    def f(x):
        return lambda: x

    return f, one, (), {}, None, lambda value: value()


@program(stop="coroutine")
def generator_function_compiled():
    def f(x):
        yield x

    return f, one, (), {}, None, list


@program()
def generator_returned():
    def f(x):
        return (x * i for i in range(3))

    return f, one, (), {}, None, list


@program(stop="not-python")
def native_function():
    return torch.sin, one


@program()
def seed_inside():
    def f(x):
        torch.manual_seed(3)
        return x + torch.rand(6)

    return f, one


@program()
def list_read_after_append():
    items = []

    def f(x):
        items.append(x)
        return x * len(items)

    return f, one, (lambda: items,)
