"""framefuse: a just-in-time compiler for PyTorch programs; this module is the whole public interface.

Where torch is not installed there is :func:`load` alone, which runs exported programs.
"""

from importlib.util import find_spec

_WITHOUT_TORCH = find_spec("torch") is None

if _WITHOUT_TORCH:
    from framefuse.aot.loader import load
    from framefuse.errors import UserError
else:
    from framefuse.aot import export, load
    from framefuse.api import (
        compile,
        install,
        is_compiling,
        kernel,
        list_backends,
        load_cache,
        refresh,
        register_backend,
        reset,
        save_cache,
    )
    from framefuse.errors import CompilerBug, UserError
    from framefuse.explain import explain, graphs, profile
    from framefuse.explain import html_report as report
    from framefuse.marks import (
        allow_in_graph,
        assume_constant_result,
        disable,
        enable,
        graph_break,
        mark_dynamic,
        mark_static,
        nonstrict_trace,
    )
    from framefuse.passes import register_pass, replace, rewritten
    from framefuse.testing import assert_compiles
    from framefuse.verification import minify, verify

__version__ = "0.1.0"

__all__ = [
    "compile",
    "install",
    "kernel",
    "explain",
    "graphs",
    "report",
    "profile",
    "reset",
    "refresh",
    "save_cache",
    "load_cache",
    "export",
    "load",
    "disable",
    "enable",
    "graph_break",
    "allow_in_graph",
    "assume_constant_result",
    "mark_dynamic",
    "mark_static",
    "nonstrict_trace",
    "assert_compiles",
    "is_compiling",
    "list_backends",
    "register_backend",
    "register_pass",
    "replace",
    "rewritten",
    "verify",
    "minify",
    "UserError",
    "CompilerBug",
]

if _WITHOUT_TORCH:
    __all__ = ["load", "UserError"]
