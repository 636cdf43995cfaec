"""The signal by which the interpreter ends a recording in the middle of the program, with the step to run for real."""

from __future__ import annotations

from typing import Any

from framefuse.capture.values import Arguments, Keywords, Value


class Break(BaseException):
    """Raised by an instruction that cannot be recorded, where all frames can be taken apart.

    ``target(*args, **kwargs)`` is the opaque step, None for a cut at which nothing runs; ``then`` says what the top
    frame does with its outcome (see ``Calls.finish``). ``code`` and ``detail`` name the row of the stops catalogue.
    """

    def __init__(
        self, target: Value, args: Arguments, kwargs: Keywords, then: Any, code: str, detail: str
    ) -> None:
        super().__init__(code)
        self.target = target
        self.args_of_target = args
        self.kwargs = kwargs
        self.then = then
        self.code = code
        self.detail = detail
