"""Says what native code finds out when it hashes, compares or prints: which objects are one, and what lies in them.

Where it would run the user's Python, whose reads nobody would see, the recording ends.
"""

from __future__ import annotations

import operator
import types
from collections import defaultdict, deque

import torch

from framefuse.capture.callables.plain_methods import only_reads, underlying
from framefuse.capture.facts.atoms import ATOMS, CONTAINERS, SETS
from framefuse.capture.facts.code_like import CODE_LIKE
from framefuse.capture.facts.hidden_state import is_fixed_text, refuse_hidden_state
from framefuse.capture.facts.library_values import is_constant
from framefuse.capture.facts.nested_numbers import pin_nested
from framefuse.capture.facts.numbers import TRACKED, Float, Integer, bare, key_of, names_object
from framefuse.capture.facts.settle import slots_of, tuple_like
from framefuse.capture.facts.sources import Sources
from framefuse.capture.interp.machine import Machine
from framefuse.capture.program.leaves import PURE_MODULES
from framefuse.capture.program.lookups import goes_by_index, python_method, type_get
from framefuse.capture.program.methods import METHODS, NOTHING, Method, row_of
from framefuse.capture.program.natives import COMPARISONS, INDEX, Native, known_as
from framefuse.ir.classes import immutable
from framefuse.ir.containers import elements, held, size
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Function, Value

PLAIN = (list, tuple, dict, set, frozenset)
VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
# Their texts name addresses.
NAMING_ADDRESSES = (types.FunctionType, types.BuiltinFunctionType, types.CodeType, property, classmethod, staticmethod)
UNMOVED = frozenset((int, float, bool))  # that are hashed alike in every process
TEXTS = ("__repr__", "__str__", "__format__")
# What the text of a container tells beside its content.
SHOWN_BESIDE: dict[type, str] = {deque: "maxlen", defaultdict: "default_factory"}
DEPTH = 6
HASHING = (dict, set, frozenset)
# Classes of keys that a run-time number is compared with, and those that equal none.
COMPARED = (int, float, bool)
APART = (str, bytes, type(None))
FEW = 32  # keys that it is compared with, one by one
# What native code asks of what it walks.
ITERATED = ("__iter__", "__next__", "__index__")


def shown(machine: Machine, value: Value, depth: int = 0) -> None:
    """Native code makes a text of ``value``: known content becomes facts, an object of the user ends the recording."""
    kind = type(value)
    if kind in ATOMS or kind in TRACKED or is_a(value, (torch.Tensor, *CODE_LIKE)) or depth > DEPTH:
        if is_a(value, NAMING_ADDRESSES):
            machine.recorder.sources.tie()
        if is_a(value, (types.FunctionType, type)):  # the text names it by what it is called now
            machine.recorder.sources.read(value, "getattr", "__qualname__", value.__qualname__)
        return
    sources, contents = machine.recorder.sources, machine.recorder.contents
    plainly = all(python_method(kind, name) is None for name in TEXTS)
    if plainly and is_fixed_text(sources, value):
        return
    if is_a(value, CONTAINERS) and plainly:
        contents.guard_shallow_contents(value)
        for part in elements(value) + (held(value) if is_a(value, dict) else []):
            shown(machine, part, depth + 1)
        for name in (name for shows, name in SHOWN_BESIDE.items() if is_a(value, shows)):
            shown(machine, sources.read(value, "getattr", name, getattr(value, name)), depth + 1)
    elif is_constant(sources, value):
        return
    elif not immutable(kind) and (sources.knows(value) or not is_a(value, BaseException)):
        if not _tells(machine, value, depth):
            machine.recorder.kill("native-call", f"The text of a {kind.__name__}")
    else:
        refuse_hidden_state(sources, value)


def _tells(machine: Machine, value: Value, depth: int) -> bool:
    """Whether the text of an object of the user is made of what lies in it, which is told as well."""
    kind = type(value)
    if depth > DEPTH or type(underlying(type_get(kind, "__repr__"))) is not types.FunctionType:
        return False  # the text names the address
    read = [only_reads(machine, value, name) for name in TEXTS]
    if False in read:
        return False
    for part in parts_of(value):
        if type(part) in TRACKED:
            part.plain()
        elif None in read and not _atomic(part):
            return False
        pin_nested(part)
        shown(machine, part, depth + 1)
    return True


def _atomic(value: Value) -> bool:
    """Whether a value is a number or text, or a container of such."""
    kind = type(value)
    if kind not in PLAIN:
        return kind in ATOMS or kind in TRACKED
    return all(map(_atomic, (*value, *value.values()) if is_a(value, dict) else value))


def parts_of(value: Value) -> list[Value]:
    """What lies in the attributes and slots of an object."""
    return [*(getattr(value, "__dict__", None) or {}).values(), *slots_of(value).values()]


def hidden(machine: Machine, value: Value, *names: str) -> None:
    """Ends a recording where a special method of a known object is the library's, written in Python and not
    interpreted: it reads what no fact describes, as those of a weak dict do.
    """
    if not machine.recorder.sources.knows(value) or is_a(value, (torch.Tensor, *CODE_LIKE)):
        return
    if is_constant(machine.recorder.sources, value):
        return
    for name in names:
        method = type_get(type(value), name)
        if type(method) is types.FunctionType and method.__globals__.get("__name__") not in PURE_MODULES:
            if python_method(type(value), name) is None:
                machine.recorder.kill("native-call", f"{type(value).__name__}.{name}")
                return


def compared(machine: Machine, *values: Value, names: tuple[str, ...] = COMPARISONS) -> None:
    """Native code compares these values and what lies in them, or hashes it: objects that are equal only to themselves
    are told apart, and the user's own methods of these ``names`` end the recording.
    """
    for value in values:
        if type(value) not in ATOMS and machine.recorder.alive and compares(machine, value, names):
            machine.recorder.kill("native-call", f"A comparison inside a {type(value).__name__}")


def hashed(machine: Machine, container: Value) -> None:
    """As :func:`compared` for the keys of a dict, or the members of any other container."""
    if is_a(container, PLAIN):
        parts = elements(container)
        if not all(type(part) in ATOMS for part in parts):
            compared(machine, *parts)


def key_in(machine: Machine, container: Value, key: Value) -> Value:
    """A key as it is looked for in a container. In one that existed before the call an id may name another entry at
    each call, which is no fact: the recording ends.
    """
    if is_a(key, tuple) and machine.recorder.sources.knows(container):
        return _tuple_in(machine, container, key)
    if type(key) not in TRACKED:
        return key
    if not machine.recorder.sources.knows(container):
        return key_of(key)
    if type(key) is Integer and names_object(key):
        machine.recorder.kill("argument", "the entry of an id")
    return key.plain()


def lacks(machine: Machine, container: Value, key: Value) -> bool:
    """Whether a run-time number is known to be none of the few keys of a dict or set, as it is at most calls: the step
    of a schedule among its milestones. Where it is one, it is held to its value.
    """
    if type(key) not in (Integer, Float) or machine.recorder.contents.has_changed(container):
        return False
    keys = elements(container)
    if len(keys) > FEW or not all(type(part) in COMPARED or type(part) in APART for part in keys):
        return False
    if bare(key) in keys or (type(key) is Integer and names_object(key)):
        return False
    machine.recorder.contents.guard_extent(container)
    return all(key != part for part in keys if type(part) in COMPARED)


def _tuple_in(machine: Machine, container: Value, key: tuple[Value, ...]) -> Value:
    """As :func:`key_in` for a tuple, whose numbers are held to their values."""
    parts = [key_in(machine, container, part) for part in elements(key)]
    if all(map(operator.is_, parts, elements(key))):
        return key
    return type(key)(parts) if type(key) in (tuple, torch.Size) else tuple_like(type(key), parts)


def moves(machine: Machine, value: Value) -> bool:
    """Whether a set may be walked in another order at the next call: a member that is hashed by its address may be
    another object then.
    """
    several = is_a(value, SETS) and size(value) > 1 and machine.recorder.alive
    if several and not all(type(member) in UNMOVED for member in elements(value)):
        machine.recorder.sources.tie()
    return several and any(_moves(machine.recorder.sources, member) for member in elements(value))


def _moves(sources: Sources, member: Value) -> bool:
    if type(member) is tuple:
        return any(_moves(sources, part) for part in member)
    return type(member) not in ATOMS and sources.knows(member) and not sources.holds(member)


def runs_methods(target: Function, args: Arguments) -> bool:
    """Whether a native function would run a special method that the user wrote: of conversions, and of iteration."""
    if not args or not (is_a(target, (type, types.BuiltinFunctionType)) or hasattr(target, "__objclass__")):
        return False
    row = row_of(target)
    if row.iterates and any(_has(part, ITERATED) or goes_by_index(type(part)) for part in args):
        return True
    if is_a(row, Native):
        asks = row.asks if row.equivalent is None else ()
        return bool(asks) and any(_has(part, asks) for value in args for part in _with_elements(value))
    if not row.asks and not row.indexes:
        return False
    holder, given = _owner_of(target, args)
    if row.asks and not is_a(holder, BaseException) and any(_has(part, row.asks) for part in given):
        return True
    return is_a(holder, row.indexes) and any(_has(part, INDEX) for value in given for part in _bounds(value))


def _has(value: Value, methods: tuple[str, ...]) -> bool:
    """Whether one of these methods of ``value`` is the program's."""
    kind = type(value)
    if not methods or kind in ATOMS or immutable(kind):
        return False
    return any(python_method(kind, method) is not None for method in methods)


def _with_elements(value: Value) -> tuple[Value, ...]:
    return (value, *elements(value)) if is_a(value, (list, tuple)) else (value,)


def _bounds(value: Value) -> tuple[Value, ...]:
    return (value.start, value.stop, value.step) if type(value) is slice else (value,)


def walked(machine: Machine, value: Value) -> None:
    """An instruction walks a container: a set with an order that moves ends the recording."""
    if moves(machine, value):
        machine.recorder.kill("native-call", "The order of a set of objects")


def walks(machine: Machine, target: Function, args: Arguments) -> bool:
    """Whether a native function or method tells the order of a set that moves."""
    holder, given = _owner_of(target, args)
    if is_a(holder, HASHING):
        return target.__name__ == "pop" and not given and moves(machine, holder)
    if known_as(target).orderless:
        return False
    return any(moves(machine, part) for part in given)


def _owner_of(target: Function, args: Arguments) -> tuple[Value, tuple[Value, ...]]:
    """The owner of a method of C, bound or not, and the further arguments."""
    holder = getattr(target, "__self__", None)
    if holder is None and args and is_a(args[0], getattr(target, "__objclass__", ())):
        return args[0], args[1:]
    return holder, args


def before_call(machine: Machine, target: Function, args: Arguments) -> None:
    """What a native function or method is about to hash or compare."""
    holder, args = _owner_of(target, args)
    row = row_of(target)
    if not is_a(holder, HASHING):
        if row.compares:
            compared(machine, *args, holder, names=row.compares)
    elif is_a(row, Method) and row.keyed:
        compared(machine, *args[:1])
        if machine.recorder.sources.knows(holder):
            hashed(machine, holder)
    elif args:
        for part in (holder, *args):
            (compared if row.compares else hashed)(machine, part)


def after_call(machine: Machine, target: Function, args: Arguments, value: Value) -> None:
    """What a native function or method hashed to make a dict or set, or to add to one."""
    holder = getattr(target, "__self__", None)
    adds = args and issubclass(type(holder), HASHING) and not METHODS.get(target.__name__, NOTHING).keyed
    for container in (value, holder) if adds else (value,):
        if issubclass(type(container), HASHING) and not machine.recorder.sources.knows(container):
            hashed(machine, container)


def compares(machine: Machine, value: Value, names: tuple[str, ...] = COMPARISONS, depth: int = 0) -> bool:
    """Whether comparing or hashing ``value`` runs Python of the user that does more than read what lies in it."""
    kind = type(value)
    if kind in ATOMS or kind in TRACKED:
        return False
    sources, contents = machine.recorder.sources, machine.recorder.contents
    if is_a(value, (torch.Tensor, *CODE_LIKE)) or depth > DEPTH:
        sources.tell_apart(value)
        return False
    if kind is types.MethodType:
        return any(compares(machine, part, names, depth + 1) for part in (value.__self__, value.__func__))
    if kind in VIEWS:
        return any(compares(machine, part, names, depth + 1) for part in tuple(value))
    if is_a(value, PLAIN):
        contents.guard_shallow_contents(value)
        parts = elements(value) + (held(value) if is_a(value, dict) else [])
        if any(compares(machine, part, names, depth + 1) for part in parts):
            return True
        if kind in PLAIN:
            return False
    if all(python_method(kind, name) is None for name in names):
        sources.tell_apart(value)
        if type_get(kind, "__eq__") is not object.__eq__:
            refuse_hidden_state(sources, value)
        return False
    read = [only_reads(machine, value, name) for name in names]
    if False in read:
        return True
    for part in parts_of(value):
        if type(part) in TRACKED:
            part.plain()
        elif is_a(part, torch.Tensor) or (None in read and not _atomic(part)):
            return True
        contents.guard_deep_contents(part)
        if compares(machine, part, names, depth + 1):
            return True
    return False
