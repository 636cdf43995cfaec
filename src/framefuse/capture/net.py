"""Puts a net under the recorder's own work: a fault there ends the recording, and the program goes on."""

from __future__ import annotations
import __future__

import ast
import inspect
import sys
import textwrap
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T", bound=type)


def netted(host: str, **methods: str) -> Callable[[T], T]:
    """Decorates a class: an exception inside one of ``methods`` is handed to ``<host>.fault``, and the method gives the
    value of the expression named for it.

    What these methods do is no part of the program, so no exception of the program comes from them. Each is compiled
    again with a ``try`` around its body, which costs nothing until something fails; a call more in between would cost
    a twentieth of the recording.
    """

    def decorate(cls: T) -> T:
        lines, first = inspect.getsourcelines(cls)
        (made,) = ast.parse(textwrap.dedent("".join(lines))).body
        assert isinstance(made, ast.ClassDef)
        ast.increment_lineno(made, first - 1)
        module, file = sys.modules[cls.__module__], inspect.getsourcefile(cls) or cls.__module__
        found = {node.name: node for node in made.body if isinstance(node, ast.FunctionDef)}
        for name, gives in methods.items():
            function = _with_net(found[name], host, gives, vars(module), file)
            function.__qualname__ = f"{cls.__qualname__}.{name}"
            setattr(cls, name, function)
        return cls

    return decorate


def _with_net(method: ast.FunctionDef, host: str, gives: str, variables: dict[str, Any], file: str) -> Any:
    (net,) = ast.parse(f"try: pass\nexcept Exception as fault:\n    {host}.fault(fault)\n    return {gives}").body
    assert isinstance(net, ast.Try)
    body, text = method.body, ast.get_docstring(method, clean=False)
    start = 0 if text is None else 1
    for node in ast.walk(net):
        ast.copy_location(node, method)
    if body[start:]:
        net.body = body[start:]
        method.body = [*body[:start], net]
    method.decorator_list = []
    code = compile(
        ast.Module([method], []), file, "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True
    )
    made: dict[str, Any] = {}
    exec(code, variables, made)
    return made[method.name]
