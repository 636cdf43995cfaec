"""Loads the extension from the file named by FRAMEFUSE_NATIVE, or the built one, without framefuse or torch."""

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
    """The extension module and framefuse.native.tags, of the installed framefuse where that is imported already."""
    if hasattr(sys.modules.get("framefuse"), "__path__"):
        return importlib.import_module("framefuse._native"), importlib.import_module("framefuse.native.tags")
    if "framefuse" not in sys.modules:
        package = sys.modules["framefuse"] = types.ModuleType("framefuse")
        given = os.environ.get("FRAMEFUSE_NATIVE")
        path = given or next((ROOT / "src" / "framefuse").glob(f"_native.{sys.implementation.cache_tag}*.so"))
        package._native = _load("framefuse._native", str(path))
        package.tags = _load("framefuse_tags", str(ROOT / "src" / "framefuse" / "native" / "tags.py"))
    return sys.modules["framefuse"]._native, sys.modules["framefuse"].tags
