"""Finds which parameters of a Triton kernel point to memory that it writes, by reading its source."""

from __future__ import annotations

import ast
import builtins
import functools
import inspect
import textwrap
import types
from collections.abc import Iterator

from framefuse.ir.values import Value

Names = frozenset[str]
NOTHING: Names = frozenset()
STORING = ("store", "atomic", "scatter", "async")  # what the name of a function of Triton's language has that writes
LOADING = ("load", "gather")  # what such a function gives is no address
# By these words a kernel makes addresses of numbers, or runs code that nothing here reads.
HIDDEN = ("pointer_type", "inline_asm", "extern_call")


class Unread(Exception):
    """A kernel whose source is not to be had, or that goes by addresses from elsewhere."""


@functools.lru_cache(maxsize=512)
def stored_to(function: types.FunctionType) -> Names:
    """The parameters through which the kernel of this Python function writes; what is not understood counts as a write.

    Raises Unread where a kernel may write memory that none of its parameters points to, or has no source.
    """
    return _stored_to(function, ())


def _stored_to(function: types.FunctionType, callers: tuple[types.FunctionType, ...]) -> Names:
    try:
        text = textwrap.dedent(inspect.getsource(function))
        tree = next(node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef))
    except (OSError, TypeError, SyntaxError, StopIteration) as error:
        raise Unread(function.__name__) from error
    if any(word in text for word in HIDDEN):
        raise Unread(function.__name__)
    body = _Body(tree, _namespace(function), (*callers, function))
    return body.written()


def _namespace(function: types.FunctionType) -> dict[str, Value]:
    """What the names of a function stand for that are none of its own."""
    cells: dict[str, Value] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:
            continue
    return {**vars(builtins), **function.__globals__, **cells}


class _Body:
    """The statements of one function. ``points`` has, for each name, the parameters that its values may point into:
    whatever went into a value, loads left out. It only grows, and is walked until it stays.
    """

    def __init__(
        self, tree: ast.FunctionDef, names: dict[str, Value], callers: tuple[types.FunctionType, ...]
    ) -> None:
        self.tree = tree
        self.names = names
        self.callers = callers
        parameters = (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)
        self.parameters = [parameter.arg for parameter in parameters]
        self.points: dict[str, Names] = {name: frozenset((name,)) for name in self.parameters}
        self.stores: Names = NOTHING

    def written(self) -> Names:
        """The parameters that the function writes through."""
        while True:
            before = (dict(self.points), self.stores)
            for statement in self.tree.body:
                self._statement(statement)
            if (self.points, self.stores) == before:
                return self.stores

    def _statement(self, statement: ast.stmt) -> None:
        if isinstance(statement, (ast.FunctionDef, ast.ClassDef)):
            raise Unread(self.tree.name)
        if isinstance(statement, (ast.Assign, ast.AugAssign, ast.AnnAssign)) and statement.value is not None:
            given = self._value(statement.value)
            targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
            for target in targets:
                self._assign(target, given)
            return
        if isinstance(statement, ast.For):
            self._assign(statement.target, self._value(statement.iter))
        for field in ast.iter_child_nodes(statement):
            if isinstance(field, ast.stmt):
                self._statement(field)
            elif isinstance(field, ast.expr):
                self._value(field)
            elif isinstance(field, ast.withitem):
                given = self._value(field.context_expr)
                if field.optional_vars is not None:
                    self._assign(field.optional_vars, given)
            elif not isinstance(field, (ast.expr_context, ast.operator)):
                raise Unread(self.tree.name)

    def _assign(self, target: ast.expr, given: Names) -> None:
        for node in ast.walk(target):
            if isinstance(node, ast.Name):
                self.points[node.id] = self.points.get(node.id, NOTHING) | given

    def _value(self, node: ast.expr) -> Names:
        """The parameters that a value may point into; what is written on the way is noted."""
        if isinstance(node, ast.Name):
            return self.points.get(node.id, NOTHING)
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, (ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)):
            raise Unread(self.tree.name)
        given = _joined(self._value(part) for part in ast.iter_child_nodes(node) if isinstance(part, ast.expr))
        if isinstance(node, ast.NamedExpr):
            self._assign(node.target, given)
        return given

    def _call(self, node: ast.Call) -> Names:
        args = [self._value(part.value if isinstance(part, ast.Starred) else part) for part in node.args]
        named = [(word.arg, self._value(word.value)) for word in node.keywords]
        given = _joined((*args, *(names for _, names in named)))
        called = self._known(node.func)
        if called is None:
            if not isinstance(node.func, ast.Attribute):  # a parameter that is called, or a name of nothing
                return self._all(given)
            given |= self._value(node.func.value)  # a method
            return self._of_language(node.func.attr, given, given)
        if _is_kernel(called):
            return self._of_kernel(called.fn, node, args, named, given)
        if isinstance(called, type) or _is_pure(called):
            return given
        if str(getattr(called, "__module__", "")).startswith("triton.language"):
            target = args[0] if args else named[0][1] if named else NOTHING
            return self._of_language(str(getattr(called, "__name__", "")), target, given)
        return self._all(given)

    def _of_language(self, name: str, target: Names, given: Names) -> Names:
        """Of a function or method of Triton's language: a store writes what its first operand points into."""
        if any(word in name for word in STORING):
            self.stores |= target
            return NOTHING
        return NOTHING if any(word in name for word in LOADING) else given

    def _of_kernel(
        self, function: types.FunctionType, node: ast.Call, args: list[Names], named: list[tuple[str | None, Names]],
        given: Names,
    ) -> Names:  # fmt: skip
        """Of a function of the device that the kernel calls."""
        spread = any(isinstance(part, ast.Starred) for part in node.args) or any(name is None for name, _ in named)
        if spread or function in self.callers:
            return self._all(given)
        parameters = list(inspect.signature(function).parameters)
        taken = {**dict(zip(parameters, args, strict=False)), **{str(name): names for name, names in named}}
        for name in _stored_to(function, self.callers):
            self.stores |= taken.get(name, NOTHING)
        return given

    def _all(self, given: Names) -> Names:
        self.stores |= given
        return given

    def _known(self, node: ast.expr) -> Value:
        """What a name, or a path from one, stands for outside of the function; None where it is of the function."""
        if isinstance(node, ast.Name):
            return None if node.id in self.points else self.names.get(node.id)
        if isinstance(node, ast.Attribute):
            holder = self._known(node.value)
            return None if holder is None else getattr(holder, node.attr, None)
        return None


def _joined(parts: Iterator[Names] | tuple[Names, ...]) -> Names:
    return frozenset().union(*parts)


def _is_kernel(called: Value) -> bool:
    """Whether this is a function that Triton compiles, or interprets."""
    return type(called).__name__ in ("JITFunction", "InterpretedFunction") and isinstance(
        getattr(called, "fn", None), types.FunctionType
    )


def _is_pure(called: Value) -> bool:
    """Whether a function computes of numbers alone."""
    return type(called).__name__ == "ConstexprFunction" or getattr(called, "__module__", "") == "builtins"
