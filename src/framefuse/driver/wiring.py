"""Connects stages that do not know each other, and has them imported: gives the recorder what native code does for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from framefuse import _native
from framefuse.capture.program import host
from framefuse.capture.recording.mode_stack import outside_modes
from framefuse.codegen.llvm.loading import load_by
from framefuse.ir.late_imports import Later, import_all, later
from framefuse.ir.marks import graph_break

if TYPE_CHECKING:
    from framefuse.capture.callables.marks import break_at
    from framefuse.ir.dropout_masks import draw_by
else:
    break_at = later("framefuse.capture.callables.marks", "break_at")
    draw_by = later("framefuse.ir.dropout_masks", "draw_by")


def connect() -> None:
    """Lets native code in, also to load kernels; called before the first call, and again without harm."""
    host.register(_native.Dispatch, _native.at_frame, _native.headroom, _native.type_lookup)
    load_by(_native.load_objects)


def load_stages() -> None:
    """Imports what is needed to record and to compile, under none of the program's modes, and opens the doors between
    the stages; called before anything is recorded, and again without harm.
    """
    connect()
    with outside_modes():
        import_all()
    break_at(graph_break)
    draw_by("cuda", Later("framefuse.codegen.triton.drawn_masks", "drawn"))  # no stage: a large mask asks for it
