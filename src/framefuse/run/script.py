"""Runs a user's script as `python script.py` does: arguments, paths, ``__main__``, exceptions and exit status."""

from __future__ import annotations

import builtins
import importlib.machinery
import io
import os
import sys
import types
from collections.abc import Callable, Sequence

import framefuse
from framefuse.errors import UserError

OURS = os.path.dirname(os.path.abspath(framefuse.__file__)) + os.sep
INTERRUPTED = 130  # what a shell reports of a process that SIGINT ended


def run_script(
    path: str, arguments: Sequence[str] = (), before: Callable[[types.CodeType], None] | None = None
) -> int:
    """Runs the file at ``path`` as ``__main__`` with ``arguments``; returns the exit status it ends with.

    ``before`` gets the script's code object before anything of it runs, and may raise UserError. An exception is
    printed by ``sys.excepthook`` with the user's frames. ``sys.argv``, ``sys.path`` and ``__main__`` stay the script's,
    for threads and exit handlers that outlive it.
    """
    where = os.path.join(os.getcwd(), path.removeprefix("./"))  # not normalised: so does Python
    sys.argv = [path, *arguments]
    if not getattr(sys.flags, "safe_path", False):
        sys.path[0] = os.path.dirname(os.path.realpath(path))
    main = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", where)
    vars(main).update(__file__=where, __builtins__=builtins, __annotations__={}, __loader__=loader, __cached__=None)
    sys.modules["__main__"] = main
    try:
        with io.open_code(where) as file:
            source = file.read()
    except OSError as error:
        print(f"framefuse: can't open file {where!r}: [Errno {error.errno}] {error.strerror}", file=sys.stderr)
        return 2
    try:
        code = compile(source, where, "exec", dont_inherit=True)
        if before is not None:
            try:
                before(code)
            except UserError as error:
                print(f"framefuse: {error}", file=sys.stderr)
                return 2
        exec(code, vars(main))
    except SystemExit as end:
        return _status(end.code)
    except BaseException as error:
        only_users_frames(error)
        sys.excepthook(type(error), error, error.__traceback__)
        return INTERRUPTED if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _status(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    print(code, file=sys.stderr)
    return 1


def only_users_frames(error: BaseException) -> None:
    """Takes framefuse's own frames out of the tracebacks of an exception and of those that it came from."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        this = left.pop()
        if this is None or id(this) in seen:
            continue
        seen.add(id(this))
        this.__traceback__ = _without_ours(this.__traceback__)
        left += [this.__cause__, this.__context__]
        if isinstance(this, BaseExceptionGroup):
            left += this.exceptions


def _without_ours(traceback: types.TracebackType | None) -> types.TracebackType | None:
    first = _next_of_the_user(traceback)
    entry = first
    while entry is not None:
        entry.tb_next = _next_of_the_user(entry.tb_next)
        entry = entry.tb_next
    return first


def _next_of_the_user(entry: types.TracebackType | None) -> types.TracebackType | None:
    while entry is not None and entry.tb_frame.f_code.co_filename.startswith(OURS):
        entry = entry.tb_next
    return entry
