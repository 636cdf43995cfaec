"""framefuse: a just-in-time compiler for PyTorch programs; this module is the whole public interface."""

from framefuse.api import compile, disable, install, is_compiling, list_backends, register_backend, reset
from framefuse.errors import CompilerBug, UserError
from framefuse.explain import explain

__version__ = "0.1.0"

__all__ = [
    "compile",
    "install",
    "explain",
    "reset",
    "disable",
    "is_compiling",
    "list_backends",
    "register_backend",
    "UserError",
    "CompilerBug",
]
