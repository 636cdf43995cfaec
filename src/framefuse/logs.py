"""Sets the levels of framefuse's loggers from the environment, and shows on stderr what nobody else handles.

`framefuse` has what concerns users: warnings, and at INFO why something is compiled again. Below it each stage has a
logger of its own, `framefuse.fuse` for instance, which tells at DEBUG what the stage made and how long it took.
"""

from __future__ import annotations

import logging
import os
import sys

from framefuse.options import BY_NAME, levels

FORM = "%(levelname)s %(name)s: %(message)s"


class _OnStderr(logging.StreamHandler):  # type: ignore[type-arg]
    """Shows a message where the program has no handlers of its own, as logging does with warnings."""

    def emit(self, record: logging.LogRecord) -> None:
        if not logging.getLogger().handlers:
            self.stream = sys.stderr  # which the program may replace
            super().emit(record)


def follow_environment() -> None:
    """Does what FRAMEFUSE_LOG says of levels; what is wrong with it the first function that is compiled tells."""
    stated = levels(os.environ.get(BY_NAME["log"].variable, ""))
    if not stated:
        return
    handler = _OnStderr()
    handler.setFormatter(logging.Formatter(FORM))
    logging.getLogger("framefuse").addHandler(handler)
    for name, level in stated.items():
        logging.getLogger(name).setLevel(level)
