"""Builds the C extension framefuse._native from src/framefuse/native/*.c; everything else is in pyproject.toml."""

import os
import sys
from glob import glob

from setuptools import Extension, setup

FOLDER = "src/framefuse/native"

# -fexceptions: libtorch's C++ exceptions may pass through our frames on their way to a handler.
FLAGS = ["-std=c11", "-O2", "-fvisibility=hidden", "-Wall", "-Wextra", "-fexceptions"]


def compile_flags() -> list[str]:
    """Flags of the C compiler; FRAMEFUSE_WERROR=1 makes warnings errors, FRAMEFUSE_DEBUG=1 turns the asserts on."""
    flags = list(FLAGS)
    if os.environ.get("FRAMEFUSE_WERROR") == "1":
        flags.append("-Werror")
    if os.environ.get("FRAMEFUSE_DEBUG") == "1":
        flags += ["-UNDEBUG", "-g", "-Og"]
    return flags


sources = sorted(glob(f"{FOLDER}/*.c"))
native = Extension(
    "framefuse._native",
    sources=sources,
    include_dirs=[FOLDER],
    depends=sorted(glob(f"{FOLDER}/*.h")),  # a changed header rebuilds, and headers travel in the sdist
    extra_compile_args=compile_flags(),
    libraries=["dl"] if sys.platform.startswith("linux") else [],
)

setup(ext_modules=[native] if sources else [])
