"""Loads the extension from the file that FRAMEFUSE_NATIVE names, without framefuse or torch."""

import importlib.util
import os
import pathlib
import sys
import types

ROOT = pathlib.Path(__file__).resolve().parents[3]


def _load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def load():
    """The extension module and framefuse.native.tags; the installed ones where FRAMEFUSE_NATIVE names no file."""
    path = os.environ.get("FRAMEFUSE_NATIVE")
    if not path:
        return importlib.import_module("framefuse._native"), importlib.import_module("framefuse.native.tags")
    if "framefuse" not in sys.modules:
        package = sys.modules["framefuse"] = types.ModuleType("framefuse")
        package._native = _load("framefuse._native", path)
        package.tags = _load("framefuse_tags", str(ROOT / "src" / "framefuse" / "native" / "tags.py"))
    return sys.modules["framefuse"]._native, sys.modules["framefuse"].tags
