"""Says which warnings the filters drop that a recording has put in force itself."""

from __future__ import annotations

import re

from framefuse.capture.recording.state import Ambient, FilterStretch
from framefuse.ir.own_class import is_a
from framefuse.ir.values import Value


def innermost(ambient: Ambient) -> FilterStretch | None:
    """The stretch under filters of its own in which the recording is, or None."""
    return next((each for each in reversed(ambient.filters) if each.open), None)


def dropped(ambient: Ambient, text: Value, category: type) -> bool:
    """Whether the recording's own filters drop a warning, whatever stands behind these."""
    for stretch in reversed(ambient.filters):
        for action, message, kind, module, line in stretch.added if stretch.open else ():
            if not issubclass(category, kind):
                continue
            if module is not None or line or (message is not None and type(text) is not str):
                return False
            if message is None or (is_a(message, re.Pattern) and message.match(text) is not None):
                return bool(action == "ignore")
    return False
