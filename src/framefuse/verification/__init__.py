"""Says whether compiled code is as near to the exact results as eager: `framefuse.verify`, `framefuse.minify`."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from framefuse.ir.values import Function, Value

if TYPE_CHECKING:
    from pathlib import Path

    from framefuse.verification.minify import Minified
    from framefuse.verification.verify import Verification


def verify(function: Function, *args: Value, training: bool | None = None, **kwargs: Value) -> Verification:
    """Runs ``function(*args, **kwargs)`` eagerly, compiled, and eagerly on twice the digits, and says whether the
    compiled result is as near to the exact one as eager's is; where it is not: in which stage of the compiler, at which
    torch call of which line, and with the smallest program that shows it.

    Compiled code is called on these arguments, on other values, other sizes and other numbers, since a trace must not
    serve what it was not made for. Each run works on copies of the tensors in the arguments; parameters, buffers,
    gradients, optimizers and random generators that the function reaches are put back behind it. What else the function
    changes (lists, files) stays changed: it runs a dozen times or more.

    Args:
        function: a function or module, compiled or not.
        training: whether gradients are compared too; None: if anything that is given or owned requires grad.

    Returns:
        What was found: true, and ``ok``, where nothing differs; it prints on one screen.

    Raises:
        UserError: ``function`` cannot be called so under eager.
    """
    found: Verification = importlib.import_module("framefuse.verification.verify").verify(
        function, args, kwargs, training
    )
    return found


def minify(
    function: Function | str | Path,
    *args: Value,
    path: str | Path | None = None,
    kind: str = "wrong",
    training: bool | None = None,
    seconds: float = 30.0,
    **kwargs: Value,
) -> Minified:
    """The smallest program that shows what is wrong with the compiled ``function(*args, **kwargs)``: a file of a few
    lines without the user's model, which is a test, for a report.

    Args:
        function: a function or module, compiled or not; or the folder that a fault of the compiler left, by its path.
        path: where the file is written; None: nowhere.
        kind: ``"wrong"``, results that differ, or a fault of the compiler; ``"crash"``, the process ends; ``"hang"``,
            it takes more than ``seconds``; ``"slow"``, a compiled call takes 1.1 times eager's time or more. For a
            crash or a hang each attempt is a process of its own.
        training: as for :func:`framefuse.verify`.
        seconds: how long a program that may hang is waited for at most, or 20 times eager's time where that is more.
            Each is first given what compiling mostly takes, 3 s or more. In all it takes at most 40 times as long.

    Raises:
        UserError: no stretch of the program shows this by itself.
    """
    found: Minified = importlib.import_module("framefuse.verification.minify").minify(
        function, args, kwargs, path, kind, training, seconds
    )
    return found
