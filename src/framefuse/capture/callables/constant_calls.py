"""Makes calls of the standard library whose outcome their arguments decide: once, as a constant of the trace.

Their arguments are held to their values. What they give is the call's own, so that it is made anew where it leaves it.
"""

from __future__ import annotations

import decimal
import pathlib
import pickletools
import random
import types

from framefuse.capture.facts.atoms import ATOMS
from framefuse.capture.facts.library_values import OWN, PATHS, VALUES, Arithmetic, is_constant
from framefuse.capture.facts.nested_numbers import pin_nested, strip
from framefuse.capture.facts.numbers import TRACKED, Integer, bare, form_of
from framefuse.capture.facts.texts import Text
from framefuse.capture.program.lookups import type_get
from framefuse.capture.recording.recorder import Recorder
from framefuse.ir.containers import inside
from framefuse.ir.numbers import Real
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Keywords, Value

# Modules of which all functions but those named are decided by their arguments; of others those that are named.
WHOLE: dict[str, frozenset[str]] = {
    name: frozenset(but.split())
    for name, but in (
        ("_struct", "iter_unpack"), ("zlib", "compressobj decompressobj"), ("binascii", ""), ("cmath", ""),
        ("unicodedata", ""), ("_hashlib", "hmac_new get_fips_mode"), ("textwrap", ""),
        ("statistics", "NormalDist kernel_density kde kde_random linear_regression"),
        ("_sha1", ""), ("_sha2", ""), ("_sha256", ""), ("_sha512", ""), ("_md5", ""),
    )
}  # fmt: skip
NAMED = frozenset(
    (("json", "dumps"), ("json", "loads"), ("uuid", "uuid3"), ("uuid", "uuid5"), ("ast", "literal_eval"),
     ("_pickle", "dumps"), ("_pickle", "loads"), ("string", "capwords"))
)  # fmt: skip
# Classes whose objects are made of the arguments alone; of a generator only where a seed is given.
MAKERS = VALUES | OWN | {pathlib.Path}
# Methods that read a clock, the zone of the process or its locale, files, or what no seed decides.
ELSEWHERE = frozenset(
    "now today utcnow fromtimestamp utcfromtimestamp timestamp astimezone strftime strptime __format__ "
    "fileno isatty readinto getbuffer".split()
)
OF_PYTHON = frozenset(("fractions", "uuid", "random", "pathlib", "pathlib._local", "string"))
# What of pathlib looks at names alone.
OF_NAMES = ("PurePath", "PurePosixPath", "PureWindowsPath")
# Methods of a generator that look into no element of what they are given.
DRAWING = frozenset(("choice", "choices", "sample", "shuffle"))
DEPTH = 3  # containers within each other that pinning numbers walks
CONTAINERS = (list, tuple, set, frozenset, dict)
# What pickled data says to find a class or to call something.
CALLING = frozenset(
    "GLOBAL STACK_GLOBAL INST OBJ NEWOBJ NEWOBJ_EX REDUCE BUILD PERSID BINPERSID EXT1 EXT2 EXT4 NEXT_BUFFER".split()
)


def is_decided(recorder: Recorder, target: Value, args: Arguments, kwargs: Keywords) -> bool:
    """Whether this is a call of such a function, class or method, with arguments that are known by their values."""
    kind = type(target)
    if kind is types.FunctionType:
        return _of_python(recorder, target, args, kwargs)
    if kind is types.BuiltinFunctionType:
        holder, name = target.__self__, target.__name__
        if type(holder) is types.ModuleType:
            return _named(holder.__name__, name, args) and _by_value(recorder, (*args, *kwargs.values()))
        if is_a(holder, type):
            return holder in VALUES and name not in ELSEWHERE and _by_value(recorder, (*args, *kwargs.values()))
        if type(holder) not in VALUES and type(holder) not in OWN:
            return False
        return _of_object(recorder, holder, name, args, kwargs)
    if kind in (types.MethodDescriptorType, types.WrapperDescriptorType):
        held = args and (type(args[0]) in VALUES or type(args[0]) in OWN) and is_a(args[0], target.__objclass__)
        return bool(held) and _of_object(recorder, args[0], target.__name__, args[1:], kwargs)
    if kind is types.MethodWrapperType:
        holder = target.__self__
        held = type(holder) in VALUES or type(holder) in OWN
        return held and _of_object(recorder, holder, target.__name__, args, kwargs)
    if is_a(target, type) and target in MAKERS:
        seeded = target is not random.Random or (len(args) == 1 and args[0] is not None and not kwargs)
        return seeded and _by_value(recorder, (*args, *kwargs.values()))
    return False


def _named(module: str, name: str, args: Arguments) -> bool:
    if module in WHOLE:
        return name not in WHOLE[module]
    if (module, name) not in NAMED:
        return False
    return name != "loads" or module != "_pickle" or (bool(args) and type(args[0]) is bytes and _calls_nothing(args[0]))


def _calls_nothing(pickled: bytes) -> bool:
    """Whether pickled data holds numbers, texts and containers alone."""
    try:
        return all(code.name not in CALLING for code, _, _ in pickletools.genops(pickled))
    except ValueError:
        return False


def _of_object(recorder: Recorder, holder: Value, name: str, args: Arguments, kwargs: Keywords) -> bool:
    """Of a method of C of one of these objects."""
    if name in ELSEWHERE or not is_constant(recorder.sources, holder):
        return False
    if type(holder) is random.Random and name == "seed" and (not args or args[0] is None):
        return False
    return _by_value(recorder, (*args, *kwargs.values()))


def _of_python(recorder: Recorder, target: types.FunctionType, args: Arguments, kwargs: Keywords) -> bool:
    """Of a function of the library that is not interpreted, or of a method of one of these objects."""
    module = target.__globals__.get("__name__", "")
    given = (*args, *kwargs.values())
    if module in WHOLE or module in ("json", "uuid", "ast") or (module, target.__name__) in NAMED:
        if target.__qualname__ == target.__name__ and _named(module, target.__name__, args):
            return _by_value(recorder, given)
    if module not in OF_PYTHON or not args or target.__name__ in ELSEWHERE:
        return False
    holder = args[0]
    kind = type(holder)
    if (kind not in VALUES and kind not in OWN) or type_get(kind, target.__name__) is not target:
        return False
    if kind in PATHS and target.__qualname__.partition(".")[0] not in OF_NAMES:
        return False
    if kind is random.Random and target.__name__ in DRAWING:
        return is_constant(recorder.sources, holder) and _is_drawn(recorder, target.__name__, args[1:], kwargs)
    return _of_object(recorder, holder, target.__name__, args[1:], kwargs)


def _is_drawn(recorder: Recorder, name: str, args: Arguments, kwargs: Keywords) -> bool:
    """Whether elements are drawn of a sequence whose content is known; one that is shuffled must be the call's own."""
    if not args or type(args[0]) not in (list, tuple, range, str):
        return False
    if name == "shuffle" and recorder.sources.knows(args[0]):
        return False
    return _by_value(recorder, (*args[1:], *kwargs.values()))


def _by_value(recorder: Recorder, value: Value, depth: int = 0) -> bool:
    """Whether a value is told by numbers and texts."""
    kind = type(value)
    if kind in ATOMS or kind in TRACKED:
        return True
    if kind in (range, slice):
        return not recorder.sources.knows(value)
    if kind in VALUES or kind in OWN:
        return is_constant(recorder.sources, value)
    if kind not in CONTAINERS or depth > DEPTH:
        return False
    return all(_by_value(recorder, part, depth + 1) for part in inside(value))


def is_in_vain(recorder: Recorder, values: Arguments) -> bool:
    """Whether a trace for these values would serve few calls: one lies there that was another at call after call, that
    comes out of a step, or that is a text of the caller.
    """
    return recorder.relations.tracked and any(_moves_on(recorder, value) for value in values)


def _moves_on(recorder: Recorder, value: Value) -> bool:
    kind = type(value)
    if kind is Text:
        own = not value.made_of
        return own or any(_moves_on(recorder, part) for part in value.made_of)
    if kind in TRACKED:
        form = form_of(value)
        names = form.names if is_a(form, Real) else form.symbols
        if not recorder.relations.volatile_names.isdisjoint(names):
            return True
        return recorder.sources.looked_at(value) if kind is Integer else recorder.sources.moves(value)
    if kind not in CONTAINERS:
        return False
    return any(_moves_on(recorder, part) for part in inside(value))


def call_decided(recorder: Recorder, target: Value, args: Arguments, kwargs: Keywords) -> Value:
    """Makes the call."""
    holder = getattr(target, "__self__", None)
    drawn = type(target) is types.FunctionType and target.__name__ in DRAWING
    for part in (*args, *kwargs.values()):
        if type(part) in CONTAINERS:
            (recorder.contents.guard_shallow_contents if drawn else recorder.contents.guard_nested_contents)(part)
            if type(part) in (set, frozenset) and len(part) > 1:
                recorder.sources.tie()
        if not drawn or type(part) not in CONTAINERS:
            pin_nested(part)
    if drawn:
        given = (*args[:2], *map(bare, args[2:]))
    else:
        given = tuple([strip(part) if _tracks(part) else part for part in args])
    named = {name: strip(part) if _tracks(part) else part for name, part in kwargs.items()}
    if decimal.Decimal in map(type, (target, holder, *given)) or target is decimal.Decimal or is_a(holder, type):
        with Arithmetic(recorder.sources):
            return target(*given, **named)
    return target(*given, **named)


def _tracks(value: Value) -> bool:
    """Whether a run-time number lies in nested containers."""
    kind = type(value)
    if kind in TRACKED:
        return True
    if kind not in CONTAINERS:
        return False
    return any(map(_tracks, inside(value)))

