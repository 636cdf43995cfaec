"""Finds what an earlier process made of an equal trace, and keeps what this one makes."""

from __future__ import annotations

import functools
import hashlib
import logging
from collections.abc import Sequence

from framefuse.codegen.disk_cache import DiskCache, cache_folder
from framefuse.codegen.llvm import kept_kernels, object_of
from framefuse.driver.programs import later
from framefuse.driver.programs.fingerprint import fingerprint, llvm_here
from framefuse.driver.programs.functions import function, known
from framefuse.driver.programs.records import read, written
from framefuse.driver.programs.trace_key import trace_data
from framefuse.ir import passes_in_force
from framefuse.ir.compiled import Chosen, GraphCode
from framefuse.ir.frozen_classes import dataclass
from framefuse.ir.native_code import NativeCode
from framefuse.ir.schedule import RunKernel, Schedule
from framefuse.ir.values import Value
from framefuse.options import Options
from framefuse.runtime.compilation import Compilation

logger = logging.getLogger("framefuse.cache")
PROCESS = DiskCache(cache_folder("programs"))
NOTHING: frozenset[str] = frozenset()
MADE = frozenset(("rewritten", "lowered", "halves", "graph", "chosen", "planned", "code"))  # all behind a trace

Object = tuple[str, tuple[str, ...], bytes]  # of a kernel: its name, what it calls, its bytes
Places = tuple[tuple[int, int], ...]  # items of the schedule, and the number of the object that each runs


@dataclass(frozen=True, slots=True)
class Program:
    """The place of one compilation on disk: the ``key`` of its trace, and the objects of this process that the trace
    names, which stand for those of the process that wrote the file.
    """

    key: str
    strangers: list[Value]

    def fill(self, made: Compilation) -> frozenset[str]:
        """Fills in what the file holds; returns the names of the fields, none where there is no such file."""
        data = PROCESS.read(self.key)
        if data is None:
            return NOTHING
        try:
            lowered, halves, graph, planned, places, objects, maker = read(data, self._found)
            if llvm_here() not in (maker, None):
                return NOTHING  # what another LLVM compiled might hold a fault that this one has not
            code = _loaded(planned, places, objects)
        except Exception as error:  # what was written cannot be read here: it is made anew
            logger.debug("a kept program could not be read: %s: %s", type(error).__name__, error)
            return NOTHING
        made.lowered, made.halves, made.graph, made.planned = lowered, halves, graph, planned
        made.chosen = Chosen()
        made.code = code
        return MADE

    def keep(self, made: Compilation) -> None:
        """Has what was made written soon; nothing where a part of it cannot be."""
        found = _objects(made)
        if found is None or made.planned is None:
            return
        value = (made.lowered, made.halves, made.graph, made.planned.with_steps(()), *found, llvm_here())
        # What the value holds of the program lives as long as it does: no other object takes its address.
        numbers = {id(each): number for number, each in enumerate(self.strangers)}
        later.PROCESS.put(functools.partial(_keep, self.key, value, numbers))

    def _found(self, parts: Sequence[Value]) -> Value:
        return self.strangers[parts[0]] if len(parts) == 1 else function(*parts)


def keeps(options: Options) -> bool:
    """Whether anything is kept under these options."""
    if not options.cache or options.check or options.report or options.log or options.measures:
        return False
    return options.cpu_target == "llvm" and passes_in_force.key() is not None


def program(made: Compilation, options: Options) -> Program | None:
    """The place on disk of what is to be made of a trace, or of the graph that a case begins with; None where nothing
    is kept: where that is off, where somebody looks at every stage, where measuring decides, where passes of users have
    no version, and for other devices than the CPU.
    """
    if not keeps(options):
        return None
    trace, lowered = made.trace, getattr(made, "lowered", None)
    devices = {entry.spec.device for entry in trace.assumptions.inputs} | {meta.device for meta in trace.metas}
    if not devices <= {"cpu"}:
        return None
    try:
        data, strangers = trace_data(trace, lowered)
    except Exception as error:  # Unstorable, mostly
        logger.debug("%s is not kept: %s: %s", trace.name, type(error).__name__, error)
        return None
    key = hashlib.sha256("\0".join((*fingerprint(), repr(options), *(passes_in_force.key() or ()))).encode())
    key.update(b"\0" + data)
    return Program(key.hexdigest(), strangers)


def _keep(key: str, value: Value, numbers: dict[int, int]) -> None:
    try:
        data = written(value, lambda each: (numbers[id(each)],) if id(each) in numbers else known(each))
    except Exception as error:
        logger.debug("a program is not kept: %s: %s", type(error).__name__, error)
    else:
        PROCESS.write(key, data)


def _objects(made: Compilation) -> tuple[Places, tuple[Object, ...]] | None:
    """The objects of all kernels; None where there is other code, or another schedule than was planned."""
    code = made.code
    if code is None or code.schedule is not made.planned or code.tuning is not None:
        return None
    places, numbers, objects = [], dict[str, int](), list[Object]()
    for index, compiled in code.kernels.items():
        found = None
        if isinstance(compiled, NativeCode) and not compiled.quick:  # else it is kept when it is better
            found = object_of(compiled)
        if found is None:
            return None
        number = numbers.setdefault(found[0], len(objects))
        if number == len(objects):
            objects.append(found)
        places.append((index, number))
    return tuple(places), tuple(objects)


def _loaded(planned: Schedule, places: Places, objects: tuple[Object, ...]) -> GraphCode:
    """The code of all kernels from their objects."""
    uses = []
    for index, number in places:
        item = planned.items[index]
        assert isinstance(item, RunKernel)
        uses.append((item.kernel.title, number))
    codes = kept_kernels(objects, uses)
    return GraphCode(planned, {index: code for (index, _), code in zip(places, codes, strict=True)})
