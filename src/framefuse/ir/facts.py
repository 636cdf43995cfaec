"""Says what a trace assumed: sources (how a value is reached at call time) and facts about them.

A source is a path from a root. Roots are arguments of the call (in the order of the bound locals: positional and
keyword-only parameters, then ``*args`` as one tuple, then ``**kwargs`` as one dict) and long-lived objects held by the
compiled code (the function itself, a module that owns the compiled code, types, Python modules). The recorder holds no
argument: facts and inputs below an argument are paths, re-read at each call.
"""

from __future__ import annotations

import types
from collections.abc import Mapping, Sequence
from dataclasses import field

from framefuse.ir.comparisons import RealRelation, Relation
from framefuse.ir.dtypes import DType
from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.numbers import Expr, Real, Symbol, Whole
from framefuse.ir.source import Line
from framefuse.ir.values import Value


# A recording makes thousands of sources and facts: a frozen class would take three times as long to make one.
@dataclass(slots=True, eq=False, init=False)
class Source:
    """How a value is reached: ``kind`` is a row of :data:`KINDS`, ``base`` the source of the holder, ``key`` the
    index, name or object. ``is_argument`` is true when the path starts at an argument, so that the objects on it change
    from call to call. No source is ever changed.
    """

    kind: str
    base: Source | None
    key: Value
    is_argument: bool = field(repr=False)
    _hash: int | None = field(repr=False)  # once it was asked for: it walks the path

    def __init__(self, kind: str, base: Source | None = None, key: Value = None) -> None:
        self.kind = kind
        self.base = base
        self.key = key
        self._hash = None
        if kind == "arg" or (base is not None and base.is_argument):
            self.is_argument = True
        else:
            self.is_argument = kind == "entry" and key.is_argument

    @property
    def root(self) -> Source:
        """The first source of the path."""
        here = self
        while here.base is not None:
            here = here.base
        return here

    def __str__(self) -> str:
        if self.base is None:
            return f"args[{self.key}]" if self.kind == "arg" else getattr(self.key, "__name__", type(self.key).__name__)
        if self.kind == "cell" and isinstance(self.base.key, types.FunctionType):
            return str(self.base.key.__code__.co_freevars[self.key])
        return KINDS[self.kind].format(
            base=self.base, key=self.key if self.kind in PLAIN_KEYS else repr(self.key)
        )

    def __hash__(self) -> int:
        if self._hash is None:
            mark = id(self.key) if self.kind == "object" else _hashable(self.key)
            self._hash = hash((self.kind, self.base, mark))
        return self._hash

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Source) or self.kind != other.kind or self.base != other.base:
            return False
        if self.kind == "object":
            return self.key is other.key
        return type(self.key) is type(other.key) and bool(self.key == other.key)


def extent(container: Source) -> Source:
    """Stands, among places that move, for the length or the keys of a container."""
    return Source("extent", container)


def all_numbers(container: Source) -> Source:
    """Stands, among places that move, for every number that is an element of a list or deque."""
    return Source("numbers", container)


def looked_at(number: Source) -> Source:
    """Stands, among places that move, for a number that trace after trace was held to another value."""
    return Source("looked", number)


def _hashable(key: Value) -> Value:
    return key if isinstance(key, (str, int, float, bool, bytes, type(None), tuple)) else id(key)


PLAIN_KEYS = frozenset(("attr", "type_attr", "getattr", "global", "entry"))
# How each kind prints; the reader of each kind is in guards.
KINDS: dict[str, str] = {
    "arg": "args[{key}]",  # root: index into the bound arguments
    "object": "{key}",  # root: a long-lived object, by identity
    "dict": "{base}.__dict__",  # the instance dict of the holder (key None)
    "attr": "{base}.{key}",  # holder.__dict__[key]
    # dict entry by key (exact str, int, bool, None or tuple of them), or list/tuple/deque element by index, from the
    # end where it is negative
    "item": "{base}[{key}]",
    "entry": "{base}[{key}]",  # holder is a dict: its entry for a tensor as key, found by identity (key: its Source)
    "global": "{key}",  # holder is a function: its __globals__[key], else its builtins[key]
    "cell": "{base}.<cell {key}>",  # holder is a function: its __closure__[key].cell_contents
    "type": "type({base})",  # the type of the holder
    "type_attr": "type({base}).{key}",  # holder is a type: attribute found along its MRO, without descriptors applied
    "getattr": "{base}.{key}",  # plain getattr: C members, slots, properties of torch objects; must be free of effects
    "context": "{base}.get()",  # holder is a context variable: what it was set to, in the context of the call
    "func": "{base}.__func__",  # holder is a bound method
    "self": "{base}.__self__",  # holder is a bound method
    "grad": "{base}.grad",  # holder is a tensor
    "extent": "len({base})",  # never read: see extent
    "numbers": "{base}[...]",  # never read: see all_numbers
    "looked": "{base}",  # never read: see looked_at
}


@dataclass(slots=True, unsafe_hash=True)
class Fact:
    """One thing that was true of ``source`` and that the trace depends on. ``kind`` is a row of :data:`FACTS`;
    ``line`` asked for it. No fact is ever changed.
    """

    source: Source
    kind: str
    value: Value = None
    line: Line | None = None

    def __str__(self) -> str:
        return FACTS[self.kind].format(source=self.source, value=self.value)


FACTS: dict[str, str] = {
    # identity with a long-lived object (functions, types, modules, containers, None, True, False, dtypes...)
    "is": "{source} is {value!r}",
    "type": "type({source}) is {value.__name__}",  # exact type
    "int": "{source} == {value}",  # exact type int (or bool for bool values) and equal value, any size
    "float": "{source} == {value!r}",  # exact type float and equal bits (-0.0 differs from 0.0, NaN equals itself)
    "str": "{source} == {value!r}",  # exact type str (or bytes, complex) and equal
    # a string as an argument; value: (function, arguments before it, arguments behind it, what the function gave)
    "answer": "{value[0].__name__}{value[2]} of {source} is {value[3]!r}",
    "length": "len({source}) == {value}",  # list, tuple, dict, set, deque
    "keys": "list({source}) == {value}",  # dict keys or set members in order, exact atoms
    "absent": "{value!r} not in {source}",  # a dict or set without that key
    "present": "{value!r} in {source}",
    "type_absent": "{source} has no {value}",  # a type whose MRO lacks that name
    # value: names that the instance dict lacks, and names of empty dicts of C code in it
    "bare": "{source} has no {value[0]} of its own, and nothing in {value[1]}",
    "unset": "{source} is unset",  # an empty cell, or absent attribute reached by getattr
    "tensor": "{source} is {value}",  # value: TensorSpec
    # exact type int; value: Symbol that takes the value at run time (must fit 64 bits)
    "integer": "{source} is int {value}",
    "count": "len({source}) is {value}",  # list, dict, set, deque, str; value: Symbol that takes the length at run time
    "real": "{source} is float {value}",  # exact type float; value: name of the Real symbol that takes the value
    # a tensor of the CPU without dimensions, of float32, float64 or int64; value: name of the Real symbol or the Symbol
    # that takes its value
    "scalar": "{source}.item() is {value}",
    "address": "id({source}) is int {value}",  # value: Symbol that takes the id of the object at run time
    # a Python function; value: (code, defaults, kwdefaults) by identity
    "code": "{source} has the code, defaults and closure seen",
    "same": "{source} is {value}",  # value: another Source that gives the identical object
    "different": "{source} is not {value}",  # value: another Source that gives a different object
    "disjoint": "{source} and {value} share no memory",  # two tensors; value: the other Source
    # tensors; value: (Sources of those that are written, Sources of others)
    "apart": "{source} and other written tensors share no memory with any input",
    "distinct": "{source} and others are different objects",  # value: the other Sources; no two give the same object
    "version": "attributes of {source} unchanged",  # a type (long-lived): nothing on its MRO was assigned since
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """What must hold of an input tensor for a trace to be used.

    ``type`` is the exact Python type (Tensor or Parameter); ``keys`` the dispatch key set's raw bits, which exclude
    every special kind of tensor; ``sizes`` hold a Symbol per dimension that is free (bound from this tensor at run
    time) or an int that must be equal; ``order`` is the permutation of dimensions, outermost first, in which the
    tensor is dense (strides as computed from its sizes; strides of dimensions of size 1 or less are not looked at, nor
    any when it has no element), or None, when ``strides`` gives each stride as an int that must be equal or a Symbol
    that is free. ``requires_grad`` False is required when True is not stated: with grad mode off the flag is not
    looked at (None).
    """

    type: type
    keys: int
    dtype: DType
    device: str
    sizes: tuple[Symbol | int, ...]
    order: tuple[int, ...] | None
    strides: tuple[Symbol | int, ...] | None
    requires_grad: bool | None = None

    def __str__(self) -> str:
        layout = (
            ""
            if self.order == tuple(range(len(self.sizes)))
            else f" order {self.order}"
            if self.order
            else f" strides {self.strides}"
        )
        return f"{self.dtype}[{', '.join(map(str, self.sizes))}]{layout} {self.device}"


def before_ones(sizes: Sequence[Symbol | int]) -> int:
    """How many dimensions stand before sizes of 1 at the end, the first in any case: 1 for a column."""
    end = len(sizes)
    while end > 1 and sizes[end - 1] == 1:
        end -= 1
    return end


@dataclass(frozen=True, slots=True)
class Input:
    """A tensor that the trace reads: ``value`` is its number in the trace, ``source`` its place, ``spec`` what is
    guarded.
    """

    value: int
    source: Source
    spec: TensorSpec


Casts = tuple[tuple[str, str], ...]  # (device type, dtype) of each autocast that is on


@dataclass(frozen=True, slots=True)
class GlobalState:
    """Torch's state during the recording; a trace is used only under the same state."""

    grad_enabled: bool
    inference_mode: bool
    autocast: tuple[tuple[str, bool, str], ...]  # (device type, enabled, dtype) of cpu and cuda
    default_dtype: str
    default_device: str
    deterministic: bool
    function_modes: int  # depth of TorchFunctionMode stack outside the recorder: at most torch's own for devices
    dispatch_keys: tuple[int, int]  # thread-local included and excluded key sets, raw

    @property
    def casts(self) -> Casts:
        """For which device types autocast is on, with its dtype."""
        return tuple((kind, dtype) for kind, on, dtype in self.autocast if on)


@dataclass(frozen=True, slots=True)
class Assumptions:
    """All that must hold before a trace may run: checked natively on each call in this order."""

    state: GlobalState
    facts: Sequence[Fact]
    inputs: tuple[Input, ...]
    relations: tuple[Relation, ...]  # over the symbols bound by inputs and facts
    definitions: tuple[tuple[Symbol | str, Whole | Real], ...] = ()  # derived symbols and names of floats, in order
    comparisons: tuple[RealRelation, ...] = ()  # of floats, over the same

    @property
    def settled(self) -> tuple[Value, ...]:
        """What compiling a trace may add to, beside what was recorded of it."""
        return (self.relations, self.definitions, self.comparisons)

    def with_relations(self, relations: tuple[Relation, ...], values: Mapping[Symbol, Expr]) -> Assumptions:
        """These assumptions and further relations, all over inputs' symbols.

        ``values`` gives the symbols of intermediate values; relations true by form are left out.
        """
        known = dict.fromkeys(relation.substitute(values) for relation in (*self.relations, *relations))
        kept = tuple(relation for relation in known if relation.constant is not True)
        compared = tuple(dict.fromkeys(relation.substitute(values) for relation in self.comparisons))
        defined = tuple((symbol, value.substitute(values)) for symbol, value in self.definitions)
        return Assumptions(self.state, self.facts, self.inputs, kept, defined, compared)
