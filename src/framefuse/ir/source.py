"""Names the place in the user's program from which a value, fact or stop came."""

from __future__ import annotations

import linecache
import os
from dataclasses import dataclass, field
from types import CodeType, FunctionType

WRAPPERS = 16  # that stand around a function, at most


# A recording makes one of these for each call and frame: a frozen class would take three times as long to make one.
@dataclass(slots=True, eq=False)
class Site:
    """An instruction of the program, step ``step`` of ``code``, at which a recording can break, and the one that called
    this code, where it can break there too.
    """

    code: CodeType
    step: int
    caller: Site | None = field(default=None, repr=False)


@dataclass(slots=True, unsafe_hash=True)
class Line:
    """A line of the user's program: ``file``, 1-based ``line`` and the enclosing ``function``'s qualified name.

    Lines of calls and relations know their ``site``: what a stage cannot take is left to the interpreter there.
    """

    file: str
    line: int
    function: str
    site: Site | None = field(default=None, compare=False, repr=False)

    @property
    def text(self) -> str:
        """The source text, stripped; empty when the file cannot be read."""
        return linecache.getline(self.file, self.line).strip()

    @property
    def place(self) -> str:
        """The file's name without its folders, and the line."""
        return f"{os.path.basename(self.file)}:{self.line}"

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def written_at(function: FunctionType) -> Line:
    """Where a function begins that the user wrote: behind what decorators that follow functools.wraps put around it."""
    for _ in range(WRAPPERS):
        inner = vars(function).get("__wrapped__")
        if not isinstance(inner, FunctionType):
            break
        function = inner
    code = function.__code__
    return Line(code.co_filename, code.co_firstlineno, code.co_qualname)
