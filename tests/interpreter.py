"""Triton's interpreter with Triton's functions replaced once and for all: it does so anew at each launch and call."""

from __future__ import annotations

import functools
import types

import triton.language as tl
from triton.runtime import interpreter


@functools.cache
def replaced() -> None:
    """What a launch replaces in Triton's modules, which nothing in a process that interprets wants back."""
    interpreter._patch_lang(types.FunctionType(replaced.__wrapped__.__code__, {"tl": tl, "core": tl.core}))


def install() -> None:
    """Only where this version of Triton has the function that replaces."""
    if hasattr(interpreter, "_patch_lang") and hasattr(interpreter, "_LangPatchScope"):
        replaced()
        interpreter._patch_lang = lambda function: interpreter._LangPatchScope()
