"""Python as ordinary programs use it: rebinding, generators, exceptions, containers, arguments of every shape."""

from __future__ import annotations

import abc
import collections
import contextlib
import dataclasses
import enum
import functools
import importlib
import sys
import threading
import traceback
import types
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from tests.traps.trap import Table, Trap, hold, outcome
from torch import nn
from torch.overrides import TorchFunctionMode

TABLE = Table()
trap = TABLE.trap
SCALE: Any = 2.0


def ones(*sizes: int) -> torch.Tensor:
    return torch.ones(*sizes)


def steps(size: int) -> torch.Tensor:
    return torch.arange(float(size))


# Numbers and names ---------------------------------------------------------------------------------------------------


@trap(traces=1, hits=4)
def a_nan_argument(compiled):
    f = compiled(lambda x, k: x * k + k)
    for k in (float("nan"), float("nan"), 2.0, float("inf"), float("nan")):
        yield f(ones(2), k)


@trap(traces=1, hits=4)
def a_float_argument(compiled):
    f = compiled(lambda x, k: x * k + 1)
    for k in (1.0, 2.5, -0.0, 1e300, 0.1):
        yield f(ones(2), k)


@trap(traces=3, hits=3)
def a_global_rebound(compiled):
    global SCALE
    f = compiled(lambda x: x * SCALE)
    for value in (2.0, 2.0, 3.0, 3.0, 2.0, 4.0, 5.0):
        SCALE = value
        yield f(ones(2))


def helper(x):
    return x + 1


@trap(traces=2, hits=3)
def a_global_function_rebound(compiled):
    global helper
    first = helper
    f = compiled(lambda x: helper(x) * 2)
    try:
        for function in (first, first, lambda x: x - 1, first, first):
            helper = function
            yield f(ones(2))
    finally:
        helper = first


@trap(traces=3, hits=2)
def default_arguments_replaced(compiled):
    def inner(x, k=2.0, *, j=1.0):
        return x * k + j

    f = compiled(lambda x: inner(x))
    for _ in range(2):
        yield f(ones(2))
    inner.__defaults__ = (5.0,)
    for _ in range(2):
        yield f(ones(2))
    inner.__kwdefaults__ = {"j": 7.0}
    yield f(ones(2)), f(ones(2))


@trap(traces=3, hits=2)
def default_arguments_of_the_compiled_function_replaced(compiled):
    def inner(x, k=2.0, *, j=1.0):
        return x * k + j

    f = compiled(inner)
    for _ in range(2):
        yield f(ones(2))
    inner.__defaults__ = (5.0,)
    for _ in range(2):
        yield f(ones(2))
    inner.__kwdefaults__ = {"j": 7.0}
    yield f(ones(2)), f(ones(2))


@trap(traces=2, hits=2)
def a_keyword_default_changed_in_place(compiled):
    def inner(x, *, j=1.0):
        return x + j

    f = compiled(lambda x: inner(x))
    for _ in range(2):
        yield f(ones(2))
    inner.__kwdefaults__["j"] = 7.0
    for _ in range(2):
        yield f(ones(2))


@trap(traces=3, hits=2)
def the_code_of_functions_replaced(compiled):
    def inner(x):
        return x + 1

    def outer(x):
        return inner(x) * 2

    f = compiled(outer)
    for _ in range(2):
        yield f(ones(2))
    inner.__code__ = (lambda x: x - 1).__code__
    for _ in range(2):
        yield f(ones(2))
    outer.__code__ = (lambda x: x * 10).__code__ if not outer.__closure__ else outer.__code__
    yield f(ones(2)), f(ones(2))


@trap(traces=2, hits=2)
def the_code_of_the_compiled_function_replaced(compiled):
    def outer(x, k=2.0):
        return x * k

    f = compiled(outer)
    for _ in range(2):
        yield f(ones(2))
    outer.__code__ = (lambda y, j=3.0: y - j).__code__
    for _ in range(2):
        yield f(ones(2)), f(y=ones(2)), outcome(f, x=ones(2))[0]


@trap(traces=3, hits=3)
def a_class_attribute_changed(compiled):
    class Base:
        k = 2.0

    class Child(Base):
        pass

    child = Child()
    f = compiled(lambda x: x * child.k)
    for _ in range(2):
        yield f(ones(2))
    Base.k = 3.0
    for _ in range(2):
        yield f(ones(2))
    Child.k = 4.0
    for _ in range(2):
        yield f(ones(2))


@trap(traces=2, hits=3)
def a_function_of_torch_monkeypatched(compiled):
    f = compiled(lambda x: F.relu(x - 1) + 1)
    original = F.relu
    try:
        for F.relu in (original, original, lambda x: x * 100, original, original):
            yield f(steps(3))
    finally:
        F.relu = original


@trap(traces=2, hits=3)
def a_nonlocal_variable(compiled):
    total = 0.0

    @compiled
    def f(x):
        def inner(y):
            nonlocal total
            total = total + 1.5
            return y * total

        return inner(x) + inner(x)

    for _ in range(5):
        yield f(ones(2)), total


# Modules -------------------------------------------------------------------------------------------------------------


def linear() -> nn.Linear:
    model = nn.Linear(3, 2).requires_grad_(False)
    nn.init.ones_(model.weight)
    nn.init.ones_(model.bias)
    return model


@trap(traces=1, hits=3)
def a_parameter_replaced(compiled):
    model = linear()
    f = compiled(model)
    for k in range(4):
        model.weight = nn.Parameter(torch.full((2, 3), float(k)), requires_grad=False)
        yield f(ones(2, 3))


@trap(traces=5, hits=4)
def the_data_of_a_parameter_swapped(compiled):
    model = linear()
    f = compiled(model)
    yield f(ones(2, 3)), f(ones(2, 3))
    model.weight.data = torch.full((2, 3), 5.0)
    yield f(ones(2, 3))
    model.weight.data = torch.arange(6.0).reshape(3, 2).t()
    yield f(ones(2, 3)), f(ones(2, 3))
    model.weight.data = torch.ones(4, 3)
    model.bias.data = torch.ones(4)
    yield f(ones(2, 3)), f(ones(2, 3))
    model.double()
    yield f(ones(2, 3).double()), f(ones(2, 3).double())
    model.float()
    yield f(ones(2, 3))


@trap(traces=2, hits=6)
def requires_grad_of_a_parameter_flipped(compiled):
    model = linear()
    f = compiled(model)
    for on in (False, True, False, True):
        model.weight.requires_grad_(on)
        yield f(ones(2, 3)), f(ones(2, 3)).requires_grad


@trap(traces=2, hits=4)
def train_and_eval_flipped(compiled):
    model = nn.Sequential(nn.Dropout(0.5), nn.ReLU())
    f = compiled(model)
    for on in (True, False, True, False, True, False):
        model.train(on)
        yield f(ones(8))


@trap(traces=2, hits=4)
def running_statistics_of_a_batch_norm(compiled):
    model = nn.BatchNorm1d(3).requires_grad_(False)
    f = compiled(model)
    for k in range(4):
        yield f(torch.arange(12.0).reshape(4, 3) * k), model.running_mean, model.running_var, model.num_batches_tracked
    model.eval()
    for k in range(3):
        yield f(ones(4, 3) * k), model.num_batches_tracked


# Generators and exceptions -------------------------------------------------------------------------------------------


@trap(traces=1, hits=2)
def a_generator_inside(compiled):
    @compiled
    def f(x):
        def parts():
            for k in range(3):
                yield x * k

        return sum(parts()) + sum(y for y in parts())

    for _ in range(3):
        yield f(steps(2))


@trap(traces=1, hits=0, waits="result native-call")
def a_generator_returned(compiled):
    @compiled
    def f(x):
        return (x * k for k in range(3))

    for _ in range(3):
        yield list(f(steps(2)))


@trap(traces=1, hits=2)
def a_loop_until_stop_iteration(compiled):
    @compiled
    def f(x):
        numbers = iter([1.0, 2.0, 3.0])
        while True:
            try:
                x = x * next(numbers)
            except StopIteration:
                return x

    for _ in range(3):
        yield f(steps(2))


@contextlib.contextmanager
def entered(log: list[str]):
    log.append("in")
    try:
        yield 3.0
    finally:
        log.append("out")


@trap(traces=1, hits=2)
def context_managers_of_contextlib(compiled):
    log: list[str] = []

    @compiled
    def f(x):
        with entered(log) as k, contextlib.suppress(KeyError):
            x = x * k
            raise KeyError("gone")
        return x

    for _ in range(3):
        yield f(steps(2)), list(log)


@trap(traces=2, hits=1)
def an_exception_across_frames_with_finally(compiled):
    log: list[str] = []

    def inner(x):
        try:
            raise ValueError("no")
        finally:
            log.append("inner")

    @compiled
    def f(x):
        try:
            inner(x)
        except ValueError as error:
            return x + len(str(error)), len(log)

    for _ in range(3):
        yield f(steps(2))
        yield list(log)


@trap(traces=0, hits=0, waits="raises")
def an_exception_that_escapes_after_a_write(compiled):
    log: list[int] = []

    @compiled
    def f(x):
        x.add_(1)
        log.append(1)
        raise ValueError("late")

    for _ in range(3):
        x = steps(2)
        yield outcome(f, x), x, list(log)


@trap(traces=1, hits=1)
def an_exception_that_escapes_on_some_calls(compiled):
    @compiled
    def f(x, k):
        x.add_(1)
        if k == 0:
            raise ValueError("zero")
        return x * k

    for k in (1, 2, 0, 3, 0):
        x = steps(2)
        yield outcome(f, x, k), x


def _fails(x):
    return x @ torch.ones(7)


@trap(traces=0, hits=0, waits="raises")
def the_functions_of_a_traceback(compiled):
    @compiled
    def f(x):
        y = x + 1
        return _fails(y)

    for _ in range(2):
        try:
            f(steps(2))
        except RuntimeError as error:
            names = [(frame.name, frame.line) for frame in traceback.extract_tb(error.__traceback__)]
            yield names[-2:], str(error)


# Objects and containers ----------------------------------------------------------------------------------------------


class Holder:
    def __init__(self, **named: Any) -> None:
        self.__dict__.update(named)


@trap(traces=2, hits=2)
def a_local_and_an_attribute_deleted(compiled):
    @compiled
    def f(x, holder):
        y = x + 1
        z = y * 2
        del y
        if hasattr(holder, "extra"):
            del holder.extra
        return z

    for extra in ({}, {"extra": 1}, {}, {"extra": 1}):
        holder = Holder(a=1, **extra)
        yield f(steps(2), holder), sorted(vars(holder))


@trap(traces=2, hits=1)
def attributes_of_a_tensor(compiled):
    f = compiled(lambda x: x * x.scale)
    for scale in (2.0, 2.0, 3.0, 3.0):
        x = steps(2)
        x.scale = scale
        yield f(x)


@trap(traces=2, hits=0, waits="write tensor-attribute")
def an_attribute_of_a_tensor_set_inside(compiled):
    @compiled
    def f(x):
        y = x + 1
        y.note = "made"
        x.seen = True
        return y

    for _ in range(3):
        x = steps(2)
        yield f(x).note, x.seen


LOCAL = threading.local()


@trap(traces=3, hits=2)
def a_thread_local_object(compiled):
    f = compiled(lambda x: x * LOCAL.k)
    for LOCAL.k in (1.0, 1.0, 2.0, 2.0):
        yield f(steps(2))


class Doubled(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        return result * 2 if func is torch.relu else result


@trap(traces=1, hits=1)
def a_torch_function_mode(compiled):
    f = compiled(lambda x: torch.relu(x) + 1)
    yield f(steps(2)), f(steps(2))
    for _ in range(2):
        with Doubled():
            yield f(steps(2))
    yield f(steps(2))


@trap(traces=3, hits=2)
def recursion(compiled):
    def power(x, n):
        return x if n == 0 else power(x * 2, n - 1)

    f = compiled(power)
    for n in (3, 2, 3, 0, 2):
        yield f(steps(2), n)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Output:
    hidden: Any
    kind: str = "plain"


@trap(traces=1, hits=3)
def named_tuples_and_dataclasses_returned(compiled):
    f = compiled(lambda x: (Pair(x + 1, x), Output(x * 2)))
    for k in range(4):
        pair, output = f(steps(2) + k)
        yield type(pair).__name__, pair.left, pair.right, type(output).__name__, output.hidden, output.kind


@trap(traces=1, hits=2)
def sets_and_their_iteration(compiled):
    @compiled
    def f(x):
        found = {3, 1, 2}
        found.add(5)
        for k in sorted(found):
            x = x * k
        return x, len(found), 3 in found

    for _ in range(3):
        yield f(ones(2))


class Near:
    def __init__(self, value: float) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Near) and abs(self.value - other.value) < 1


@trap(traces=4, hits=1)
def arguments_with_an_equality_of_their_own(compiled):
    f = compiled(lambda x, a, b: x + 1 if a == b else x - 1)
    for a, b in ((1.0, 1.5), (1.0, 3.0), (1.0, 1.5), (2.0, 2.0), (1.0, 3.0)):
        yield f(steps(2), Near(a), Near(b))


@trap(traces=7, hits=2)
def slices_and_an_ellipsis_as_arguments(compiled):
    f = compiled(lambda x, k: x[k] * 2)
    for k in (slice(1, 3), slice(1, 3), ..., slice(None), (..., slice(0, 2)), slice(0, 2), ..., None):
        yield f(torch.arange(12.0).reshape(3, 4), k)


@trap(traces=3, hits=2)
def an_insertion_into_a_default_dict(compiled):
    @compiled
    def f(x, table):
        table["k"].append(1)
        return x + len(table)

    for _ in range(3):
        table: Any = collections.defaultdict(list)
        yield f(steps(2), table), dict(table)


@trap(traces=3, hits=1)  # calls that cannot be bound count as declined
def star_arguments_keywords_and_walrus(compiled):
    @compiled
    def f(x, /, *rest, scale=2.0, **named):
        if (count := len(rest)) > 1:
            x = x + count
        return sum(rest, x * scale) + named.get("shift", 0)

    yield f(ones(2), ones(2))
    yield f(ones(2), ones(2) * 3)
    yield f(ones(2), ones(2), ones(2))
    yield f(ones(2), ones(2), scale=3.0)
    yield f(ones(2), ones(2), shift=1.0, scale=1.0)
    yield f(ones(2), ones(2), shift=2.0, scale=4.0)
    yield outcome(f, x=ones(2)), outcome(f)


@trap(traces=2, hits=3)
def a_subscript_of_a_class_with_a_method_for_it(compiled):
    class Sized:
        asked: list[Any] = []

        def __class_getitem__(cls, key):
            cls.asked.append(key)
            return cls.by * key

    f = compiled(lambda x, key: x * Sized[key])
    Sized.by = 2
    for number in range(5):
        if number == 3:
            Sized.by = 5
        yield f(steps(2) + number, 3), len(Sized.asked)


@trap(traces=3, hits=3)
def members_of_an_enumeration_with_attributes(compiled):
    made = []

    class Rate(enum.Enum):
        LOW = 1
        HIGH = 2

        def __init__(self, number):
            made.append(number)
            self.factor = number * 2.0

    f = compiled(lambda x, key: (x * Rate(1).factor, [rate.factor for rate in Rate], Rate[key].factor))
    for number in range(6):
        if number == 3:
            Rate.LOW.factor = 7.0
        yield f(steps(2) + number, "HIGH"), len(made), Rate.LOW.factor


@trap(traces=4, hits=3, fullgraph=True)
def functions_that_dispatch_on_a_class(compiled):
    @functools.singledispatch
    def scaled(value, x):
        raise TypeError(type(value).__name__)

    scaled.register(int, lambda value, x: x * value)
    scaled.register(torch.Tensor, lambda value, x: x + value)

    class Net:
        @functools.singledispatchmethod
        def part(self, value):
            return value

        @part.register
        def _(self, value: list):
            return [self.part(each) * 2 for each in value]

    net = Net()
    f = compiled(lambda x, value: (scaled(value, x), net.part([x, [x]])))
    for number, value in enumerate((2, 3, True, ones(2), 4, ones(2), 5)):
        if number == 6:
            scaled.register(int, lambda value, x: x - value)
        yield f(steps(2) + number, value)


@trap(traces=8, hits=2)
def functions_that_dispatch_on_abstract_classes(compiled):
    class Gate(metaclass=abc.ABCMeta):
        rate = 2

        @abc.abstractmethod
        def turned(self): ...

    class Turn(Gate):
        def turned(self):
            return self

    class Flip:
        rate = 3

    applied = functools.singledispatch(lambda gate, x: x)
    applied.register(Gate, lambda gate, x: x * gate.rate)
    f = compiled(lambda x, gate: applied(gate, x) + 1)
    for number, gate in enumerate((Turn(), Turn(), Flip(), Flip(), Flip(), Turn(), Turn())):
        if number == 4:
            Gate.register(Flip)  # which is looked up in a weak cache from now on
        yield f(steps(2) + number, gate)


@trap(traces=2, hits=2, fullgraph=True)
def modules_imported_by_name(compiled):
    module = types.ModuleType("module_that_a_test_made")
    module.rate = 2
    sys.modules[module.__name__] = module
    f = compiled(lambda x: x * importlib.import_module("module_that_a_test_made").rate)
    for number in range(4):
        if number == 2:
            sys.modules[module.__name__] = other = types.ModuleType(module.__name__)
            other.rate = 5
        yield f(steps(2) + number)
    del sys.modules[module.__name__]


@trap(traces=3, hits=3)
def an_ordered_dict_of_a_subclass_made_and_trimmed_inside(compiled):
    class Recent(collections.OrderedDict):
        def put(self, key, value):
            self[key] = value
            self.move_to_end(key)
            while len(self) > 2:
                self.popitem(last=False)

    class Line(collections.deque):
        pass

    def f(x, keys):
        made, line = Recent(), Line()
        for key in keys:
            made.put(key, x * len(key))
            line.append(key)
        line.appendleft("first")
        return made, type(made) is Recent, list(made), list(line), type(line) is Line, line.maxlen, line.popleft(), made

    f = compiled(f)
    for number in range(8):
        made, *others, again = f(torch.full((3,), float(number)), ("a", "bb", "a", "ccc")[: 3 + number % 2])
        made.put("late", number)
        yield list(made.items()), others, again is made, isinstance(made, collections.OrderedDict)


@trap(traces=6, hits=0)
def an_ordered_dict_that_keeps_its_entries_in_a_way_of_its_own(compiled):
    class Recent(collections.OrderedDict):
        def __setitem__(self, key, value):
            super().__setitem__(key, value)
            self.move_to_end(key)
            while len(self) > 2:
                self.popitem(last=False)

    def f(x, keys):
        made = Recent()
        for key in keys:
            made[key] = x * len(key)
        return made, list(made)

    f = compiled(f)
    for number in range(8):
        made, keys = f(torch.full((3,), float(number)), ("a", "bb", "a", "ccc")[: 3 + number % 2])
        made["late"] = number
        yield list(made.items()), keys, isinstance(made, collections.OrderedDict)


@TABLE.parametrize()
def test_python_means_what_it_means(trap: Trap) -> None:
    hold(trap)
