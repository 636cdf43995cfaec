"""Tells whether what hears a print, a log call or a warning is Python's own, whose doings no code of a recording reads.

Such a call may be made after the trace. The user's handlers, filters, formatters and streams may change what the
program reads, or raise what it catches: a call that they hear is a step where it stands.
"""

from __future__ import annotations

import io
import logging
import re
import sys
import traceback
import types
import warnings

from framefuse.capture.facts.place_names import place_of
from framefuse.capture.facts.sources import Sources
from framefuse.capture.interp import stacks
from framefuse.capture.interp.machine import Machine
from framefuse.capture.program import callers
from framefuse.capture.program.lookups import type_get
from framefuse.capture.program.markers import MISSING
from framefuse.ir.facts import Source
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Arguments, Function, Keywords, Value

HOMES = ("logging", "logging.handlers")
HANDLERS = frozenset(
    ("logging", name) for name in ("StreamHandler", "FileHandler", "NullHandler", "_StderrHandler")
) | {
    ("logging.handlers", name)
    for name in ("RotatingFileHandler", "TimedRotatingFileHandler", "WatchedFileHandler")
}  # fmt: skip
STYLES = (logging.PercentStyle, logging.StrFormatStyle, logging.StringTemplateStyle)
# What Python's own code looks up on each of them: all that a class, or an attribute in its place, may put in.
OF_LOGGERS = tuple(
    "isEnabledFor getEffectiveLevel _log findCaller makeRecord handle filter callHandlers debug info warning error "
    "critical log".split()
)
OF_HANDLERS = ("handle", "filter", "acquire", "emit", "format", "flush", "release", "handleError")
OF_FILES = ("shouldRollover", "doRollover", "rotation_filename", "rotate", "reopenIfNeeded", "_open")
PUT_ON_FILES = ("namer", "rotator")
OF_FORMATTERS = ("format", "usesTime", "formatTime", "formatMessage")
OF_STREAMS = ("write", "flush")
OF_WARNINGS = ("__new__", "__init__", "__str__", "__repr__")
# What a stream of text writes to, and what that writes to.
MEMORIES = (io.BytesIO, io.FileIO)
BUFFERS = (io.BufferedWriter, io.BufferedRandom)
# Functions of the module ``logging``, which speak to its root logger.
TO_ROOT: dict[Function, int] = {
    logging.debug: logging.DEBUG, logging.info: logging.INFO, logging.warning: logging.WARNING,
    logging.error: logging.ERROR, logging.critical: logging.CRITICAL,
}  # fmt: skip
HARMLESS = frozenset(("default", "always", "all", "ignore", "module", "once"))


class Hearers:
    """Asks who hears what a call of the program says, and states what the answer rests on."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.sources: Sources = machine.recorder.sources
        self.contents = machine.recorder.contents

    def are_pythons(self, target: Function, args: Arguments, kwargs: Keywords) -> bool:
        """Whether none of the user's code hears a call of ``stacks.SPEAKS`` or ``steps.SPEAKS``."""
        if target is print or target is traceback.print_stack:
            file = kwargs.get("file")
            if target is traceback.print_stack and len(args) > 2:
                file = args[2]
            if file is not None:
                return self._writes(file, self.sources.source_of(file))
            return self._standard("stdout" if target is print else "stderr")
        if target is warnings.warn:
            level = args[2] if len(args) > 2 else kwargs.get("stacklevel", 1)
            known = "skip_file_prefixes" not in kwargs
            return self.of_warnings(args[0], category_of(args, kwargs), level if known else None)
        if target in TO_ROOT or target is logging.log:
            level = TO_ROOT[target] if target in TO_ROOT else _level(args, 0)
            return bool(logging.root.handlers) and self._of_logger(logging.root, level)
        if target is logging.Logger.log:
            return self._of_logger(args[0], _level(args, 1))
        return self._of_logger(args[0], callers.LEVELS.get(target)) if args else False

    # Attributes -------------------------------------------------------------------------------------------------------

    def _read(self, holder: Value, name: str) -> Value:
        """What the instance dict of an object holds, as a fact."""
        value = vars(holder).get(name, MISSING)
        if value is MISSING:
            self.sources.guard_absent(holder, name)
            return MISSING
        return self.sources.read(holder, "attr", name, value)

    def _is(self, module: types.ModuleType, name: str, value: Value) -> bool:
        """Whether a module has ``value`` at a name."""
        self.sources.root(module)
        return self._read(module, name) is value

    def _own_methods(self, holder: Value, names: tuple[str, ...]) -> bool:
        """Whether what these names give of an object is what ``logging`` defines."""
        kind = type(holder)
        if not names or any(name in vars(holder) for name in names):
            return False
        if any(not _is_loggings(type_get(kind, name)) for name in names):
            return False
        self.sources.guard_type(holder)
        self.sources.guard_version(kind)
        self.sources.guard_absent_names(holder, names)
        return True

    def _empty(self, holder: Value, name: str) -> bool:
        values = self._read(holder, name)
        if type(values) is not list or values:
            return False
        self.contents.guard_length(values)
        return True

    # Loggers ----------------------------------------------------------------------------------------------------------

    def _of_logger(self, logger: logging.Logger, level: Value) -> bool:
        if type(logger) not in (logging.Logger, logging.RootLogger):
            return False
        self._known(logger)
        return self._all_pythons(logger, level) or self._unheard(logger, level)

    def _all_pythons(self, logger: logging.Logger, level: Value) -> bool:
        if not self._own_methods(logger, OF_LOGGERS) or not self._empty(logger, "filters"):
            return False
        if not self._is(logging, "_logRecordFactory", logging.LogRecord):
            return False
        self.sources.guard_version(logging.LogRecord)
        if not _is_loggings(logging.LogRecord.__init__) or not _is_loggings(logging.LogRecord.getMessage):
            return False
        found, here = 0, logger
        while here is not None:
            handlers = self._read(here, "handlers")
            if type(handlers) is not list:
                return False
            self.contents.guard_length(handlers)
            for number, handler in enumerate(handlers):
                self.contents.item(handlers, number, handler)
                if not self._of_handler(handler) and not self._below(handler, level):
                    return False
            found += len(handlers)
            if not self._read(here, "propagate"):
                break
            here = self._read(here, "parent")
        if found:
            return True
        self.sources.root(logging)
        last = self._read(logging, "lastResort")
        return last is not None and self._of_handler(last)

    def _unheard(self, logger: logging.Logger, level: Value) -> bool:
        """Whether a logger is too quiet for this level."""
        return self.hears(logger, level) is False

    def hears(self, logger: Value, level: Value) -> bool | None:
        """What ``logger.isEnabledFor(level)`` gives, by the levels of itself and its parents; None where something else
        decides.
        """
        known = type(logger) in (logging.Logger, logging.RootLogger) and type(level) is int
        if not known or not self._own_methods(logger, OF_LOGGERS):
            return None
        found: bool = logger.isEnabledFor(level)
        return found if found is self._by_levels(logger, level) else None

    def _by_levels(self, logger: logging.Logger, level: int) -> bool:
        self._known(logger)
        self._known(logger.manager)
        if self._read(logger, "disabled") or self._read(logger.manager, "_disable") >= level:
            return False
        return level >= self.level(logger)

    def level(self, logger: logging.Logger) -> int:
        """The level of a logger, or of its next parent that has one."""
        self._known(logger)
        here: Value = logger
        while here is not None:
            own: int = self._read(here, "level")
            if own:
                return own
            here = self._read(here, "parent")
        return logging.NOTSET

    def _known(self, holder: logging.Logger | logging.Manager) -> None:
        if self.sources.source_of(holder) is None:
            self.sources.root(holder)

    def is_silent(self, target: Function, args: Arguments) -> bool:
        """Whether a call of a logger's method is one that nobody hears: it does nothing, whatever it is given."""
        level = _level(args, 1) if target is logging.Logger.log else callers.LEVELS.get(target)
        return level is not None and bool(args) and self.hears(args[0], level) is False

    def _below(self, handler: logging.Handler, level: Value) -> bool:
        """Whether a handler hears no record of this level."""
        own = self._read(handler, "level") if hasattr(handler, "__dict__") else MISSING
        return type(own) is int and type(level) is int and level < own

    def _of_handler(self, handler: Value) -> bool:
        kind = type(handler)
        if (kind.__module__, kind.__name__) not in HANDLERS:
            return False
        self.sources.guard_type(handler)
        if kind is logging.NullHandler:
            return self._own_methods(handler, OF_HANDLERS)
        names = tuple([name for name in OF_FILES if type_get(kind, name) is not MISSING])
        own = OF_HANDLERS if "flush" not in vars(handler) else tuple([each for each in OF_HANDLERS if each != "flush"])
        if not self._own_methods(handler, own + names) or not self._empty(handler, "filters"):
            return False
        if own is not OF_HANDLERS and not self._flushes(handler):
            return False
        if not self._of_formatter(handler):
            return False
        if not self._standard("stderr"):  # where faults of a text are told
            return False
        if is_a(handler, logging.FileHandler):
            self.sources.guard_absent_names(handler, PUT_ON_FILES)
            return not any(name in vars(handler) or type_get(kind, name) for name in PUT_ON_FILES)
        return kind.__name__ == "_StderrHandler" or self._at(handler, "stream")

    def _flushes(self, handler: logging.Handler) -> bool:
        """Whether a stream's own method was put in the place of the handler's, as transformers does."""
        method, base = self._read(handler, "flush"), self.sources.source_of(handler)
        if type(method) is not types.BuiltinMethodType or method.__name__ != "flush" or base is None:
            return False
        return self._writes(method.__self__, Source("getattr", Source("attr", base, "flush"), "__self__"))

    def _of_formatter(self, handler: Value) -> bool:
        formatter = self._read(handler, "formatter")
        if formatter is None:
            self.sources.root(logging)
            formatter = self._read(logging, "_defaultFormatter")
        if type(formatter) is not logging.Formatter or not self._own_methods(formatter, OF_FORMATTERS):
            return False
        if self._read(formatter, "converter") is not MISSING:
            return False
        style = self._read(formatter, "_style")
        return type(style) in STYLES and self._own_methods(style, ("format", "_format", "usesTime"))

    # Warnings ---------------------------------------------------------------------------------------------------------

    def of_warnings(self, text: str | None, category: type, level: Value = 1) -> bool:
        """Whether a warning (text None: of any text) is dropped, written to the error stream, logged to Python's
        handlers or added to a list, under the filters that were seen. Who then reads the list finds that it has
        changed.
        """
        self.sources.root(warnings)
        if any(type(type_get(category, name)) is types.FunctionType for name in OF_WARNINGS):
            return False
        self.sources.guard_version(category)
        if not self._raises_none(text, category, self._module(level)):
            return False
        named = ("_showwarnmsg", "_formatwarnmsg", "_formatwarnmsg_impl", "formatwarning")
        if not all(_is_of(self._read(warnings, name), "warnings", name) for name in named):
            return False
        shows, writes = self._read(warnings, "showwarning"), self._read(warnings, "_showwarnmsg_impl")
        if _is_of(shows, "logging", "_showwarning"):
            heard = logging.Logger.manager.loggerDict.get("py.warnings")
            if not is_a(heard, logging.Logger) or not heard.handlers:
                return False
            return self._of_logger(heard, logging.WARNING)
        if shows is not warnings._showwarning_orig:  # type: ignore[attr-defined]
            return False
        holder = getattr(writes, "__self__", None)
        if type(writes) is types.BuiltinMethodType and type(holder) is list and writes.__name__ == "append":
            self.contents.change(holder).blind = True
            return True
        return _is_of(writes, "warnings", "_showwarnmsg_impl") and self._standard("stderr")

    def _raises_none(self, text: str | None, category: type, module: str | None) -> bool:
        """Whether no filter turns such a warning into an exception: the first one that fits says what is done."""
        filters = vars(warnings)["filters"]
        source = self._by_content(filters)
        if source is None:
            filters = self._read(warnings, "filters")
            self.contents.guard_shallow_contents(filters)
        for number, row in enumerate(filters):
            action, message, kind, where, line = row
            self._hold(source, number, row, (2,))
            if not issubclass(category, kind):
                continue
            self._hold(source, number, row, (0, 1, 3, 4))
            fits, sure = _fits(message, text)
            there, known = _fits(where, module)
            if not fits or not there:
                continue
            if action not in HARMLESS:
                return False
            if sure and known and not line:
                return True
        if source is not None:
            self.sources.fact(source, "length", len(filters))
        return self._read(warnings, "defaultaction") in HARMLESS

    def _hold(self, filters: Source | None, number: int, row: tuple[Value, ...], places: tuple[int, ...]) -> None:
        """States what a filter has at these places, where the filters are held to their content."""
        if filters is not None:
            here = Source("item", filters, number)
            self.sources.fact(here, "type", tuple)
            for place in places:
                self.sources.guard_value(Source("item", here, place), row[place])

    def _by_content(self, filters: Value) -> Source | None:
        """Where the filters stand that were there as the call began, which facts hold to what is in them, as far as it
        was looked at: ``catch_warnings`` puts another list there, with what it adds made anew, at each of its uses.
        """
        sources = self.sources
        if type(filters) is not list or sources.knows(filters):
            return None
        if place_of(warnings, "attr", "filters") in sources.written:
            return None
        if not all(type(row) is tuple and len(row) == 5 and is_a(row[2], type) for row in filters):
            return None
        source = Source("attr", sources.known_source(warnings), "filters")
        sources.fact(source, "type", list)
        return source

    def _module(self, level: Value) -> str | None:
        """The name of the module to which a warning of this ``stacklevel`` is put down, None where nobody knows."""
        frames = stacks.frames(self.machine)
        if type(level) is not int or max(level, 1) > len(frames):
            return None
        name = frames[max(level, 1) - 1].globals.get("__name__")
        return name if type(name) is str else None

    # Streams ----------------------------------------------------------------------------------------------------------

    def _standard(self, name: str) -> bool:
        """Whether a standard stream is one of Python's, or there is none."""
        self.sources.root(sys)
        return self._at(sys, name)

    def _at(self, holder: Value, name: str) -> bool:
        """Whether the stream at a name of an object is one of Python's; another one of its kind may come there."""
        stream = vars(holder).get(name, MISSING)
        base = self.sources.source_of(holder)
        if place_of(holder, "attr", name) in self.sources.written:
            source = self.sources.source_of(stream)
        else:
            source = None if base is None else Source("getattr", base, name)  # not held to its identity
        if stream is None:
            if source is not None:
                self.sources.fact(source, "is", None, id(None))
            return True
        return self._writes(stream, source)

    def _writes(self, stream: Value, source: Source | None) -> bool:
        """Whether only Python's C runs when a text is written to a stream."""
        kind = type(stream)
        if not issubclass(kind, (io.TextIOWrapper, io.StringIO)):
            return False
        own = io.TextIOWrapper if issubclass(kind, io.TextIOWrapper) else io.StringIO
        if any(type_get(kind, name) is not type_get(own, name) for name in (*OF_STREAMS, "__getattribute__")):
            return False
        if not self._plain(stream, source):
            return False
        if own is io.StringIO:
            return True
        parts = (("buffer", (*MEMORIES, *BUFFERS)), ("raw", MEMORIES))
        here, place = stream, source
        for name, kinds in parts:
            if name == "buffer" and type_get(kind, name) is not type_get(own, name):
                return False
            here, place = getattr(here, name), None if place is None else Source("getattr", place, name)
            if type(here) not in kinds or not self._plain(here, place):
                return False
            if type(here) in MEMORIES:
                return True
        return True

    def _plain(self, stream: Value, source: Source | None) -> bool:
        """Whether nothing was put in the place of a stream's methods."""
        if any(name in vars(stream) for name in OF_STREAMS):
            return False
        if source is not None:
            self.sources.fact(source, "type", type(stream))
            self.sources.guard_version(type(stream))
            content = Source("getattr", source, "__dict__")  # which makes it where there is none yet
            for name in OF_STREAMS:
                self.sources.fact(content, "absent", name)
        return True


def _level(args: Arguments, place: int) -> Value:
    return args[place] if len(args) > place else None


def category_of(args: Arguments, kwargs: Keywords) -> type:
    """The category that ``warnings.warn`` puts a text in."""
    category = args[1] if len(args) > 1 else kwargs.get("category")
    return category if is_a(category, type) and issubclass(category, Warning) else UserWarning


def _fits(pattern: Value, text: str | None) -> tuple[bool, bool]:
    """Whether a text may be one that a filter asks for, and whether that is sure."""
    if pattern is None:
        return True, True
    if text is None or not is_a(pattern, re.Pattern):
        return True, False
    return pattern.match(text) is not None, True


def _is_loggings(method: Value) -> bool:
    function = getattr(method, "__func__", method)
    return type(function) is types.FunctionType and function.__globals__.get("__name__") in HOMES


def _is_of(function: Value, module: str, name: str) -> bool:
    return (
        type(function) is types.FunctionType
        and function.__globals__.get("__name__") == module
        and function.__name__ == name
    )
