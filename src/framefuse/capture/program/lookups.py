"""Looks attributes up along the classes of an object, without running what lies there."""

from __future__ import annotations

import abc
import functools
import operator
import threading
import types
from collections.abc import KeysView

from framefuse.capture.program.host import HOST
from framefuse.capture.program.leaves import runs_natively
from framefuse.capture.program.markers import MISSING
from framefuse.capture.program.special_methods import by_name
from framefuse.ir.classes import immutable
from framefuse.ir.containers import BASES
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value

HOLDING = (*BASES, bytearray)

# An MRO, and each of its classes with a view of the names in its dict.
Lookup = tuple[tuple[type, ...], tuple[tuple[type, KeysView[str]], ...]]


class Lookups(threading.local):
    """The types whose attributes the recording of this thread looked up, each with its MRO and the names along it."""

    def __init__(self) -> None:
        self.types: dict[type, Lookup] = {}

    def note(self, kind: type) -> Lookup:
        """Attributes of ``kind`` are looked up."""
        order = kind.__mro__
        noted = self.types[kind] = (order, tuple([(base, base.__dict__.keys()) for base in order]))
        return noted

    def names(self, kind: type) -> tuple[tuple[type, KeysView[str]], ...]:
        """The classes along the MRO of ``kind``, each with a view of the names in its dict."""
        known = self.types.get(kind)
        if known is None or known[0] is not kind.__mro__:
            known = self.note(kind)
        return known[1]


LOOKUPS = Lookups()


def type_get(kind: type, name: str) -> Value:
    """The attribute as it lies on the MRO, without descriptors applied; MISSING if there is none."""
    if kind not in LOOKUPS.types:
        LOOKUPS.note(kind)
    return HOST.type_lookup(kind, name, MISSING)


def has_finalizer(kind: type) -> bool:
    """Whether Python code runs when an instance ends, which a recording and compiled code would hold longer."""
    return type(type_get(kind, "__del__")) is types.FunctionType


# What lies on classes and is no code of a program.
OF_C = frozenset(
    (type(MISSING), type(None), types.WrapperDescriptorType, types.MethodDescriptorType, types.BuiltinFunctionType,
     types.GetSetDescriptorType, types.MemberDescriptorType, types.ClassMethodDescriptorType)
)  # fmt: skip
HOLDING_FUNCTIONS = {
    staticmethod: "__func__", classmethod: "__func__", property: "fget", functools._lru_cache_wrapper: "__wrapped__",
    functools.partialmethod: "func", functools.singledispatchmethod: "func",
}  # fmt: skip


def python_method(kind: type, name: str) -> types.FunctionType | None:
    """The Python function behind a special method, if the interpreter must run it; one that stands for it where it is
    no function but runs the program.
    """
    method = type_get(kind, name)
    if type(method) is types.FunctionType:
        return method if not runs_natively(method) else None
    return by_name(name) if type(method) not in OF_C and _is_of_the_program(method) else None


RUN = ("__call__", "__get__")


def _is_of_the_program(method: Value) -> bool:
    held = HOLDING_FUNCTIONS.get(type(method))
    if held is not None:
        return runs_program(getattr(method, held))
    return runs_program(method) or any(type(type_get(type(method), name)) is types.FunctionType for name in RUN)


def goes_by_index(kind: type) -> bool:
    """Whether ``iter`` of an instance calls ``__getitem__`` of the program."""
    return python_method(kind, "__getitem__") is not None and type_get(kind, "__iter__") is MISSING


def is_plain_sequence(kind: type) -> bool:
    """Whether what iterates over instances gets their elements, unheard: lists, tuples and named tuples."""
    if kind is list or kind is tuple:
        return True
    own = issubclass(kind, tuple) and type_get(kind, "__iter__") is tuple.__iter__
    return own and not immutable(kind) and not is_measured(kind)


def is_measured(kind: type) -> bool:
    """Whether C, which asks an iterable how long it may be before it fills a list or tuple, calls the program."""
    return python_method(kind, "__len__") is not None or python_method(kind, "__length_hint__") is not None


META_BASES = (type, abc.ABCMeta, object)


def is_python_metaclass(meta: type) -> bool:
    """Whether a metaclass makes classes by Python that the interpreter runs and the steps of ``type.__new__``."""
    own = [base for base in meta.__mro__ if base not in META_BASES]
    if any(name in vars(base) and not _interpreted(vars(base)[name]) for base in own for name in HOOKS):
        return False
    return python_method(type(meta), "__call__") is None


HOOKS = ("__new__", "__init__", "__prepare__", "__call__", "mro")


def _interpreted(attribute: Value) -> bool:
    function = getattr(attribute, "__func__", attribute)
    return type(function) is types.FunctionType and not runs_natively(function)


# What functools.cmp_to_key makes: neither it nor what it makes of a value tells which function it calls.
COMPARING = type(functools.cmp_to_key(lambda left, right: 0))


def runs_program(value: Value, classes: bool = True) -> bool:
    """Whether to call ``value`` runs code of the program: a function, what holds one, an object with ``__call__``, or a
    class (where ``classes`` are asked for) whose instances are made by Python.
    """
    kind = type(value)
    if kind is types.FunctionType:
        return not runs_natively(value)
    if kind is types.MethodType:
        return runs_program(value.__func__)
    if kind is functools.partial:
        return runs_program(value.func)
    if is_a(value, type):
        makers = (python_method(kind, "__call__"), python_method(value, "__new__"), python_method(value, "__init__"))
        return classes and any(maker is not None for maker in makers)
    if kind is types.MethodWrapperType and value.__name__ == "__call__":
        return runs_program(value.__self__)
    if kind is types.BuiltinFunctionType or kind is types.MethodWrapperType:  # reads or changes what lies in its owner
        return is_a(value.__self__, HOLDING)
    return kind is COMPARING or kind is operator.methodcaller or python_method(kind, "__call__") is not None
