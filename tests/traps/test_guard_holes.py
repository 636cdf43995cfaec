"""One program for each way in which something that a call read can change behind compiled code's back."""

from __future__ import annotations

import abc
import builtins
import decimal
import enum
import fractions
import functools
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from tests.traps.trap import Table, Trap, hold, outcome
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

TABLE = Table()
trap = TABLE.trap
SHARED: Any = 2.0


def ones(*sizes: int) -> torch.Tensor:
    return torch.ones(*sizes)


def steps(*sizes: int) -> torch.Tensor:
    return torch.arange(float(torch.Size(sizes).numel())).reshape(sizes)


def linear() -> nn.Linear:
    model = nn.Linear(2, 2).requires_grad_(False)
    nn.init.ones_(model.weight)
    nn.init.ones_(model.bias)
    return model


class Plain:
    def __init__(self, **named: Any) -> None:
        self.__dict__.update(named)


# Aliasing ------------------------------------------------------------------------------------------------------------


@trap(traces=3, hits=3)
def the_identity_of_arguments_is_read(compiled):
    f = compiled(lambda a, b: a + 1 if a is b else a - b)
    for same in (False, True, False, True, False, True):
        a = ones(2)
        yield f(a, a if same else ones(2))


@trap(traces=3, hits=3)
def the_identity_of_an_argument_and_a_parameter_is_read(compiled):
    class M(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(ones(2), requires_grad=False)

        def forward(self, x):
            return x * 2 if x is self.w else x + self.w

    model = M()
    f = compiled(model)
    for own in (False, True, False, True, False, True):
        yield f(model.w if own else nn.Parameter(ones(2), requires_grad=False))


@trap(traces=2, hits=3)
def a_tensor_twice_in_one_list(compiled):
    @compiled
    def f(parts):
        parts[0].add_(1)
        return parts[1] * 2

    for same in (False, False, True, False, True, False):
        a = ones(2)
        parts = [a, a if same else ones(2)]
        yield f(parts), parts


@trap(traces=2, hits=3)
def a_tensor_in_a_list_and_as_an_argument(compiled):
    @compiled
    def f(x, table):
        x.mul_(3)
        return table["y"] + x

    for same in (False, False, True, False, False):
        x = ones(2)
        yield f(x, {"y": x if same else ones(2)}), x


@trap(traces=2, hits=2, waits="alias")
def views_of_one_tensor_of_which_one_is_written(compiled):
    @compiled
    def f(a, b):
        a.add_(10)
        return b + 1

    for overlap in (0, 0, 2, 0, 3, 0, 0):
        base = steps(8)
        yield f(base[:4], base[4 - overlap : 8 - overlap]), base


@trap(traces=4, hits=2)
def weights_written_through_parts_that_crossed_a_break(compiled):
    weights = [steps(4).requires_grad_(), steps(2).requires_grad_()]
    averages = [weight.detach().clone() for weight in weights]

    @compiled
    def f(x):
        kept = [average.detach() for average in averages]
        if kept[0].sum() > 1e6:
            return x
        for average, weight in zip(kept, weights, strict=True):
            average.lerp_(weight.detach(), 0.5)
        return x + averages[0] * 2, [average + 1 for average in averages]

    for place in range(6):
        with torch.no_grad():
            weights[0].add_(place)
        yield f(ones(4)), averages


@trap(traces=2, hits=1)
def an_argument_written_that_is_a_global_too(compiled):
    global SHARED
    SHARED = ones(2)

    @compiled
    def f(x):
        x.add_(1)
        return SHARED * 2

    for own in (False, False, True, False, True):
        yield f(SHARED if own else ones(2)), SHARED


# Hooks ---------------------------------------------------------------------------------------------------------------


@trap(traces=3, hits=3)
def hooks_before_a_module_come_and_go(compiled):
    model = linear()
    f = compiled(model)
    for _ in range(2):
        yield f(ones(1, 2))
    handle = model.register_forward_pre_hook(lambda module, args, kwargs: ((args[0] * 2,), kwargs), with_kwargs=True)
    for _ in range(2):
        yield f(ones(1, 2))
    handle.remove()
    for _ in range(2):
        yield f(ones(1, 2))


@trap(traces=2, hits=2)
def hooks_before_every_module_come_and_go(compiled):
    model = nn.Sequential(linear())
    f = compiled(model)
    for _ in range(2):
        yield f(ones(1, 2))
    handle = nn.modules.module.register_module_forward_pre_hook(lambda module, args: (args[0] + 1,))
    try:
        for _ in range(2):
            yield f(ones(1, 2))
    finally:
        handle.remove()
    yield f(ones(1, 2))


@trap(traces=2, hits=2)
def backward_hooks_come_and_go(compiled):
    model = linear()
    told: list[int] = []
    f = compiled(model)
    for _ in range(2):
        yield f(ones(1, 2)), list(told)
    handle = model.register_full_backward_pre_hook(lambda module, gradient: told.append(1))
    yield f(ones(1, 2).requires_grad_()), list(told)
    handle.remove()
    for _ in range(2):
        yield f(ones(1, 2)), list(told)


@trap(traces=2, hits=1)
def a_hook_that_is_an_object_changes(compiled):
    class Hook:
        k = 2.0

        def __call__(self, module: Any, args: Any, result: Any) -> Any:
            return result * self.k

    model, hook = linear(), Hook()
    model.register_forward_hook(hook)
    f = compiled(model)
    for _ in range(2):
        yield f(ones(1, 2))
    hook.k = 5.0
    yield f(ones(1, 2)), f(ones(1, 2))


# Classes -------------------------------------------------------------------------------------------------------------


@trap(traces=2, hits=2)
def a_method_of_a_base_class_replaced(compiled):
    class Base(nn.Module):
        def h(self, x):
            return x + 1

    class Child(Base):
        def forward(self, x):
            return self.h(x)

    f = compiled(Child())
    for _ in range(2):
        yield f(ones(2))
    Base.h = lambda self, x: x * 5
    for _ in range(2):
        yield f(ones(2))


@trap(traces=3, hits=3)
def the_forward_of_the_compiled_module_replaced(compiled):
    class M(nn.Module):
        def forward(self, x):
            return x + 1

    model = M()
    f = compiled(model)
    for _ in range(2):
        yield f(ones(2))
    M.forward = lambda self, x: x * 7
    for _ in range(2):
        yield f(ones(2))
    model.forward = lambda x: x - 9
    yield f(ones(2)), f(ones(2))


@trap(traces=3, hits=2)
def the_call_of_all_modules_replaced(compiled):
    model = nn.Sequential(linear())
    f = compiled(model)
    for _ in range(2):
        yield f(ones(1, 2))
    original = nn.Module._call_impl
    nn.Module._call_impl = lambda self, *args, **kwargs: original(self, *args, **kwargs) + 1
    try:
        yield f(ones(1, 2)), f(ones(1, 2))
    finally:
        nn.Module._call_impl = original
    yield f(ones(1, 2))


@trap(traces=2, hits=2)
def a_metaclass_changes(compiled):
    class Meta(type):
        @property
        def factor(cls):
            return 2.0

    class Model(metaclass=Meta):
        pass

    f = compiled(lambda x: x * Model.factor)
    for _ in range(2):
        yield f(ones(2))
    Meta.factor = property(lambda cls: 9.0)
    for _ in range(2):
        yield f(ones(2))


@trap(traces=3, hits=2)
def an_attribute_of_a_metaclass_changes(compiled):
    class Meta(type):
        factor = 2.0

    class Model(metaclass=Meta):
        pass

    f = compiled(lambda x: x * Model.factor)
    for _ in range(2):
        yield f(ones(2))
    Meta.factor = 9.0
    for _ in range(2):
        yield f(ones(2))
    Model.factor = 4.0
    yield f(ones(2)), f(ones(2))


@trap(traces=2, hits=2)
def the_bases_of_a_class_change(compiled):
    class A:
        def k(self):
            return 2.0

    class B:
        def k(self):
            return 5.0

    class C(A):
        pass

    one = C()
    f = compiled(lambda x: x * one.k())
    for _ in range(2):
        yield f(ones(2))
    C.__bases__ = (B,)
    for _ in range(2):
        yield f(ones(2))


@trap(traces=2, hits=2)
def the_class_of_an_object_replaced(compiled):
    class A(nn.Module):
        def forward(self, x):
            return x + 1

    class B(A):
        def forward(self, x):
            return x * 7

    inner = A()
    f = compiled(nn.Sequential(inner))
    for _ in range(2):
        yield f(ones(2))
    inner.__class__ = B
    for _ in range(2):
        yield f(ones(2))


@trap(traces=2, hits=2)
def the_dict_of_an_object_replaced(compiled):
    held = Plain(k=ones(2), n=2.0)
    f = compiled(lambda x: x * held.k + held.n)
    for _ in range(2):
        yield f(ones(2))
    held.__dict__ = {"k": ones(2) * 5, "n": 7.0}
    for _ in range(2):
        yield f(ones(2))


@trap(traces=2, hits=2)
def an_instance_attribute_appears_over_the_class(compiled):
    class A:
        k = 2.0

    held = A()
    f = compiled(lambda x: x * held.k)
    for _ in range(2):
        yield f(ones(2))
    held.k = 5.0
    for _ in range(2):
        yield f(ones(2))
    del held.k
    yield f(ones(2))


@trap(traces=3, hits=2)
def what_getattr_found_appears_as_an_attribute(compiled):
    class A:
        def __getattr__(self, name):
            if name == "k":
                return 2.0
            raise AttributeError(name)

    held = A()
    f = compiled(lambda x: x * held.k)
    for _ in range(2):
        yield f(ones(2))
    held.k = 5.0
    for _ in range(2):
        yield f(ones(2))
    del held.k
    A.k = 7.0
    yield f(ones(2)), f(ones(2))


@trap(traces=2, hits=2)
def a_getattribute_appears_on_a_class(compiled):
    class A:
        def __init__(self) -> None:
            self.k = 2.0

    held = A()
    f = compiled(lambda x: x * held.k)
    for _ in range(2):
        yield f(ones(2))
    A.__getattribute__ = lambda self, name: 9.0 if name == "k" else object.__getattribute__(self, name)
    for _ in range(2):
        yield f(ones(2))


@trap(traces=2, hits=2)
def a_property_replaces_an_attribute(compiled):
    class A:
        def __init__(self) -> None:
            self.k = 2.0

    held = A()
    f = compiled(lambda x: x * held.k)
    for _ in range(2):
        yield f(ones(2))
    A.k = property(lambda self: 11.0)
    for _ in range(2):
        yield f(ones(2))


@trap(traces=3, hits=2)
def slots_of_an_object_change(compiled):
    class A:
        __slots__ = ("k",)

    held = A()
    held.k = 2.0
    f = compiled(lambda x: x * held.k)
    for k in (2.0, 2.0, 3.0, 3.0, 4.0):
        held.k = k
        yield f(ones(2))


class Counted:
    """A data descriptor that counts its reads."""

    def __init__(self) -> None:
        self.reads = 0

    def __get__(self, holder: Any, owner: Any = None) -> Any:
        self.reads += 1
        return self.reads * holder.k

    def __set__(self, holder: Any, value: Any) -> None:
        holder.k = value


@trap(traces=3, hits=2)
def a_descriptor_that_counts_its_reads(compiled):
    class A:
        value = Counted()

        def __init__(self) -> None:
            self.k = 2.0

    held = A()
    f = compiled(lambda x: x * held.value)
    for _ in range(5):
        yield f(ones(2)), vars(A)["value"].reads
    held.value = 3.0
    yield f(ones(2)), vars(A)["value"].reads


@trap(traces=3, hits=2)
def static_and_class_methods_replaced(compiled):
    class A:
        @staticmethod
        def s(x):
            return x + 1

        @classmethod
        def c(cls, x):
            return x * 2

    f = compiled(lambda x: A.s(x) + A().c(x))
    for _ in range(2):
        yield f(ones(2))
    A.s = staticmethod(lambda x: x + 5)
    for _ in range(2):
        yield f(ones(2))
    A.c = classmethod(lambda cls, x: x * 9)
    yield f(ones(2)), f(ones(2))


@trap(traces=2, hits=2)
def a_class_registered_with_an_abstract_one(compiled):
    class Abstract(abc.ABC):  # noqa: B024
        pass

    class A:
        pass

    held = A()
    f = compiled(lambda x: x + 1 if isinstance(held, Abstract) else x - 1)
    for _ in range(2):
        yield f(ones(2))
    Abstract.register(A)
    for _ in range(2):
        yield f(ones(2))


@trap(traces=2, hits=2)
def the_truth_and_length_of_an_object_change(compiled):
    class A:
        def __init__(self) -> None:
            self.n = 1

        def __len__(self):
            return self.n

    held = A()
    f = compiled(lambda x: x * len(held) if held else x - 1)
    for n in (1, 1, 0, 0, 1, 0):
        held.n = n
        yield f(ones(2))


# Values --------------------------------------------------------------------------------------------------------------


@trap(traces=12, hits=12)
def a_bool_an_int_and_a_float_in_an_attribute(compiled):
    held = Plain(k=1)
    f = compiled(lambda x: x * held.k)
    for k in (1, True, 1.0, 0, False, 0.0, -0.0, 1, True, 1.0, 0, -0.0):
        held.k = k
        yield f(torch.ones(2, dtype=torch.int32)), f(ones(2) / 2)


@trap(traces=4, hits=4)
def a_bool_an_int_and_a_float_in_containers(compiled):
    f = compiled(lambda x, table, row: (x * table["k"], x + row[0]))
    for k in (1, True, 1.0, 2, 1, True, 1.0, 3):
        yield f(torch.ones(2, dtype=torch.int32), {"k": k}, (k, 0))


@trap(traces=2, hits=3)
def nan_in_an_attribute(compiled):
    held = Plain(k=float("nan"))
    f = compiled(lambda x: x + held.k)
    for k in (float("nan"), float("nan"), 2.0, 3.0, float("nan")):
        held.k = k
        yield f(ones(2))


@trap(traces=4, hits=2)
def complex_arguments_with_nan_parts(compiled):
    f = compiled(lambda x, k: x * k)
    x = torch.ones(2, dtype=torch.complex64)
    nan = float("nan")
    for k in (complex(nan, 1), complex(nan, 1), complex(nan, 2), complex(nan, 2), complex(0.0, 1), complex(-0.0, 1)):
        yield torch.view_as_real(f(x, k))


class Name(str):
    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = str.__hash__


@trap(traces=4, hits=2)
def strings_and_their_subclasses(compiled):
    f = compiled(lambda x, name: x + 1 if name == "relu" else x - 1)
    for name in ("relu", "relu", "gelu", "gelu", Name("gelu"), Name("relu"), "relu", Name("other")):
        yield f(ones(2), name)


class Mode(enum.Enum):
    MEAN = "mean"
    SUM = "sum"


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@trap(traces=5, hits=4)
def enums(compiled):
    f = compiled(lambda x, mode: x.sum() if mode is Mode.SUM or mode == Level.HIGH else x.mean() * mode.value)
    for mode in (Mode.SUM, Level.LOW, Mode.SUM, Level.HIGH, Level.LOW, Level.HIGH, Mode.SUM):
        yield f(ones(4), mode)


@trap(traces=8, hits=0, waits="numpy native-call argument")
def numpy_scalars(compiled):
    f = compiled(lambda x, k: x * k + 1)
    for k in (2.0, np.float64(2.0), np.float64(3.0), np.float32(2.0), np.int64(3), np.bool_(True), 3.0):
        yield f(ones(2), k)


@trap(traces=7, hits=2)
def numpy_scalars_against_floats_in_a_branch(compiled):
    """NumPy's comparison is a step; a start for each of four classes, and the ways behind True and False."""
    f = compiled(lambda x, k: x + 1 if k > 2 else x - 1)
    for k in (np.float64(3.0), 1.0, np.float64(1.0), 3.0, np.int32(1), 3, np.float64(5.0)):
        yield f(ones(2), k)


@trap(traces=5, hits=0, waits="native-call argument")
def fractions_and_decimals(compiled):
    f = compiled(lambda x, k: x + 1 if k > 1 else x - 1)
    for k in (fractions.Fraction(3, 2), fractions.Fraction(1, 2), decimal.Decimal("1.5"), decimal.Decimal("0.5")):
        yield f(ones(2), k), f(ones(2), k)


@trap(traces=3, hits=3)
def large_ints_in_an_attribute(compiled):
    held = Plain(k=2**70)
    f = compiled(lambda x: x + held.k % 7)
    for k in (2**70, 2**70, 2**70 + 1, 2**70 + 1, 5, 5):
        held.k = k
        yield f(ones(2))


# Names ---------------------------------------------------------------------------------------------------------------


@trap(traces=2, hits=2)
def a_builtin_shadowed_by_a_global(compiled):
    space: dict[str, Any] = {"__name__": "user"}
    exec("def f(x, parts):\n    return x * len(parts)", space)
    f = compiled(space["f"])
    for _ in range(2):
        yield f(ones(2), [1, 2])
    space["len"] = lambda parts: 50
    for _ in range(2):
        yield f(ones(2), [1, 2])
    del space["len"]
    yield f(ones(2), [1, 2])


@trap(traces=2, hits=2)
def a_builtin_replaced_for_all(compiled):
    f = compiled(lambda x, parts: x * abs(parts[0]))
    for _ in range(2):
        yield f(ones(2), [-3])
    original = builtins.abs
    builtins.abs = lambda value: 50
    try:
        yield f(ones(2), [-3]), f(ones(2), [-3])
    finally:
        builtins.abs = original
    yield f(ones(2), [-3])


@trap(traces=3, hits=2)
def the_cell_of_a_closure_replaced(compiled):
    k: Any = 2.0

    def inner(x):
        return x * k

    f = compiled(inner)
    for _ in range(2):
        yield f(ones(2))
    inner.__closure__[0].cell_contents = 3.0
    for _ in range(2):
        yield f(ones(2))
    inner.__closure__[0].cell_contents = ones(2) * 9
    yield f(ones(2)), f(ones(2))


@trap(traces=2, hits=2)
def the_same_code_with_other_closures(compiled):
    def make(k: float) -> Any:
        def inner(x):
            return x * k

        return inner

    f = compiled(lambda x, function: function(x) + 1)
    for k in (2.0, 2.0, 3.0, 2.0, 4.0, 5.0):
        yield f(ones(2), make(k))


@trap(traces=4, hits=4)
def functions_passed_as_arguments(compiled):
    f = compiled(lambda x, function: function(x) + 1)
    for function in (torch.relu, torch.sigmoid, torch.relu, F.relu, F.relu, helper, helper, torch.sigmoid):
        yield f(ones(2), function)


def helper(x):
    return x * 3


@trap(traces=3, hits=2)
def partials_passed_as_arguments(compiled):
    f = compiled(lambda x, function: function(x) + 1)
    for k in (2.0, 2.0, 3.0, 2.0):
        yield f(ones(2), functools.partial(torch.mul, other=ones(2) * k))
        yield f(ones(2), functools.partial(torch.add, ones(2) * k))


@trap(traces=2, hits=2)
def bound_methods_passed_as_arguments(compiled):
    class A:
        def __init__(self, k: Any) -> None:
            self.k = k

        def h(self, x):
            return x * self.k

    f = compiled(lambda x, function: function(x) + 1)
    for k in (ones(2), ones(2) * 2, ones(2) * 3):
        yield f(ones(2), A(k).h)


# Modules -------------------------------------------------------------------------------------------------------------


@trap(traces=4, hits=4)
def the_children_of_a_sequence_change(compiled):
    model = nn.Sequential(linear(), nn.ReLU())
    f = compiled(model)
    for _ in range(2):
        yield f(steps(1, 2))
    model.append(nn.Tanh())
    for _ in range(2):
        yield f(steps(1, 2))
    model[1] = nn.Sigmoid()
    for _ in range(2):
        yield f(steps(1, 2))
    del model[2]
    for _ in range(2):
        yield f(steps(1, 2))


@trap(traces=2, hits=2)
def a_parameter_becomes_none(compiled):
    model = linear()
    f = compiled(model)
    for _ in range(2):
        yield f(steps(1, 2))
    model.bias = None
    for _ in range(2):
        yield f(steps(1, 2))


@trap(traces=3, hits=4)
def lists_and_dicts_of_parameters_change(compiled):
    class M(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rows = nn.ParameterList([nn.Parameter(ones(2), requires_grad=False)])
            self.named = nn.ModuleDict({"a": nn.ReLU()})

        def forward(self, x):
            for row in self.rows:
                x = x + row
            for layer in self.named.values():
                x = layer(x)
            return x

    model = M()
    f = compiled(model)
    for _ in range(2):
        yield f(ones(2))
    model.rows.append(nn.Parameter(ones(2) * 5, requires_grad=False))
    for _ in range(2):
        yield f(ones(2))
    model.named["b"] = nn.Tanh()
    for _ in range(2):
        yield f(ones(2))
    model.rows[0] = nn.Parameter(ones(2) * 9, requires_grad=False)
    yield f(ones(2))


@trap(traces=3, hits=3)
def a_buffer_replaced_and_retyped(compiled):
    class M(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("b", ones(2))

        def forward(self, x):
            return x * self.b

    model = M()
    f = compiled(model)
    for b in (ones(2), ones(2) * 2, ones(1) * 3, ones(1) * 4, ones(2).double(), ones(2).double() * 2):
        model.b = b
        yield f(ones(2))


@trap(traces=2, hits=2)
def a_parametrization_registered_later(compiled):
    class Doubled(nn.Module):
        def forward(self, w):
            return w * 2

    model = linear()
    f = compiled(nn.Sequential(model))
    for _ in range(2):
        yield f(steps(1, 2))
    nn.utils.parametrize.register_parametrization(model, "weight", Doubled())
    for _ in range(2):
        yield f(steps(1, 2))


@trap(traces=3, hits=2)
def one_child_in_another_mode(compiled):
    model = nn.Sequential(nn.Dropout(0.5), nn.Dropout(0.5))
    f = compiled(model)
    for first, second in ((True, True), (True, False), (False, False), (True, True), (True, False)):
        model[0].train(first)
        model[1].train(second)
        yield f(ones(6))


# The state of torch --------------------------------------------------------------------------------------------------


class Logging(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@trap(traces=1, hits=2)
def a_dispatch_mode(compiled):
    f = compiled(lambda x: torch.relu(x) + 1)
    for _ in range(2):
        yield f(steps(3))
    with Logging() as mode:
        yield f(steps(3)), list(mode.names)
        yield f(steps(3)), list(mode.names)
    yield f(steps(3))


@trap(traces=1, hits=2)
def a_default_device_by_a_with_block(compiled):
    f = compiled(lambda n: torch.zeros(2) + n)
    for _ in range(3):
        yield f(1.0)
        with torch.device("meta"):
            yield f(1.0).device.type


@trap(traces=3, hits=9)
def a_default_device_is_a_fact(compiled):
    f = compiled(lambda x: (x * torch.arange(x.shape[0]) + torch.ones(1), torch.get_default_device().type))
    for _ in range(3):
        yield f(steps(3))
        with torch.device("cpu"):
            yield f(steps(4))
            x = steps(5).requires_grad_()
            torch.relu(f(x)[0]).sum().backward()
            yield x.grad
    try:
        torch.set_default_device("cpu")
        yield f(steps(6))
        with Logging() as mode:
            yield f(steps(6)), list(mode.names)
        yield f(steps(7))
    finally:
        torch.set_default_device(None)
    yield f(steps(8))


@trap(traces=2, hits=3)
def anomaly_mode(compiled):
    f = compiled(lambda x: torch.relu(x) + 1)
    for _ in range(2):
        yield f(steps(3))
        with torch.autograd.set_detect_anomaly(True):
            yield f(steps(3))
            x = steps(3).requires_grad_()
            f(x).sum().backward()
            yield x.grad


@trap(traces=3, hits=2)
def the_precision_of_products_is_read(compiled):
    f = compiled(lambda x: x + 1 if torch.get_float32_matmul_precision() == "highest" else x - 1)
    before = torch.get_float32_matmul_precision()
    try:
        for precision in ("highest", "highest", "high", "high", "highest"):
            torch.set_float32_matmul_precision(precision)
            yield f(ones(2))
    finally:
        torch.set_float32_matmul_precision(before)


@trap(traces=3, hits=1)
def the_flags_of_backends_are_read(compiled):
    f = compiled(lambda x: x + 1 if torch.backends.mkldnn.enabled else x - 1)
    for on in (True, True, False, False, True):
        with torch.backends.mkldnn.flags(enabled=on):
            yield f(ones(2))


@trap(traces=2, hits=2)
def the_cache_of_autocast(compiled):
    weight = ones(3, 3)
    f = compiled(lambda x: x @ weight)
    for on in (True, False, True, False):
        with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=on):
            yield f(ones(2, 3))


@trap(traces=3, hits=3)
def the_kind_of_a_grad_mode(compiled):
    f = compiled(lambda x: (x * 2, torch.is_grad_enabled(), torch.is_inference_mode_enabled()))
    for manager in (torch.no_grad, torch.inference_mode, torch.enable_grad) * 2:
        with manager():
            yield f(ones(2))


# Tensors -------------------------------------------------------------------------------------------------------------


class Sub(torch.Tensor):
    pass


@trap(traces=3, hits=6)
def the_class_of_a_tensor(compiled):
    f = compiled(lambda x: x * 2 + 1)
    parameters = [nn.Parameter(ones(2), False) for _ in range(5)]
    for x in (ones(2), ones(2), ones(2).as_subclass(Sub), *parameters, ones(2)):
        made = f(x)
        yield type(made).__name__, made.as_subclass(torch.Tensor)


@trap(traces=5, hits=4)
def the_dtype_of_an_argument(compiled):
    f = compiled(lambda x: x * 2 + 1)
    for dtype in (torch.float32, torch.float64, torch.int64, torch.bool, torch.float16) * 2:
        yield f(torch.tensor([0, 1, 1], dtype=dtype))


@trap(traces=7, hits=6)
def the_memory_format_of_an_argument(compiled):
    f = compiled(lambda x: (x * 2).relu())
    for _ in range(2):
        for size in (1, 3):
            x = steps(2, 3, size, size)
            yield f(x)
            yield f(x.contiguous(memory_format=torch.channels_last))
            yield f(x.transpose(0, 1))
            yield f(x[:, :2])


@trap(traces=4, hits=8)
def sizes_zero_and_one(compiled):
    f = compiled(lambda x, y: x + y)
    for a, b in ((3, 3), (3, 1), (1, 3), (0, 0), (0, 1), (1, 1), (5, 5), (5, 1), (1, 0), (1, 7), (2, 2), (9, 1)):
        yield f(steps(2, a), steps(2, b))


@trap(traces=2, hits=4)
def the_offset_and_alignment_of_storage(compiled):
    f = compiled(lambda x: x * 2 + 1)
    base = steps(40)
    for start in (0, 1, 3, 7, 4, 5):
        yield f(base[start : start + 17])
    raw = torch.zeros(65, dtype=torch.uint8)[1:].view(torch.uint8)
    yield f(raw[:8])


@trap(traces=3, hits=5)
def steps_between_elements_of_which_short_ones_are_constants(compiled):
    f = compiled(lambda x: x * 2 + 1)
    base = steps(90)
    for step in (2, 3, 5, 2, 3, 7, 6, 9):
        yield f(base[step::step])


@trap(traces=3, hits=2)
def an_expanded_input_written_elsewhere(compiled):
    f = compiled(lambda x: x.sum(0) + x)
    for x in (steps(1, 3).expand(4, 3), steps(1, 3).expand(5, 3), steps(4, 3), steps(3).expand(2, 3), steps(2, 3)):
        yield f(x)


@trap(traces=2, hits=2)
def requires_grad_of_an_argument_that_is_read(compiled):
    f = compiled(lambda x, y: x + 1 if y.requires_grad else x - 1)
    with torch.no_grad():
        for on in (False, True, False, True):
            yield f(ones(2), ones(2).requires_grad_(on))


@trap(traces=2, hits=2)
def the_leaf_state_of_an_argument(compiled):
    f = compiled(lambda x: x.detach() + 1 if x.is_leaf else x.detach() - 1)
    for k in range(4):
        x = ones(2).requires_grad_()
        yield f(x if k % 2 else x * 1)


@trap(traces=2, hits=2)
def an_attribute_of_a_tensor_appears(compiled):
    f = compiled(lambda x: x + 1 if hasattr(x, "mark") else x - 1)
    for on in (False, False, True, True, False, True):
        x = ones(2)
        if on:
            x.mark = 1
        yield f(x)


@trap(traces=2, hits=2)
def a_missing_attribute_appears(compiled):
    held = Plain(a=1)
    f = compiled(lambda x: x + getattr(held, "k", 1.0))
    for _ in range(2):
        yield f(ones(2))
    held.k = 5.0
    for _ in range(2):
        yield f(ones(2))


@trap(traces=1, hits=0)  # calls that cannot be bound count as declined
def an_argument_that_is_missing(compiled):
    f = compiled(lambda x, y: x + y)
    yield f(ones(2), ones(2))
    yield outcome(f, ones(2)), outcome(f, ones(2), y=1, z=3), outcome(f, ones(2), "text")
    yield f(ones(2), ones(2))


@TABLE.parametrize()
def test_change_is_seen(trap: Trap) -> None:
    hold(trap)
