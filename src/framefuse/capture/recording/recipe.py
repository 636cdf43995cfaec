"""Turns an object that leaves the call into a recipe that makes it again."""

from __future__ import annotations

import contextvars
import functools
import string
import struct
import sys
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable

import torch

from framefuse.capture.facts.atoms import ATOMS, is_key
from framefuse.capture.facts.code_like import CODE_LIKE
from framefuse.capture.facts.library_values import DIGESTS, OWN, VALUES
from framefuse.capture.facts.numbers import TRACKED, form_of, is_nan, key_of
from framefuse.capture.facts.settle import cell_contents, slots_of
from framefuse.capture.program.bound import BOUND_KINDS, bind, is_bound, taken_apart
from framefuse.capture.program.frame import FrameView, InterpretedGenerator, call_of
from framefuse.capture.program.getters import GETTERS, made_of
from framefuse.capture.program.iterators import SEQUENCE_ITERATORS, VIEW_OBJECTS, RangeIterator, dict_behind, reduced
from framefuse.capture.recording.class_recipes import (
    DESCRIPTORS,
    LASTING,
    class_recipe,
    descriptor_recipe,
    tuple_recipe,
)
from framefuse.capture.recording.recorder import Recorder
from framefuse.capture.recording.set_order import insertion_order
from framefuse.ir.classes import written_in_c
from framefuse.ir.containers import elements, entries
from framefuse.ir.facts import Source
from framefuse.ir.numpy_numbers import is_numpy_number
from framefuse.ir.own_class import is_a
from framefuse.ir.remade import copied, remade
from framefuse.ir.trace import Build, Ref
from framefuse.ir.values import Value


class Recipes:
    """Makes recipes; an object met twice is the same object again."""

    def __init__(self, recorder: Recorder) -> None:
        self.recorder = recorder
        self.made: dict[int, tuple[int, Value]] = {}
        self.open: set[int] = set()
        self.hanging: set[int] = set()  # tensors whose attributes are under way, by id
        self.constants: dict[int, object] = {}  # what is as it is, by number
        self.cells: list[types.CellType] = []  # those made during the call

    def build(self, value: Value) -> object:
        """The recipe of ``value``: a constant, Ref, Expr, Real or Build. Ends the recording where there is none."""
        kind = type(value)
        if kind in TRACKED:
            return form_of(value)
        if is_nan(value):
            return self._not_a_number(value)
        if kind in ATOMS or kind is torch.device:
            return value
        if issubclass(kind, torch.Tensor):
            return self._tensor(value)
        source = self.recorder.sources.source_of(value)
        if source is None and kind is tuple and self._all_atoms(value):  # functions and classes may be made anew
            return Build("const", value)
        if source is not None:
            if kind is types.CellType:  # its source reads what it holds
                return self._cell_of(source, value)
            return Build("source", source) if source.kind != "object" else Build("const", source.key)
        if id(value) in self.made:
            number = self.made[id(value)][0]
            if number in self.open and is_a(value, tuple):
                return self.refuse("a tuple that holds itself")
            if number in self.constants:
                return self.constants[number]
            return Build("same", number)
        return self._object(value, kind)

    def _all_atoms(self, value: tuple[Value, ...]) -> bool:
        """Whether a tuple made during the call is the same at each one; a tuple in it may come from elsewhere."""
        source = self.recorder.sources.source_of
        return all(
            (type(part) in ATOMS and not is_nan(part))
            or (type(part) is tuple and source(part) is None and self._all_atoms(part))
            for part in value
        )

    def _not_a_number(self, value: float) -> object:
        """A NaN is the object that it was: containers find it by that alone."""
        source = self.recorder.sources.source_of(value)
        return value if source is None else Build("source", source)

    def refuse(self, detail: str) -> object:
        """Ends the recording: there is no recipe of what leaves the call, and None stands in its place."""
        self.recorder.kill("result", detail)
        return None

    def _tensor(self, value: torch.Tensor) -> object:
        recorder = self.recorder
        source = recorder.sources.source_of(value)
        if source is not None:
            recorder.sources.fact(source, "type", type(value))
            return Build("source", source)
        number = recorder.number(value)
        if number is None:
            return None
        state = object.__getattribute__(value, "__dict__")
        if not state or number in recorder.inputs:
            return Ref(number)
        if id(value) in self.hanging:
            return self.refuse("a tensor that holds itself")
        self.hanging.add(id(value))
        pairs = tuple([(name, self.build(part)) for name, part in state.items()])
        self.hanging.discard(id(value))
        return Build("call", with_state, (Ref(number), Build("dict", None, pairs)))

    def _object(self, value: Value, kind: type) -> object:
        number = len(self.made)
        self.made[id(value)] = (number, value)
        self.open.add(number)
        build = self._build_object(value, kind, number)
        self.open.discard(number)
        if type(build) is Build and build.kind == "const":
            self.constants[number] = build
        return build

    def _build_object(self, value: Value, kind: type, number: int) -> object:
        build, is_made = self.build, self.recorder.sources.is_made
        maker = MAKERS.get(kind)
        if maker is not None:
            return maker(self, value, number)
        if is_a(value, tuple):
            return tuple_recipe(self, value, number) if is_made(kind) else self._tuple(value, kind, number)
        if kind is types.FunctionType and is_made(value):
            return self._function(value, number)
        if kind in SEQUENCE_ITERATORS:
            make, args, position = reduced(value)
            if not position:
                return Build("call", make, self._all(args), None, number)
        if is_a(value, type) and is_made(value):
            return class_recipe(self, value, number)
        if id(value) in LASTING or (kind.__module__ == "typing" and self._says_types(value)):
            return Build("const", value)
        if is_a(value, GROUPS) and value is torch.distributed.group.WORLD:
            return Build("call", world, (), None, number)
        if kind in VIEW_OBJECTS:
            return Build("call", VIEW_OBJECTS[kind], (build(dict_behind(value)),), None, number)
        if kind in GETTERS:
            args, keywords = made_of(value)
            return Build("called", None, (build(kind), build(args), build(dict(keywords))), None, number)
        if kind in DESCRIPTORS:
            return descriptor_recipe(self, value, number)
        if is_bound(value) or (is_a(value, BOUND_KINDS) and is_made(value.__self__)):
            unbound = taken_apart(value)
            if unbound is None:
                return self.refuse(f"the method {value.__name__} of a {type(value.__self__).__name__}")
            return Build("call", bind, (Build("const", unbound[0]), build(unbound[1])), None, number)
        if is_numpy_number(value):
            return Build("call", kind, (value.item(),), None, number)
        if is_a(value, CODE_LIKE):
            return Build("const", value) if _lasting(value) else self.refuse(f"a {kind.__name__} made during the call")
        if _of_module(value):
            return Build("const", value)
        return self._instance(value, kind, number)

    def _all(self, values: Iterable[Value]) -> tuple[object, ...]:
        return tuple([self.build(value) for value in values])

    def _ordered(self, value: tuple[Value, ...] | list[Value], number: int) -> object:
        return Build(type(value).__name__, None, self._all(value), None, number)

    def _unordered(self, value: set[Value] | frozenset[Value], number: int) -> object:
        return Build(type(value).__name__, None, self._members(value), None, number)

    def _dict(self, value: dict[Value, Value], number: int) -> object:
        return Build("dict", None, self._pairs(value), None, number)

    def _bounds(self, value: slice | range, number: int) -> object:
        return Build(type(value).__name__, None, self._all((value.start, value.stop, value.step)), None, number)

    def _cell(self, value: types.CellType, number: int) -> object:
        self.cells.append(value)
        return Build("cell", None, self._all(cell_contents(value)), None, number)

    def _generator(self, value: InterpretedGenerator, number: int) -> object:
        if value.state != "new":
            return self.refuse("a generator that has begun")
        return Build("called", None, self._all(call_of(value)), None, number)

    def _range_iterator(self, value: RangeIterator, number: int) -> object:
        left = Build("range", None, self._all((value.at, value.stop, value.step)))
        return Build("call", iter, (left,), None, number)

    def _frame(self, value: FrameView, number: int) -> object:
        return self.refuse("a frame of the call")

    def _partial(self, value: functools.partial[Value], number: int) -> object:
        parts = self._all((value.func, value.args, value.keywords, vars(value)))
        return Build("partial", None, parts, None, number)

    def _method(self, value: types.MethodType, number: int) -> object:
        if type(value.__self__) in (RangeIterator, InterpretedGenerator):  # others stand for these outside
            return Build("call", getattr, (self.build(value.__self__), value.__func__.__name__), None, number)
        return Build("method", None, self._all((value.__func__, value.__self__)), None, number)

    def _says_types(self, value: Value) -> bool:
        """Whether a type of ``typing`` names none that the call made: nothing about it changes."""
        parts = getattr(value, "__args__", ())
        known = all(not self.recorder.sources.is_made(part) for part in parts)
        return known and all(self._says_types(part) for part in parts if type(part).__module__ == "typing")

    def _of_library(self, value: Value, number: int) -> object:
        """An object of the standard library in the state in which it leaves the call."""
        if type(value) in DIGESTS:
            return Build("call", copied, (Build("const", value.copy()),), None, number)
        if type(value) is struct.Struct:
            return Build("call", struct.Struct, (value.format,), None, number)
        make, args, *state = value.__reduce_ex__(2)
        return Build("call", remade, self._all((make, args, state[0] if state else None)), None, number)

    def _token(self, value: Value, number: int) -> object:
        """What a context variable gives that is set: to make it is to set the variable."""
        setting = self.recorder.sources.setting(value)
        if setting is None or setting.gone:
            return self.refuse("a used Token")
        parts = self.build(value.var), self.build(setting.value)
        return Build("call", contextvars.ContextVar.set, parts, None, number)

    def _tuple(self, value: Value, kind: type, number: int) -> object:
        """A named tuple, a return type of torch, or an instance of a subclass of tuple."""
        native = [base for base in kind.__mro__ if written_in_c(base) and base not in (tuple, object)]
        if native and (native != [kind] or not kind.__module__.startswith("torch")):
            return self.refuse(f"a {kind.__name__}")
        state = getattr(value, "__dict__", None)
        base = Build("dict", None, self._pairs(state)) if state else None
        return Build("namedtuple", kind, self._all(elements(value)), base, number)

    def _function(self, value: types.FunctionType, number: int) -> object:
        """A function made during the call: code and globals last, the rest is made again."""
        fixed = (value.__code__, value.__globals__, value.__name__, value.__qualname__, value.__module__, value.__doc__)
        closure = self._closure(value.__closure__)  # in the order in which they are made
        parts = value.__defaults__, value.__kwdefaults__, value.__annotations__, vars(value)
        defaults, named, annotations, state = [self.build(part) for part in parts]
        return Build("function", fixed, (defaults, named, closure, annotations, state), None, number)

    def _closure(self, cells: tuple[types.CellType, ...] | None) -> object:
        """The cells of a function; all are there before one is filled, as what one holds may know another."""
        if cells is None:
            return None
        new = [cell for cell in cells if self.recorder.sources.source_of(cell) is None and id(cell) not in self.made]
        numbers = {}
        for cell in new:
            numbers[id(cell)] = len(self.made)
            self.made[id(cell)] = (len(self.made), cell)
        self.cells += new
        builds = []
        for cell in cells:
            if id(cell) not in numbers:
                builds.append(self.build(cell))
                continue
            held = self._all(cell_contents(cell))
            builds.append(Build("cell", None, held, None, numbers[id(cell)]))
        return Build("tuple", None, tuple(builds))

    def _cell_of(self, source: Source, value: types.CellType) -> object:
        """A cell that existed before the call, by the closure of the function that has it."""
        if not source.is_argument:
            return Build("const", value)
        if source.key == "cell_contents":  # a variable that was handed over a break
            return Build("source", source.base)
        return Build("source", Source("item", Source("getattr", source.base, "__closure__"), source.key))

    def _members(self, value: set[Value] | frozenset[Value]) -> tuple[object, ...]:
        """The recipes of the members of a set, in an order in which they can be put into a new one."""
        order = insertion_order(value)
        if order is None:
            self.refuse("a set whose order only its past explains")
            return ()
        return tuple([self._hashed(part) for part in order])

    def _hashed(self, value: Value) -> object:
        """The recipe of a key or member: a constant, or an object that is hashed by its identity."""
        if self.recorder.sources.is_made(value):
            return self.build(value)
        kind = type(value)
        if kind in TRACKED:
            return form_of(key_of(value))
        if kind in ATOMS:
            return self.build(value)
        if kind is tuple and is_key(value):
            self.recorder.contents.guard_deep_contents(value)
            parts = [self._hashed(part) for part in value]
            return Build("tuple", None, tuple(parts)) if any(is_a(part, Build) for part in parts) else value
        sources = self.recorder.sources
        if sources.knows(value) and not sources.holds(value):
            return self.build(value)
        if is_a(value, CODE_LIKE):
            return value
        if by_identity(type(value)):
            return self.build(value)
        return self.refuse(f"a {type(value).__name__} as a key")

    def _pairs(self, value: Value) -> tuple[tuple[object, object], ...]:
        return tuple((self._hashed(key), self.build(part)) for key, part in entries(value))

    def _instance(self, value: Value, kind: type, number: int) -> object:
        bases = {base for base in kind.__mro__ if written_in_c(base)}
        if is_a(value, BaseException):
            if not bases <= PLAIN_ERRORS or value.__traceback__ is not None:
                return self.refuse(f"a {kind.__name__}")
        elif not bases <= PLAIN_BASES:
            return self.refuse(f"a {kind.__name__}")
        cls = self.build(kind) if self.recorder.sources.is_made(kind) else None
        base = None
        if is_a(value, dict):
            base = Build("dict", None, self._pairs(value))
        elif is_a(value, (list, deque)):
            own: Value = list if is_a(value, list) else deque
            base = Build("list", None, self._all(own.__iter__(value)))
        elif is_a(value, set):
            base = Build("set", None, self._members(value))
        state = {**(getattr(value, "__dict__", None) or {}), **slots_of(value), **_own_state(value)}
        pairs = tuple([(name, self.build(part)) for name, part in state.items()])
        if cls is not None:
            return Build("instance", None, (cls, Build("dict", None, pairs)), base, number)
        return Build("object", kind, pairs, base, number)


# The recipe of an object whose class is exactly this.
MAKERS: dict[type, Callable[[Recipes, Value, int], object]] = {
    tuple: Recipes._ordered,
    list: Recipes._ordered,
    set: Recipes._unordered,
    frozenset: Recipes._unordered,
    dict: Recipes._dict,
    slice: Recipes._bounds,
    range: Recipes._bounds,
    types.CellType: Recipes._cell,
    types.MethodType: Recipes._method,
    InterpretedGenerator: Recipes._generator,
    RangeIterator: Recipes._range_iterator,
    FrameView: Recipes._frame,
    functools.partial: Recipes._partial,
    contextvars.Token: Recipes._token,
    **dict.fromkeys((VALUES | OWN) - {string.Template}, Recipes._of_library),
}
GROUPS: tuple[type, ...] = (torch.distributed.ProcessGroup,) if torch.distributed.is_available() else ()


def with_state(tensor: torch.Tensor, state: dict[str, Value]) -> torch.Tensor:
    """A tensor with the attributes that the program hung onto it."""
    object.__getattribute__(tensor, "__dict__").update(state)
    return tensor


def world() -> Value:
    """The group of all processes, as it is at each call."""
    return torch.distributed.group.WORLD


# What instances of these hold is their elements, their __dict__, their slots, and what _own_state names.
PLAIN_BASES = {object, dict, list, set, deque, defaultdict, OrderedDict, types.SimpleNamespace}
PLAIN_ERRORS = {
    object, BaseException, Exception, ValueError, RuntimeError, TypeError, LookupError, KeyError, IndexError,
    AssertionError, ArithmeticError, ZeroDivisionError, OverflowError, NotImplementedError,
}  # fmt: skip


def by_identity(kind: type) -> bool:
    """Whether instances are hashed by their identity."""
    hashes: tuple[Value, ...] = (object.__hash__, torch.Tensor.__hash__)
    return kind.__hash__ in hashes




def _own_state(value: Value) -> dict[str, Value]:
    if is_a(value, defaultdict):
        return {"default_factory": value.default_factory}
    if is_a(value, deque):
        return {"maxlen": value.maxlen} if value.maxlen is not None else {}
    if is_a(value, BaseException):
        causes = {name: getattr(value, name) for name in ("__cause__", "__context__", "__suppress_context__")}
        return {"args": value.args, **{name: cause for name, cause in causes.items() if cause}}
    return {}


def _lasting(value: Value) -> bool:
    """Whether a type, function, builtin or module outlives the call by its place in a module."""
    return not is_a(value, types.FunctionType) or _found(value)


def _of_module(value: Value) -> bool:
    """Whether a callable of an extension, as those written in Cython, lies in its module by its name."""
    if not written_in_c(type(value)) or not callable(value) or not is_a(getattr(value, "__module__", None), str):
        return False
    return is_a(getattr(value, "__qualname__", None), str) and _found(value)


def _found(value: Value) -> bool:
    there: Value = sys.modules.get(value.__module__)
    for name in value.__qualname__.split("."):
        there = getattr(there, name, None)
    return getattr(there, "__func__", there) is value  # a class method is bound anew at each look
