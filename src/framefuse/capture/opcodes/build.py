"""Makes tuples, lists, dicts, sets, slices and texts, and grows those that comprehensions and displays fill."""

from __future__ import annotations

import datetime

from framefuse.capture.callables.mutations import mutate
from framefuse.capture.callables.unseen import compared, hashed, shown
from framefuse.capture.facts.nested_numbers import pin_nested
from framefuse.capture.facts.numbers import TRACKED, bare, key_of, made_of
from framefuse.capture.facts.texts import Text
from framefuse.capture.interp.continuations import PushText
from framefuse.capture.interp.machine import Machine
from framefuse.capture.interp.registry import handles
from framefuse.capture.program.frame import Frame
from framefuse.capture.program.lookups import python_method, type_get
from framefuse.capture.program.markers import MISSING, NULL, Outcome
from framefuse.ir.containers import entries
from framefuse.ir.own_class import is_a
from framefuse.ir.trace import formatted
from framefuse.ir.values import Arguments, Function, Value

# Types whose format without a specification is ``str`` of the object; NumPy's numbers have another.
TEXTUAL = (object, int, float, complex, str, datetime.date, datetime.time)


def _take(frame: Frame, count: int) -> list[Value]:
    if not count:
        return []
    taken = frame.stack[-count:]
    del frame.stack[-count:]
    return taken


@handles("BUILD_TUPLE")
def build_tuple(machine: Machine, frame: Frame, argument: int) -> None:
    frame.stack.append(tuple(_take(frame, argument)))


@handles("BUILD_LIST")
def build_list(machine: Machine, frame: Frame, argument: int) -> None:
    frame.stack.append(_take(frame, argument))


@handles("BUILD_SET")
def build_set(machine: Machine, frame: Frame, argument: int) -> None:
    members = [key_of(part) for part in _take(frame, argument)]
    compared(machine, *members)
    frame.stack.append(set(members))


@handles("BUILD_MAP")
def build_map(machine: Machine, frame: Frame, argument: int) -> None:
    if argument:
        compared(machine, *map(key_of, frame.stack[-2 * argument :: 2]))  # first: it may end the recording
    values = _take(frame, 2 * argument)
    frame.stack.append(dict(zip(map(key_of, values[::2]), values[1::2], strict=True)))


@handles("BUILD_CONST_KEY_MAP")
def build_const_key_map(machine: Machine, frame: Frame, argument: int) -> None:
    keys = frame.stack.pop()
    frame.stack.append(dict(zip(keys, _take(frame, argument), strict=True)))


@handles("BUILD_STRING")
def build_string(machine: Machine, frame: Frame, argument: int) -> None:
    parts = _take(frame, argument)
    text = "".join([bare(part) for part in parts])
    frame.stack.append(made_of("join", text, tuple(parts)) if any(type(part) is Text for part in parts) else text)


@handles("BUILD_SLICE")
def build_slice(machine: Machine, frame: Frame, argument: int) -> None:
    frame.stack.append(slice(*_take(frame, argument)))


@handles("FORMAT_VALUE")
def format_value(machine: Machine, frame: Frame, argument: int) -> Outcome:
    spec = frame.stack.pop() if argument & 4 else ""
    value = frame.stack.pop()
    if machine.operations.reads_value(value):
        machine.exits.opaque(frame, formatted, (value, argument & 3, spec), {}, None, "item", "The text of a tensor")
    if type(value) in TRACKED and type(spec) is str:
        text = formatted(bare(value), argument & 3, spec)
        frame.stack.append(made_of("format", text, (value,), (argument & 3, spec)))
        return None
    if argument & 3:
        return _converted(machine, frame, value, argument & 3, spec)
    pin_nested(value)
    method = python_method(type(value), "__format__")
    if method is not None:
        return _ask(machine, frame, method, (value, spec), PushText("__format__", type(value), False, ""))
    if not spec and any(type_get(type(value), "__format__") is kind.__format__ for kind in TEXTUAL):
        return _text(machine, frame, value, "__str__", False, "")
    shown(machine, value)
    frame.stack.append(format(value, spec))
    return None


@handles("CONVERT_VALUE")
def convert_value(machine: Machine, frame: Frame, argument: int) -> Outcome:
    """The conversion before a format that is computed: 3.13 has it as an instruction, told apart where it stands."""
    value = frame.stack.pop()
    if machine.operations.reads_value(value):
        machine.exits.opaque(frame, formatted, (value, argument, ""), {}, None, "item", "The text of a tensor")
    if type(value) in TRACKED:
        frame.stack.append(made_of("format", formatted(bare(value), argument, ""), (value,), (argument, "")))
        return None
    return _converted(machine, frame, value, argument, "")


def _converted(machine: Machine, frame: Frame, value: Value, conversion: int, spec: str) -> Outcome:
    """Pushes a value of an f-string after ``!s`` (1), ``!r`` (2) or ``!a`` (3), formatted."""
    pin_nested(value)
    return _text(machine, frame, value, "__str__" if conversion == 1 else "__repr__", conversion == 3, spec)


def _text(machine: Machine, frame: Frame, value: Value, name: str, escaped: bool, spec: str) -> Outcome:
    kind = type(value)
    method = python_method(kind, name)
    if method is None and name == "__str__" and type_get(kind, name) is object.__str__:
        method = python_method(kind, "__repr__")
    text = PushText(name, kind, escaped, spec)
    if method is not None:
        return _ask(machine, frame, method, (value,), text)
    shown(machine, value)
    text.finish(machine, frame, str(value) if name == "__str__" else repr(value))
    return None


def _ask(machine: Machine, frame: Frame, method: Function, args: Arguments, then: PushText) -> Outcome:
    """Enters a method of the program that writes text."""
    machine.recorder.sources.guard_type(args[0])
    return machine.calls.call(frame, method, args, {}, then)


@handles("LIST_TO_TUPLE")
def list_to_tuple(machine: Machine, frame: Frame, argument: int) -> None:
    frame.stack.append(tuple(machine.operations.iterable(frame.stack.pop())))


@handles("LIST_EXTEND")
def list_extend(machine: Machine, frame: Frame, argument: int) -> Outcome:
    listed = machine.operations.listed(frame, measured=True)
    if listed is not MISSING:
        return listed
    value = frame.stack.pop()
    if not hasattr(type(value), "__iter__") and not hasattr(type(value), "__getitem__"):
        raise TypeError(f"Value after * must be an iterable, not {type(value).__name__}")
    values = machine.operations.iterable(value, measured=True)
    _grow(machine, frame.stack[-argument], "extend", _seen(machine, values))
    return None


def _seen(machine: Machine, values: Value) -> Value:
    """The elements as they are known: free numbers of a known sequence stay tracked."""
    sources, contents = machine.recorder.sources, machine.recorder.contents
    if is_a(values, (list, tuple)) and sources.knows(values):
        return [contents.item(values, number, value) for number, value in enumerate(values)]
    return values


@handles("SET_UPDATE")
def set_update(machine: Machine, frame: Frame, argument: int) -> Outcome:
    listed = machine.operations.listed(frame)
    if listed is not MISSING:
        return listed
    value = machine.operations.iterable(frame.stack.pop())
    _grow(machine, frame.stack[-argument], "update", value)
    return None


@handles("DICT_UPDATE")
def dict_update(machine: Machine, frame: Frame, argument: int) -> None:
    value = _mapping(machine, frame.stack.pop())
    if not hasattr(value, "keys"):
        raise TypeError(f"'{type(value).__name__}' object is not a mapping")
    _grow(machine, frame.stack[-argument], "update", value)


@handles("DICT_MERGE")
def dict_merge(machine: Machine, frame: Frame, argument: int) -> None:
    value = _mapping(machine, frame.stack.pop())
    target = frame.stack[-argument]
    if not hasattr(value, "keys"):
        title = callable_title(_called(frame, argument))
        raise TypeError(f"{title} argument after ** must be a mapping, not {type(value).__name__}")
    for key in value.keys():
        machine.recorder.contents.guard_membership(target, key)
        if key in target:
            title = callable_title(_called(frame, argument))
            raise TypeError(f"{title} got multiple values for keyword argument '{key}'")
        _grow(machine, target, "__setitem__", key, value[key])


def _called(frame: Frame, argument: int) -> Value:
    """The callable that lies below the arguments; 3.13 has the NULL above it."""
    holder = frame.stack[-argument - 2]
    return holder if holder is not NULL else frame.stack[-argument - 3]


def callable_title(function: Function) -> str:
    """How CPython's own messages name a callable."""
    name = getattr(function, "__qualname__", None)
    if name is None:
        return str(function)
    module = getattr(function, "__module__", None)
    return f"{module}.{name}()" if module is not None and module != "builtins" else f"{name}()"


def _mapping(machine: Machine, value: Value) -> Value:
    """A mapping as a plain dict where Python methods must be run or facts stated. Of a dict that iterates as any dict
    does, CPython takes the entries themselves, whatever its class makes of ``keys`` and ``[]``.
    """
    sources, contents = machine.recorder.sources, machine.recorder.contents
    kind = type(value)
    if is_a(value, dict) and type_get(kind, "__iter__") is dict.__iter__:
        if kind is not dict:
            sources.guard_type(value)
        contents.guard_extent(value)
        known = sources.knows(value)
        return {key: contents.item(value, key, part) if known else part for key, part in entries(value)}
    keys, get = python_method(kind, "keys"), python_method(kind, "__getitem__")
    if (keys is None and get is None) or not hasattr(value, "keys"):
        contents.guard_extent(value)
        return value
    names = list(machine.operations.iterable(value.keys() if keys is None else machine.call_nested(keys, (value,))))
    return {key: machine.call_nested(get, (value, key)) if get is not None else value[key] for key in names}


@handles("LIST_APPEND")
def list_append(machine: Machine, frame: Frame, argument: int) -> None:
    value = frame.stack.pop()
    _grow(machine, frame.stack[-argument], "append", value)


@handles("SET_ADD")
def set_add(machine: Machine, frame: Frame, argument: int) -> None:
    value = frame.stack.pop()
    _grow(machine, frame.stack[-argument], "add", key_of(value))


@handles("MAP_ADD")
def map_add(machine: Machine, frame: Frame, argument: int) -> None:
    value = frame.stack.pop()
    key = frame.stack.pop()
    _grow(machine, frame.stack[-argument], "__setitem__", key_of(key), value)


def _grow(machine: Machine, holder: Value, name: str, *args: Value) -> None:
    """A display or comprehension grows its container; one that lived across a break changes as by its method."""
    if name in ("add", "__setitem__"):
        compared(machine, args[0])
    elif name == "update":
        hashed(machine, args[0])
    if machine.recorder.sources.knows(holder):
        if mutate(machine, holder, name, args, {}) is not MISSING:
            return
        args = machine.recorder.refuse_write(f"a {type(holder).__name__}", *args)
    args = machine.recorder.released(*args)
    getattr(holder, name)(*args)


@handles("UNPACK_SEQUENCE")
def unpack_sequence(machine: Machine, frame: Frame, argument: int) -> Outcome:
    listed = machine.operations.listed(frame, most=argument)
    if listed is not MISSING:
        return listed
    values = _unpacked(machine, frame.stack.pop(), argument)
    if len(values) < argument:
        raise ValueError(f"not enough values to unpack (expected {argument}, got {len(values)})")
    if len(values) > argument:
        raise ValueError(f"too many values to unpack (expected {argument})")
    frame.stack.extend(reversed(values))
    return None


def _unpacked(machine: Machine, value: Value, least: int) -> list[Value]:
    if not hasattr(type(value), "__iter__") and not hasattr(type(value), "__getitem__"):
        raise TypeError(f"cannot unpack non-iterable {type(value).__name__} object")
    values = _seen(machine, machine.operations.iterable(value, least))
    if is_a(values, (list, tuple, dict, set)):
        return list(values)
    parts = []
    for part in values:  # an endless iterator is read one element too far, as CPython does
        parts.append(part)
        if len(parts) > least:
            break
    return parts


@handles("UNPACK_EX")
def unpack_ex(machine: Machine, frame: Frame, argument: int) -> Outcome:
    listed = machine.operations.listed(frame)
    if listed is not MISSING:
        return listed
    value = frame.stack.pop()
    if not hasattr(type(value), "__iter__") and not hasattr(type(value), "__getitem__"):
        raise TypeError(f"cannot unpack non-iterable {type(value).__name__} object")
    values = list(_seen(machine, machine.operations.iterable(value)))
    before, after = argument & 255, argument >> 8
    if len(values) < before + after:
        raise ValueError(f"not enough values to unpack (expected at least {before + after}, got {len(values)})")
    middle = values[before : len(values) - after]
    frame.stack.extend(reversed(values[len(values) - after :] if after else []))
    frame.stack.append(middle)
    frame.stack.extend(reversed(values[:before]))
    return None
