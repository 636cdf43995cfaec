"""Says what native code finds out when it hashes, compares or prints: which objects are one, and what lies in them.

Where it would run the user's Python, whose reads nobody would see, the recording ends.
"""

from __future__ import annotations

import math
import types
from collections import deque

import torch

from framefuse.capture.callables.plain_methods import only_reads, underlying
from framefuse.capture.facts.atoms import ATOMS, SETS
from framefuse.capture.facts.numbers import TRACKED, Integer, key_of, names_object, pin_nested
from framefuse.capture.facts.settle import slots_of
from framefuse.capture.facts.sources import CODE_LIKE, Sources
from framefuse.capture.interp.machine import Machine
from framefuse.capture.program.leaves import PURE_MODULES
from framefuse.capture.program.lookups import goes_by_index, python_method, type_get
from framefuse.capture.program.natives import CONVERSIONS, MADE_FROM, known_as
from framefuse.capture.values import Arguments, Function, Value
from framefuse.ir.classes import immutable
from framefuse.ir.containers import elements, held, size

PLAIN = (list, tuple, dict, set, frozenset)
VIEWS: tuple[type, ...] = (type({}.keys()), type({}.values()), type({}.items()))
COMPARISONS = ("__eq__", "__ne__", "__lt__", "__le__", "__gt__", "__ge__", "__hash__")
DEPTH = 6
HASHING = (dict, set, frozenset)
# Which methods these ask for.
ORDERING = dict.fromkeys(("sort", "sorted", "min"), ("__lt__", "__eq__")) | {"max": ("__gt__", "__eq__")}
# Functions and methods that convert a value, and those that iterate over one; and what they ask it for.
CONVERTING = frozenset(name for name in vars(math) if not name.startswith("_")) | frozenset(
    "round complex bytes bytearray format hex oct bin chr divmod pow range length_hint index".split()
)
ITERATING = frozenset(
    "fromkeys join extend extendleft update union intersection difference symmetric_difference isdisjoint issubset "
    "issuperset intersection_update difference_update symmetric_difference_update deque OrderedDict chain islice cycle "
    "product zip_longest pairwise permutations combinations combinations_with_replacement compress tee "
    "from_iterable enumerate".split()
)
ITERATED = ("__iter__", "__next__", "__index__")
# Constructors of C, and the methods of sequences that take an argument for its index.
MAKING = frozenset(("__new__", "__init__"))
INDEX = ("__index__",)
INDEXING = frozenset(
    "__getitem__ __setitem__ __delitem__ __mul__ __imul__ __rmul__ insert pop rotate indices index".split()
)
INDEXED = (list, tuple, str, bytes, bytearray, deque, range, slice)
# Functions that do not tell the order of a set that they are given.
ORDERLESS = frozenset("len isinstance set frozenset type bool callable any all".split())
# Methods of these that look for their first argument only; the others take in all that their arguments hold.
KEYED = frozenset(
    "add discard remove get pop setdefault move_to_end __contains__ __getitem__ __setitem__ __delitem__".split()
)
# Methods and functions that compare their arguments, or what lies in them.
COMPARING = frozenset(
    "index count remove sort __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __contains__ eq ne lt le gt ge contains indexOf "
    "countOf sorted min max groupby __hash__".split()
)


def shown(machine: Machine, value: Value, depth: int = 0) -> None:
    """Native code makes a text of ``value``: known content becomes facts, an object of the user ends the recording."""
    kind = type(value)
    if kind in ATOMS or kind in TRACKED or isinstance(value, (torch.Tensor, *CODE_LIKE)) or depth > DEPTH:
        return
    sources, contents = machine.recorder.sources, machine.recorder.contents
    if kind in PLAIN:
        contents.guard_shallow_contents(value)
        for part in (*value, *value.values()) if isinstance(value, dict) else tuple(value):
            shown(machine, part, depth + 1)
    elif not immutable(kind) and (sources.knows(value) or not isinstance(value, BaseException)):
        if not _tells(machine, value, depth):
            machine.recorder.kill("native-call", f"The text of a {kind.__name__}")
    else:
        sources.refuse_hidden_state(value)


def _tells(machine: Machine, value: Value, depth: int) -> bool:
    """Whether the text of an object of the user is made of what lies in it, which is told as well."""
    kind = type(value)
    if depth > DEPTH or type(underlying(type_get(kind, "__repr__"))) is not types.FunctionType:
        return False  # the text names the address
    found = [only_reads(machine, value, name) for name in ("__repr__", "__str__", "__format__")]
    if False in found:
        return False
    for part in parts_of(value):
        if type(part) in TRACKED:
            part.plain()
        elif None in found and not _atomic(part):
            return False
        pin_nested(part)
        shown(machine, part, depth + 1)
    return True


def _atomic(value: Value) -> bool:
    """Whether a value is a number or text, or a container of such."""
    kind = type(value)
    if kind not in PLAIN:
        return kind in ATOMS or kind in TRACKED
    return all(map(_atomic, (*value, *value.values()) if isinstance(value, dict) else value))


def parts_of(value: Value) -> list[Value]:
    """What lies in the attributes and slots of an object."""
    return [*(getattr(value, "__dict__", None) or {}).values(), *slots_of(value).values()]


def hidden(machine: Machine, value: Value, *names: str) -> None:
    """Ends a recording where a special method of a known object is the library's, written in Python and not
    interpreted: it reads what no fact describes, as those of a weak dict do.
    """
    if not machine.recorder.sources.knows(value) or isinstance(value, (torch.Tensor, *CODE_LIKE)):
        return
    for name in names:
        found = type_get(type(value), name)
        if type(found) is types.FunctionType and found.__globals__.get("__name__") not in PURE_MODULES:
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
    if isinstance(container, PLAIN):
        parts = elements(container)
        if not all(type(part) in ATOMS for part in parts):
            compared(machine, *parts)


def key_in(machine: Machine, container: Value, key: Value) -> Value:
    """A key as it is looked for in a container. In one that existed before the call an id may name another entry at
    each call, which is no fact: the recording ends.
    """
    if type(key) not in TRACKED:
        return key
    if not machine.recorder.sources.knows(container):
        return key_of(key)
    if type(key) is Integer and names_object(key):
        machine.recorder.kill("argument", "the entry of an id")
    return key.plain()


def moves(machine: Machine, value: Value) -> bool:
    """Whether a set may be walked in another order at the next call: a member that is hashed by its address may be
    another object then.
    """
    several = isinstance(value, SETS) and size(value) > 1 and machine.recorder.alive
    return several and any(_moves(machine.recorder.sources, member) for member in elements(value))


def _moves(sources: Sources, member: Value) -> bool:
    if type(member) is tuple:
        return any(_moves(sources, part) for part in member)
    return type(member) not in ATOMS and sources.knows(member) and not sources.holds(member)


def runs_methods(target: Function, args: Arguments) -> bool:
    """Whether a native function would run a special method that the user wrote: of conversions, and of iteration."""
    if not args or not (isinstance(target, (type, types.BuiltinFunctionType)) or hasattr(target, "__objclass__")):
        return False
    asked = _asked(target, args)
    if asked is MADE_FROM:
        args = _of(target, args)[2]
    elif asked is INDEX:
        found = (getattr(target, "__self__", None), *args)
        args = tuple([part for each in found for part in (_bounds(each) if type(each) is slice else (each,))])
    row = known_as(target)
    inside = row.asks if row.equivalent is None else ()
    return (
        any(_has(part, asked) for part in args)
        or (asked is ITERATED and any(goes_by_index(type(part)) for part in args))
        or (bool(inside) and any(_has(part, inside) for value in args for part in _with_elements(value)))
    )


def _has(value: Value, methods: tuple[str, ...]) -> bool:
    """Whether one of these methods of ``value`` is the program's."""
    kind = type(value)
    if not methods or kind in ATOMS or immutable(kind):
        return False
    return any(python_method(kind, method) is not None for method in methods)


def _with_elements(value: Value) -> tuple[Value, ...]:
    return (value, *elements(value)) if isinstance(value, (list, tuple)) else (value,)


def _bounds(value: slice) -> tuple[Value, ...]:
    return (value.start, value.stop, value.step)


def _asked(target: Function, args: Arguments) -> tuple[str, ...]:
    """The special methods that a native function may ask of its arguments."""
    name, owner = getattr(target, "__name__", ""), getattr(target, "__self__", None)
    if name in ITERATING:
        return ITERATED
    if name in CONVERTING and (isinstance(target, type) or isinstance(owner, types.ModuleType)):
        return CONVERSIONS
    holder = _of(target, args)[0]
    if name in MAKING and not isinstance(target, type) and not isinstance(holder, BaseException):
        return MADE_FROM
    return INDEX if name in INDEXING and isinstance(holder, INDEXED) else ()


def walked(machine: Machine, value: Value) -> None:
    """An instruction walks a container: a set with an order that moves ends the recording."""
    if moves(machine, value):
        machine.recorder.kill("native-call", "The order of a set of objects")


def walks(machine: Machine, target: Function, args: Arguments) -> bool:
    """Whether a native function or method tells the order of a set that moves."""
    holder, name, given = _of(target, args)
    if isinstance(holder, HASHING):
        return name == "pop" and not given and moves(machine, holder)
    return name not in ORDERLESS and any(moves(machine, part) for part in given)


def _of(target: Function, args: Arguments) -> tuple[Value, str, tuple[Value, ...]]:
    """The owner of a method of C, bound or not, its name and the further arguments."""
    holder, name = getattr(target, "__self__", None), getattr(target, "__name__", "")
    if holder is None and args and isinstance(args[0], getattr(target, "__objclass__", ())):
        return args[0], name, args[1:]
    return holder, name, args


def before_call(machine: Machine, target: Function, args: Arguments) -> None:
    """What a native function or method is about to hash or compare."""
    holder, name, args = _of(target, args)
    if not isinstance(holder, HASHING):
        if name in COMPARING:
            compared(machine, *args, holder, names=ORDERING.get(name, COMPARISONS))
    elif name in KEYED:
        compared(machine, *args[:1])
        if machine.recorder.sources.knows(holder):
            hashed(machine, holder)
    elif args:
        for part in (holder, *args):
            (compared if name in COMPARING else hashed)(machine, part)


def after_call(machine: Machine, target: Function, args: Arguments, value: Value) -> None:
    """What a native function or method hashed to make a dict or set, or to add to one."""
    holder = getattr(target, "__self__", None)
    adds = args and isinstance(holder, HASHING) and getattr(target, "__name__", "") not in KEYED
    for made in (value, holder) if adds else (value,):
        if isinstance(made, HASHING) and not machine.recorder.sources.knows(made):
            hashed(machine, made)


def compares(machine: Machine, value: Value, names: tuple[str, ...] = COMPARISONS, depth: int = 0) -> bool:
    """Whether comparing or hashing ``value`` runs Python of the user that does more than read what lies in it."""
    kind = type(value)
    if kind in ATOMS or kind in TRACKED:
        return False
    sources, contents = machine.recorder.sources, machine.recorder.contents
    if isinstance(value, (torch.Tensor, *CODE_LIKE)) or depth > DEPTH:
        sources.tell_apart(value)
        return False
    if kind is types.MethodType:
        return any(compares(machine, part, names, depth + 1) for part in (value.__self__, value.__func__))
    if kind in VIEWS:
        return any(compares(machine, part, names, depth + 1) for part in tuple(value))
    if isinstance(value, PLAIN):
        contents.guard_shallow_contents(value)
        parts = elements(value) + (held(value) if isinstance(value, dict) else [])
        if any(compares(machine, part, names, depth + 1) for part in parts):
            return True
        if kind in PLAIN:
            return False
    if all(python_method(kind, name) is None for name in names):
        sources.tell_apart(value)
        return False
    found = [only_reads(machine, value, name) for name in names]
    if False in found:
        return True
    for part in parts_of(value):
        if type(part) in TRACKED:
            part.plain()
        elif isinstance(part, torch.Tensor) or (None in found and not _atomic(part)):
            return True
        contents.guard_deep_contents(part)
        if compares(machine, part, names, depth + 1):
            return True
    return False
